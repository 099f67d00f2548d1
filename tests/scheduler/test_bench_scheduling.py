"""The rows of docs/scheduling.md that a simulation shows hold: deterministic, so they are asserted."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from octavo_scheduler.simulate.hardware import given_models

BENCH = Path(__file__).parents[2] / "bench" / "scheduling.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_scheduling", BENCH)
    assert spec is not None and spec.loader is not None
    module = sys.modules["bench_scheduling"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(bench: ModuleType, row: str) -> dict[str, float]:
    arguments = argparse.Namespace(live=False, seed=1, prompts=6, small=30)
    return {item.name: item.value for item in bench.ROWS[row](arguments, given_models()["this-cpu"], None)}


def test_long_prompts_do_not_stall_running_streams(bench: ModuleType) -> None:
    found = figures(bench, "chunking")
    assert found["itl_p99_over_p50/chunked"] <= 2.5
    assert found["itl_p99_over_p50_alone/chunked"] <= 2.5
    assert found["itl_p99/chunked_over_whole"] <= 0.5


def test_a_flooding_tenant_does_not_hold_the_other_up(bench: ModuleType) -> None:
    found = figures(bench, "flood")
    assert found["small_ttft_p95/fair_over_2_alone_and_a_step"] <= 1.0
    assert found["small_ttft_p95/fair_over_decodes"] <= 1.5
    assert found["small_ttft_p95/fcfs_over_alone"] > 10  # what it is spared


def test_a_row_that_cannot_be_live_says_so(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["policies", "--live"])
    assert ended.value.code == 2 and "use chunking or flood" in capsys.readouterr().err
