"""A cost model fitted to the log of a worker whose cost model is known."""

from __future__ import annotations

import io
from dataclasses import replace
from random import Random

import pytest
from octavo_scheduler.event_log import EventLog
from octavo_scheduler.events import Event, Reported, Tick
from octavo_scheduler.orders import Effects
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.calibrate import fit, hardware_of_log, observation, relative_errors
from octavo_scheduler.simulate.cell_run import CellRun
from octavo_scheduler.simulate.hardware import BadPlan, Hardware

from tests.scheduler.simulate.scenes import ROUND, row

TRUE = replace(ROUND, fixed_us=7000.0, prefill_token_us=80.0, decode_seq_us=900.0, context_token_us=1.5, gap_us=400.0)


def logged(hardware: Hardware, requests: int = 40) -> list[str]:
    """The log of a simulated cell of one worker."""
    out = io.StringIO()
    log = EventLog(out, Policy(), 0)
    draw = Random(2)
    rows = [row(60 * i, prompt=draw.randint(8, 300), output=draw.randint(2, 40), name=f"p{i}") for i in range(requests)]

    def watch(event: Event, effects: Effects) -> None:
        log.after(log.before(event), effects)

    CellRun(Policy(), hardware, 1, list(enumerate(rows)), 100_000, watch).run()
    return out.getvalue().splitlines()


def test_the_fit_finds_the_model_that_made_the_steps() -> None:
    found = hardware_of_log(logged(TRUE), "found")
    for name in ("fixed_us", "prefill_token_us", "decode_seq_us", "context_token_us"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.02), name
    assert found.gap_us == pytest.approx(TRUE.gap_us, abs=5)
    assert (found.num_blocks, found.block_tokens, found.max_num_seqs) == (1001, 16, 16)


def test_no_coefficient_is_negative_whatever_the_noise() -> None:
    draw = Random(5)
    seen = [
        observation(
            Reported(0, 1, steps=1, slots=[0], computed_len=[draw.randint(1, 99)], wall_us=draw.randint(1, 900))
        )
        for _ in range(60)
    ]
    coefficients = fit(seen)
    assert all(value >= 0 for value in coefficients) and coefficients[0] > 0
    assert len(relative_errors(TRUE, seen)) == 60


def test_a_log_with_too_little_in_it_is_refused() -> None:
    with pytest.raises(BadPlan, match=r"hardware: the log has \d+ reports with steps; calibrate on 50 or more"):
        hardware_of_log(logged(TRUE, 1)[:12], "short")
    out = io.StringIO()
    EventLog(out, Policy(), 0).before(Tick(0))
    with pytest.raises(BadPlan, match="the log has 0 reports"):
        hardware_of_log(out.getvalue().splitlines(), "empty")
