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


async def test_who_waits_goes_on_behind_whom_the_ring_woke() -> None:
    """A task that waits for what `on_ring` sets has had its turn, the part up to its next await."""
    log: list[str] = []
    woken = asyncio.Event()

    async def writer() -> None:
        await woken.wait()
        log.append("written")

    def wait() -> None:
        bell.ring_and_wait(5.0)
        log.append("gone on")

    bell = Bell(asyncio.get_running_loop(), woken.set)
    task = asyncio.create_task(writer())
    await asyncio.sleep(0)
    await asyncio.to_thread(wait)
    await task
    assert log == ["written", "gone on"]
    bell.close()


@pytest.mark.parametrize("eventfd", [True, False])
async def test_a_loop_that_does_not_come_to_it_is_waited_for_no_longer_than_told(
    monkeypatch: pytest.MonkeyPatch, eventfd: bool
) -> None:
    if not eventfd:
        monkeypatch.delattr(os, "eventfd")
    calls: list[str] = []
    bell = Bell(asyncio.get_running_loop(), lambda: calls.append("rung"))
    thread = threading.Thread(target=bell.ring_and_wait, args=(0.01,))
    thread.start()
    thread.join(5)  # on the loop, which hears nothing meanwhile
    assert not thread.is_alive() and not calls
    await rung(calls)
    await asyncio.to_thread(bell.ring_and_wait, 5.0)
    assert calls == ["rung", "rung"]
    bell.close()
