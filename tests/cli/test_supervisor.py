"""The supervisor's release gate: what a person sees of it, and what a failure does before and after ready."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from octavo_cli import supervisor as module
from octavo_cli.exits import StartFailed
from octavo_cli.gate_process import WAITING, run_gate_process
from octavo_cli.state import ServiceState
from octavo_cli.supervisor import Supervisor


class Heard:
    """A watcher that keeps the gate's events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def gate(self, state: str, said: str) -> None:
        self.events.append((state, said))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def waiting_cluster(tmp_path: Path, ready: bool) -> tuple[Supervisor, Heard]:
    heard = Heard()
    supervisor = Supervisor([], tmp_path, 1.0, heard, gate_flags=[])
    services = (
        ServiceState("scheduler", "scheduler", "", state="serving"),
        ServiceState("gateway", "gateway", "", state="not serving", why=WAITING),
    )
    supervisor.state = replace(supervisor.state, services=services, ready=ready)
    return supervisor, heard


def gates(monkeypatch: pytest.MonkeyPatch, codes: Sequence[int], then: Callable[[], None]) -> None:
    """Gate runs that end with these codes; `then` is called by the last one."""
    left = list(codes)

    async def run(_flags: Sequence[str], _run_dir: Path, on_line: Callable[[str], None]) -> tuple[int, str]:
        code = left.pop(0)
        on_line("greedy parity: passed")
        if not left:
            then()
        return code, "its last line"

    monkeypatch.setattr(module, "run_gate_process", run)
    monkeypatch.setattr(module, "FIRST_GATE_RETRY_S", 0.01)
    monkeypatch.setattr(module, "POLL_SERVING_S", 0.01)


def opened(supervisor: Supervisor) -> None:
    gateway = replace(supervisor.state.services[1], state="serving", why="")
    supervisor.state = replace(supervisor.state, services=(supervisor.state.services[0], gateway))


async def test_a_gate_that_fails_after_ready_is_told_and_run_again(tmp_path: Path, monkeypatch: Any) -> None:
    supervisor, heard = waiting_cluster(tmp_path, ready=True)
    gates(monkeypatch, [1, 1, 0], lambda: opened(supervisor))
    keeping = asyncio.create_task(supervisor._keep_gate())
    async with asyncio.timeout(10):
        while heard.events[-1:] != [("passed", "its last line")]:
            await asyncio.sleep(0.01)
    keeping.cancel()
    failures = [said for state, said in heard.events if state == "failed"]
    assert [said.split("; ")[0] for said in failures] == ["its last line"] * 2
    assert "again in 0.01 s" in failures[0] and "again in 0.02 s" in failures[1]  # later each time
    assert [said for state, said in heard.events if state == "running"].count("greedy parity: passed") == 3
    assert not supervisor._stopping.is_set()


async def test_a_gate_that_fails_before_ready_ends_the_cluster(tmp_path: Path, monkeypatch: Any) -> None:
    supervisor, heard = waiting_cluster(tmp_path, ready=False)
    gates(monkeypatch, [1], lambda: None)
    async with asyncio.timeout(10):
        await supervisor._keep_gate()
    assert isinstance(supervisor._failure, StartFailed) and "its last line" in str(supervisor._failure)
    assert supervisor._stopping.is_set() and ("failed", "its last line") not in heard.events


async def test_the_lines_of_a_gate_are_heard(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines: list[str] = []
    code, last = await run_gate_process(["--release_gate.enabled", "false"], tmp_path, lines.append)
    assert code == 2 and "release_gate" in last and lines[-1] == last


async def test_on_a_full_disk_every_service_is_stopped_all_the_same(tmp_path: Path, monkeypatch: Any) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    supervisor, heard = waiting_cluster(tmp_path, ready=True)
    stopped: list[str] = []

    async def stop(process: Any) -> bool:
        stopped.append(process.plan.kind)
        return True

    heard.draining = full  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "write_state", full)
    monkeypatch.setattr(supervisor, "_stop", stop)
    kinds = ("scheduler", "gpuworker", "gateway", "kvstore")
    supervisor._running = {kind: SimpleNamespace(plan=SimpleNamespace(kind=kind)) for kind in kinds}  # type: ignore[misc]
    assert await supervisor._drain(asked=True)
    assert stopped[0] == "gateway" and sorted(stopped) == sorted(kinds)
