"""A service's process: whom it shares the cores with, and what ends with it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from octavo_cli.plan import ServicePlan
from octavo_cli.process import ServiceProcess

PARENT = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
made = pathlib.Path(sys.argv[1])
made.with_suffix(".part").write_text(f"{os.getpid()} {os.getsid(0)} {os.getpgid(0)} {os.getpgid(child.pid)}")
made.with_suffix(".part").rename(made)
time.sleep(60)
"""


async def test_a_service_has_a_group_of_its_own_in_our_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session would be another part of the cores; without a group what it starts would outlive it."""
    (tmp_path / "waiting_service.py").write_text(PARENT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    made = tmp_path / "made"
    plan = ServicePlan("scheduler", "scheduler", "waiting_service", "127.0.0.1:1", (str(made),))
    service = await ServiceProcess.start(plan, tmp_path / "service.log")
    async with asyncio.timeout(20):
        while not made.exists():
            await asyncio.sleep(0.02)
    pid, session, group, childs_group = map(int, made.read_text().split())
    service.kill()
    assert await service.wait() == -signal.SIGKILL
    assert (session, group, childs_group) == (os.getsid(0), pid, pid)
    async with asyncio.timeout(20):
        while group_lives(group):
            await asyncio.sleep(0.02)


def group_lives(group: int) -> bool:
    """A process of the group still runs; one that has ended and waits for its parent does not count."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, found = status.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(found) == group and state != "Z":
            return True
    return False
