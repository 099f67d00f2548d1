"""Cost models: given ones that follow from a roofline, ones of one's own, and what is wrong with others."""

from __future__ import annotations

from typing import Any

import pytest
from octavo_scheduler.costs import StepCosts
from octavo_scheduler.simulate.hardware import BadPlan, given_models, hardware_from, hardware_to

from tests.scheduler.simulate.scenes import ROUND


def test_given_models_lie_where_their_machines_do() -> None:
    small, large = given_models()["h200-8b"], given_models()["h200-70b-tp4"]
    # reading 16 GB of weights at 4.8 TB/s takes 3.3 ms at best; 35 GB per GPU 7.4 ms
    assert 3300 < small.step_us(0, 1, 512) < 8000
    assert 7400 < large.step_us(0, 1, 512) < 20_000
    assert 15e3 < 1e6 / small.prefill_token_us < 60e3
    # what is left of 141 GB holds about 100 GB of KV, 128 KiB a token
    assert 600_000 < small.num_blocks * small.block_tokens < 900_000
    assert large.block_bytes == 16 * 327_680


def test_a_model_of_ones_own_survives_the_way_through_json() -> None:
    assert hardware_from(hardware_to(ROUND)) == ROUND
    assert hardware_from("this-cpu").name == "this-cpu"


def test_the_core_predicts_the_simulated_step_exactly() -> None:
    costs = StepCosts(ROUND.calibration)
    assert costs.predict_step_us(100, 3, 500) == pytest.approx(ROUND.step_us(100, 3, 500), rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"fixed_us": 0}, "hardware.fixed_us: 0 must be above 0"),
        ({"prefill_token_us": -1}, "hardware.prefill_token_us: -1 must be a number of at least 0"),
        ({"decode_seq_us": "fast"}, "hardware.decode_seq_us: 'fast' must be a number"),
        ({"num_blocks": 1}, "hardware.num_blocks: 1 leaves no block"),
        ({"speed": 3}, "hardware.speed: is no field; the fields are name, fixed_us"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(BadPlan) as caught:
        hardware_from({**hardware_to(ROUND), **changes})
    assert str(caught.value).startswith(what)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(BadPlan, match="'h100' is unknown; use one of h200-8b"):
        hardware_from("h100")
    with pytest.raises(BadPlan, match="must be a name or an object"):
        hardware_from(3)
    with pytest.raises(BadPlan, match=r"missing .* 'num_blocks'"):
        hardware_from(
            {
                "name": "x",
                "fixed_us": 1,
                "prefill_token_us": 1,
                "decode_seq_us": 1,
                "context_token_us": 1,
                "block_bytes": 1,
            }
        )
