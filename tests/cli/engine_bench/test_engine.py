"""What of `octavo bench engine` is asked for: forms of weights are known before anything is measured."""

from __future__ import annotations

import pytest
from octavo_cli.bench.work import BadPlan
from octavo_cli.engine_bench.engine import check_services


def test_forms_of_weights_for_the_services() -> None:
    assert check_services("bf16, int8,bf16") == ("bf16", "int8")
    assert check_services("none") == check_services("") == ()
    with pytest.raises(BadPlan, match=r"--services: 'bogus' is no form of weights; use auto, bf16, .*, or none"):
        check_services("bf16,bogus")
