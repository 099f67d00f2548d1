"""octavo drain: progress, exit codes, JSON; and a drained worker stays away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from octavo.rpc.host import LEFT
from octavo.v1 import scheduler_pb2
from octavo_cli.drain_link import progress_line
from octavo_cli.service_log import Record, left_in_order


def test_drain_against_a_cluster(octavo: Any, eventually: Any) -> None:
    octavo.script("gpuworker-1", leave_s=1.0)
    assert octavo.up_detached("--workers", "2").returncode == 0
    done = octavo("drain", "gpuworker-0", "--deadline-s", "5")
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first == "gpuworker-0 drains: 2 running, 0 to copy, 0 finished, 0 handed over, 5 s left"
    assert last.startswith("gpuworker-0 drained in ") and last.endswith("s: 1 finished, 1 handed over")
    told = json.loads(octavo("drain", "gpuworker-0", "--json").stdout)
    assert told.pop("seconds") >= 0
    assert told == {"worker": "gpuworker-0", "state": "drained", "finished": 1, "handed_over": 1}
    lost = octavo("drain", "gpuworker-0", "--force")
    assert lost.returncode == 1 and "silent for 5 s" in lost.stdout
    unknown = octavo("drain", "nobody")
    assert unknown.returncode == 2 and unknown.stderr.count("\n") == 1 and "connected: w" in unknown.stderr
    eventually(lambda: states(octavo)["gpuworker-1"] == ("drained", 0))
    status = octavo("status", "--json")
    assert status.returncode == 0 and json.loads(status.stdout)["ready"], "what left on purpose is no failure"
    assert octavo("down").returncode == 0


def states(octavo: Any) -> dict[str, tuple[str, int]]:
    return {item["name"]: (item["state"], item["restarts"]) for item in octavo.state()["services"]}


def test_drain_without_a_cluster_and_with_a_bad_deadline(octavo: Any) -> None:
    assert octavo("drain", "w").returncode == 4
    bad = octavo("drain", "w", "--deadline-s", "-1", "--scheduler", "127.0.0.1:1")
    assert bad.returncode == 2 and "--deadline-s" in bad.stderr
    nobody = octavo("drain", "w", "--scheduler", "127.0.0.1:1")
    assert nobody.returncode == 1 and "127.0.0.1:1 does not answer" in nobody.stderr


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        ({"state": "drained", "finished": 3}, "w drained in 2.5 s: 3 finished, 0 handed over"),
        ({"state": "lost", "why": "silent"}, "w was lost while it drained (silent); what ran there goes on elsewhere"),
    ],
)
def test_the_last_line(progress: dict[str, Any], line: str) -> None:
    assert progress_line("w", scheduler_pb2.DrainWorkerResponse(**progress), 2.5) == line


def test_only_last_words_and_code_0_make_a_worker_that_left() -> None:
    said = [Record("info", f"ended with exit code 0: {LEFT}")]
    assert left_in_order(said, 0) and not left_in_order(said, 1)
    assert not left_in_order([Record("info", "ended with exit code 0: signal SIGTERM")], 0)
