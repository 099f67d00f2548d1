"""The bell between the step thread and the event loop."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from octavo_gpuworker.bell import Bell


async def rung(calls: list[str], count: int = 1) -> None:
    async with asyncio.timeout(5):
        while len(calls) < count:
            await asyncio.sleep(0.001)


async def test_a_ring_from_another_thread_calls_the_loop() -> None:
    calls: list[str] = []
    bell = Bell(asyncio.get_running_loop(), lambda: calls.append(threading.current_thread().name))
    await asyncio.to_thread(bell.ring)
    await rung(calls)
    assert calls == [threading.current_thread().name]
    bell.close()


async def test_rings_before_the_loop_has_heard_the_first_are_one() -> None:
    calls: list[str] = []
    bell = Bell(asyncio.get_running_loop(), lambda: calls.append("rung"))
    for _ in range(3):
        bell.ring()
    await rung(calls)
    await asyncio.sleep(0.01)
    assert calls == ["rung"]
    bell.ring()
    await rung(calls, 2)
    bell.close()


async def test_whoever_has_its_number_rings_it() -> None:
    calls: list[str] = []
    bell = Bell(asyncio.get_running_loop(), lambda: calls.append("rung"))
    os.eventfd_write(bell.fd, 1)
    await rung(calls)
    bell.close()
    bell.close()
    assert bell.fd == 0


async def test_a_system_without_eventfd_is_rung_through_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd")
    calls: list[str] = []
    bell = Bell(asyncio.get_running_loop(), lambda: calls.append("rung"))
    assert bell.fd == 0
    await asyncio.to_thread(bell.ring)
    await rung(calls)
    bell.close()
