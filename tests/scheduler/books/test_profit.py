"""bench/profit.py: the choice is close to the best way. A corner of the sweep here, all of it as a soak."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "profit.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_profit", BENCH)
    assert spec is not None and spec.loader is not None
    module = sys.modules["bench_profit"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_way_is_the_best_somewhere_and_is_chosen_there(bench: ModuleType) -> None:
    won: Counter[str] = Counter()
    for tier, best in (("dram", "load"), ("nvme", "overlap"), ("far", "recompute")):
        times = bench.measure(bench.Case(2048, tier, 0))
        won[bench.best(times)] += 1
        assert bench.best(times) == best, times
        assert bench.regret(times) <= bench.REGRET, times
    assert len(won) == 3


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_whole_sweep(bench: ModuleType) -> None:
    found = {figure.name: figure.value for figure in bench.sweep()}
    assert len(bench.CASES) == 60 and found["cases_within_regret"] >= 57
    assert min(found[f"best/{way}"] for way in bench.WAYS) >= 15
    assert found["ttft_mean/auto"] < min(found["ttft_mean/load"], found["ttft_mean/recompute"])
