"""Cells: how workers and requests are spread, and that a run is a function of its input."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.fleet_run import MAX_WORKERS, Plan, run_fleet
from octavo_scheduler.simulate.hardware import BadPlan
from octavo_scheduler.simulate.workload import Row

from tests.scheduler.simulate.scenes import ROUND, row

SMALL = replace(ROUND, num_blocks=50)


@pytest.mark.parametrize(("workers", "limit", "sizes"), [(1, 128, [1]), (10, 4, [4, 3, 3]), (4000, 128, [125] * 32)])
def test_cells_are_few_and_even(workers: int, limit: int, sizes: list[int]) -> None:
    assert Plan(ROUND, Policy(), workers, limit).cells() == sizes


def test_four_thousand_workers_run() -> None:
    rows = [row(i, prompt=16, output=2, name=f"p{i}") for i in range(200)]
    results = run_fleet(Plan(SMALL, Policy(), MAX_WORKERS), rows)
    assert len(results) == 32 and sum(len(result.tallies) for result in results) == 200
    assert all(len(result.tallies) > 0 for result in results)
    # nobody waits for anybody: the same latency everywhere
    assert len({tally.ttft_us for result in results for tally in result.tallies}) == 1


def test_a_conversation_and_a_common_beginning_stay_in_one_cell() -> None:
    rows = [Row(i * 1000, (("system", 32), (f"q{i}", 16)), 2) for i in range(8)]
    rows += [Row(0, ((f"turn{i}", 4),), 2, after=i) for i in range(8)]
    results = run_fleet(Plan(SMALL, Policy(), 4, cell_workers=1), rows)
    assert sorted(len(result.tallies) for result in results) == [0, 0, 0, 16]


def test_a_run_is_a_function_of_its_input() -> None:
    rows = [row(3 * i, prompt=20 + i % 7, output=5 + i % 3, name=f"p{i % 11}") for i in range(80)]
    plan = Plan(SMALL, Policy(max_num_seqs=4), 3, cell_workers=2)
    first, second = ([asdict(result) for result in run_fleet(plan, rows)] for _ in range(2))
    assert first == second


def test_rows_out_of_order_and_impossible_fleets_are_refused() -> None:
    with pytest.raises(BadPlan, match=r"requests\[1\].at_us: 1000 is before its predecessor"):
        run_fleet(Plan(ROUND, Policy(), 1), [row(2), row(1)])
    with pytest.raises(BadPlan, match=r"workers: 4001 must lie in \[1, 4000\]"):
        Plan(ROUND, Policy(), MAX_WORKERS + 1)
    with pytest.raises(BadPlan, match="cell_workers: 0"):
        Plan(ROUND, Policy(), 1, 0)
