"""Workers that follow the load: they come after the delay, leave when too many, and cost what they were paid for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from octavo_scheduler.policy import SECOND_US, Policy
from octavo_scheduler.simulate.__main__ import run as answer
from octavo_scheduler.simulate.autoscale import RULES, Scaling, ScalingRun, compare
from octavo_scheduler.simulate.hardware import BadPlan
from octavo_scheduler.simulate.workload import Row

from tests.scheduler.simulate.scenes import ROUND

SLO = {"default": {"ttft_ms": 2000.0, "itl_p99_ms": 0.0}}
FAST = replace(ROUND, name="fast", fixed_us=20_000.0, prefill_token_us=500.0)


def steps(*stretches: tuple[float, float]) -> list[Row]:
    """Constant arrivals: (requests per second, seconds) one after the other."""
    rows: list[Row] = []
    at_s = 0.0
    for rate, seconds in stretches:
        for _ in range(int(rate * seconds)):
            at_s += 1 / rate
            rows.append(Row(round(at_s * 1e6), ((f"own{len(rows)}", 200),), 20, max_tokens=40))
    return rows


STEP = steps((2.0, 120.0), (12.0, 240.0), (2.0, 300.0))


@pytest.mark.parametrize("rule", RULES)
def test_a_step_of_load_brings_workers_after_the_delay_and_lets_them_go(rule: str) -> None:
    run = ScalingRun(Policy(slo_classes=SLO), FAST, 1, list(enumerate(STEP)), Scaling(rule, 30 * SECOND_US))
    result = run.run()
    assert all(tally.outcome == "finished" for tally in result.tallies)
    assert run.peak_workers >= 2 and run.worker_us < run.peak_workers * result.ended_us
    assert len(run.core.cell.fleet.accepting()) < run.peak_workers, "they left again"
    assert result.counters["worker_losses"] == 0 and result.counters["workers_drained"] > 0
    assert run.worker_us >= result.busy_us


def test_a_longer_delay_costs_goodput_and_spares_buy_it_back() -> None:
    def good(delay_s: int, spare: int) -> tuple[float, float]:
        figures = compare(Policy(slo_classes=SLO), FAST, 1, STEP, [Scaling("slo", delay_s * SECOND_US, spare)], 2.0)
        found = {item.name: item.value for item in figures}
        assert found["cost_per_good_request/slo"] == pytest.approx(found["worker_s_per_good_request/slo"] / 3600 * 2.0)
        return found["slo_attainment/slo"], found["worker_hours/slo"]

    (quick, _), (slow, slow_cost), (spared, spared_cost) = good(10, 0), good(200, 0), good(200, 2)
    assert slow < quick and slow < spared and spared_cost > slow_cost


def test_it_is_deterministic_and_stays_below_the_most() -> None:
    runs = [
        ScalingRun(Policy(slo_classes=SLO), FAST, 1, list(enumerate(STEP)), Scaling("queue", SECOND_US, most=2))
        for _ in "ab"
    ]
    results = [run.run() for run in runs]
    assert runs[0].worker_us == runs[1].worker_us and results[0].events == results[1].events
    assert runs[0].peak_workers == 2


BAD: dict[str, Any] = {
    "autoscale": {"rules": ["magic"], "delay_s": 1, "spare": 0},
    "autoscale:": {"rules": []},
    "scale_delay": {"rules": ["slo"], "delay_s": -1, "spare": 0},
    "spare": {"rules": ["slo"], "delay_s": 1, "spare": -1},
}


@pytest.mark.parametrize(("field", "given"), BAD.items())
def test_bad_input_is_refused_by_name(field: str, given: dict[str, Any]) -> None:
    row = {"at_us": 0, "pieces": [["a", 10]], "output_tokens": 2}
    with pytest.raises(BadPlan) as caught:
        answer([json.dumps({"hardware": "h200-8b", "workers": 1, "autoscale": given}), json.dumps(row)], [])
    assert caught.value.field == field.strip(":")
