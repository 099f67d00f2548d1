"""Forecasts held against simulated truth, and the shedding that hangs on them."""

from __future__ import annotations

from random import Random

import pytest
from octavo_scheduler.limits.accuracy import CorrectionByLength
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellResult, CellRun
from octavo_scheduler.simulate.hardware import hardware_from
from octavo_scheduler.simulate.workload import Row

TTFT_MS, ITL_MS = 1000.0, 200.0


def poisson(rate: float, count: int, seed: int = 7) -> list[Row]:
    """Prompts of 512 and outputs of 128 tokens, lognormal with a deviation of 0.3."""
    rng, at_s = Random(seed), 0.0
    rows: list[Row] = []
    for number in range(count):
        at_s += rng.expovariate(rate)
        prompt, output = (max(1, round(mean * rng.lognormvariate(-0.045, 0.3))) for mean in (512, 128))
        rows.append(Row(round(at_s * 1e6), ((f"own{number}", prompt),), output, max_tokens=4 * output))
    return rows


def served(rate: float, order: str, on_overload: str = "queue", count: int = 700) -> CellResult:
    classes = {"default": {"ttft_ms": TTFT_MS, "itl_p99_ms": ITL_MS, "on_overload": on_overload}}
    policy = Policy(order=order, max_num_seqs=256, slo_classes=classes)
    return CellRun(policy, hardware_from("h200-8b"), 1, list(enumerate(poisson(rate, count))), 100_000).run()


@pytest.mark.parametrize(
    ("rate", "order", "on_overload"),
    [
        (14.0, "fcfs", "queue"),
        (33.0, "fcfs", "queue"),
        (14.0, "slo-fair", "queue"),
        (33.0, "slo-fair", "queue"),
        (48.0, "slo-fair", "reject"),
    ],
)
def test_the_predicted_ttft_is_within_a_fifth_of_simulated_truth(rate: float, order: str, on_overload: str) -> None:
    """At 0.3 and 0.7 of the capacity by arrival and under the default policy, and beyond it with the door."""
    count, median, p90 = served(rate, order, on_overload, 1300).prediction_errors["ttft"]
    assert count > 50 and median < 0.1 and p90 < 0.2


def test_overload_keeps_its_goodput_with_the_door_and_loses_it_without() -> None:
    def goodput(result: CellResult, rate: float) -> float:
        return sum(tally.meets(TTFT_MS, ITL_MS) for tally in result.tallies) / len(result.tallies) * rate

    capacity = 42.0
    base = goodput(served(capacity, "slo-fair", "reject"), capacity)
    over = goodput(served(1.5 * capacity, "slo-fair", "reject", 1000), 1.5 * capacity)
    without = goodput(served(1.5 * capacity, "fcfs", count=1000), 1.5 * capacity)
    assert over >= 0.9 * base and without < 0.5 * base


def test_a_correction_is_learned_for_each_length() -> None:
    correction = CorrectionByLength()
    for _ in range(200):
        correction.observe(100, 10.0, 10.0)
        correction.observe(1600, 10.0, 30.0)
    assert correction.factor(100) == pytest.approx(1.0, abs=0.01) and correction.factor(1600) == pytest.approx(
        3.0, rel=0.02
    )
    assert 1.0 < correction.factor(400) < 3.0, "one that was never seen takes the correction of all"
