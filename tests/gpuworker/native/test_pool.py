"""The thread pool alone, compiled with a driver of its own: units run once, and who waits for a thread helps it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from octavo_gpuworker.native.build import COMPILERS, SOURCES, unavailable

CANNOT = 77


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skips where neither the system nor a compiler is."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None or unavailable():
        pytest.skip(unavailable() or "no C++ compiler")
    program = tmp_path_factory.mktemp("pool") / "probe"
    sources = [str(Path(__file__).with_name("pool_probe.cpp")), str(SOURCES / "pool.cpp")]
    flags = ["-std=c++17", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}"]
    subprocess.run([compiler, *flags, *sources, "-o", str(program)], check=True)
    return program


def run(probe: Path, case: str) -> dict[str, int]:
    done = subprocess.run([str(probe), case], check=False, capture_output=True, timeout=60)
    if done.returncode == CANNOT:
        pytest.skip("this system does not allow what it takes")
    assert not done.returncode, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_who_waits_for_a_thread_within_a_unit_takes_it_to_its_own_processor(probe: Path) -> None:
    """20 steps in each of which one thread does not go on before it was helped; afterwards both may run where they might before."""
    found = run(probe, "stuck")
    assert found["lent"] >= 20  # more where the system has put the other one aside as well
    assert (found["wrong"], found["moved"]) == (0, 0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_who_runs_alone_sends_a_thread_that_queues_behind_it_to_another_processor(probe: Path) -> None:
    """20 steps in each of which one thread does not go on before it was sent away."""
    found = run(probe, "behind")
    assert found["sent"] >= 20
    assert (found["wrong"], found["moved"]) == (0, 0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_who_slept_where_the_caller_runs_begins_elsewhere(probe: Path) -> None:
    """In 19 of 20 steps, less where something else took the caller there; afterwards both may run where they might before."""
    found = run(probe, "woken")
    assert 15 <= found["sent"] <= 20
    assert (found["wrong"], found["moved"]) == (0, 0)


def test_units_run_once_each_although_threads_lose_their_processor(probe: Path) -> None:
    found = run(probe, "uneven")
    assert (found["wrong"], found["moved"]) == (0, 0)
    assert found["lent"] > 0, "units slept 300 us beside others of none"


def test_where_no_thread_may_be_moved_the_pool_goes_on_without(probe: Path) -> None:
    assert run(probe, "refused") == {"lent": 0, "sent": 0, "wrong": 0, "moved": 0}
