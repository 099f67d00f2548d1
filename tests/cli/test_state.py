"""state.json: who still runs whatever the clock says, and files that are damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from octavo_cli.exits import NoCluster
from octavo_cli.state import ClusterState, Process, ServiceState, read_state, running_state, start_of, write_state


def test_a_clock_that_is_set_makes_nobody_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day at which a process began is worked out from the clock as it stands now."""
    write_state(tmp_path, ClusterState(Process.of(os.getpid())))
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) - 3600.0)
    assert running_state(tmp_path).supervisor.alive()
    assert [item.pid for item in read_state(tmp_path).processes()] == [os.getpid()]


def test_a_later_process_of_the_same_pid_is_another_one() -> None:
    mine = Process.of(os.getpid())
    boot, ticks = mine.start.split("/")
    assert mine.alive()
    assert not Process(mine.pid, f"{boot}/{int(ticks) - 1}").alive()
    assert not Process(mine.pid, f"another-boot/{ticks}").alive()
    assert not Process(mine.pid, "").alive()


def test_a_process_that_ended_has_no_start() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        running = Process.of(child.pid)
        assert running.alive()
        child.kill()
        while running.alive():  # a zombie until it is waited for
            time.sleep(0.01)
    assert start_of(child.pid) == ""
    assert Process.of(child.pid) == Process(child.pid, "")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("supervisor",), None),
        (("supervisor",), {"pid": 1, "started_unix_s": 1.0}),
        (("supervisor", "pid"), {}),
        (("supervisor", "pid"), 2**70),
        (("supervisor", "pid"), -1),
        (("supervisor", "start"), 5.0),
        (("services",), 3),
        (("services", 0, "process"), []),
        (("services", 0, "process", "pid"), "7"),
    ],
)
def test_damage_is_told_with_the_fix(tmp_path: Path, path: tuple[Any, ...], value: Any) -> None:
    write_state(tmp_path, ClusterState(Process.of(os.getpid()), services=(ServiceState("gateway", "gateway", "h:1"),)))
    content = json.loads((tmp_path / "state.json").read_text())
    held = content
    for step in path[:-1]:
        held = held[step]
    held[path[-1]] = value
    (tmp_path / "state.json").write_text(json.dumps(content))
    with pytest.raises(NoCluster, match=r"cannot be read .*; remove it and start again"):
        read_state(tmp_path)


@pytest.mark.parametrize("text", ["", "null", "3", "[]", "[" * 100_000, '{"supervisor": {"pid"'])
def test_what_is_no_state_is_told_too(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(NoCluster, match="remove it and start again"):
        read_state(tmp_path)
