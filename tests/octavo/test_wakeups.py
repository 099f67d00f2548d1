"""Slices of message threads: stated where the system knows them, and nothing else about a thread changes."""

from __future__ import annotations

import os
import threading

import pytest
from octavo.rpc import wakeups


def in_a_thread(work: object) -> list[object]:
    """Runs `work` in a thread of its own, so that this process's threads stay as they are."""
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.append(work()))  # type: ignore[operator]
    thread.start()
    thread.join()
    return said


@pytest.mark.skipif(not wakeups.known_here(), reason="this system's threads state no slice")
def test_the_calling_thread_takes_the_slice_and_keeps_its_nice_value() -> None:
    def work() -> tuple[int, int, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 3)
        taken = wakeups.shorten_slices(300)
        return taken, wakeups.slice_ns(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before_ns = wakeups.slice_ns()
    ((taken, slice_ns, nice),) = in_a_thread(work)  # type: ignore[misc]
    assert taken >= 1 and (slice_ns, nice) == (300_000, 3)
    assert wakeups.slice_ns() == before_ns  # another thread's


def test_zero_and_another_system_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wakeups.shorten_slices(0) == 0
    monkeypatch.setattr("platform.release", lambda: "6.11.0-generic")
    assert wakeups.shorten_slices(300) == 0
    monkeypatch.setattr("platform.release", lambda: "unknown")
    assert not wakeups.known_here()
    monkeypatch.setattr("platform.release", lambda: "7.0.1")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert not wakeups.known_here()
