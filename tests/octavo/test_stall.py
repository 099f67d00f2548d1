"""StallGuard: what asyncio.timeout promises, at the price of a few assignments."""

from __future__ import annotations

import asyncio

import pytest
from octavo.rpc.stall import StallGuard


async def test_what_is_stuck_ends_with_a_timeout_and_the_guard_works_again() -> None:
    guard = StallGuard(0.05)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"stuck for 0\.05 s"), guard:
            await asyncio.sleep(30)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
    with guard:
        await asyncio.sleep(0)
    guard.close()


async def test_many_short_awaits_never_expire_and_arm_one_timer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    armed = 0
    call_later = loop.call_later

    def counted(delay, callback, *arguments):
        nonlocal armed
        armed += callback.__name__ == "_look"
        return call_later(delay, callback, *arguments)

    monkeypatch.setattr(loop, "call_later", counted)
    guard = StallGuard(0.1)
    for _ in range(50):
        with guard:
            await asyncio.sleep(0.005)  # more than two limits in all
    assert 1 <= armed <= 10, "one per limit, not one per use"
    guard.close()


async def test_a_cancel_from_outside_stays_a_cancel() -> None:
    guard = StallGuard(5.0)

    async def wait() -> None:
        with guard:
            await asyncio.sleep(30)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    guard.close()


async def test_an_error_inside_passes_through() -> None:
    guard = StallGuard(5.0)
    with pytest.raises(KeyError, match="x"), guard:
        raise KeyError("x")
    guard.close()
