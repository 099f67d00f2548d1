"""Budgets after allocations that failed."""

from __future__ import annotations

from octavo.step import StepBudget
from octavo_gpuworker.relief import Relief

ORDERED = StepBudget(with_decodes=64, alone=256, max_seqs=32)


def test_without_a_failure_it_is_what_was_ordered() -> None:
    relief = Relief()
    relief.ran(ORDERED)
    assert relief.of(ORDERED) is ORDERED


def test_each_failure_halves_the_step_that_failed_down_to_one_token() -> None:
    relief = Relief()
    relief.failed(200, 10)
    assert relief.of(ORDERED) == StepBudget(64, 100, 5)
    relief.failed(100, 5)
    relief.failed(3, 1)
    assert relief.of(ORDERED) == StepBudget(1, 1, 1)
    relief.failed(1, 1)
    assert relief.of(ORDERED) == StepBudget(1, 1, 1)
    assert relief.failures == 4


def test_steps_that_run_double_it_until_nothing_is_held_back() -> None:
    relief = Relief()
    relief.failed(80, 4)
    seen = []
    while relief.of(ORDERED) is not ORDERED:
        seen.append(relief.of(ORDERED))
        relief.ran(ORDERED)
    assert seen == [StepBudget(40, 40, 2), StepBudget(64, 80, 4), StepBudget(64, 160, 8)]
    assert relief.failures == 0
