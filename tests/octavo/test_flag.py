"""Flag: what asyncio.Event does, for one that waits."""

from __future__ import annotations

import asyncio

import pytest
from octavo.rpc.flag import Flag


async def test_waiting_ends_when_it_is_set_and_not_before() -> None:
    flag = Flag()
    waiting = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    assert not waiting.done() and not flag.is_set()
    flag.set()
    flag.set()
    await waiting
    assert flag.is_set()
    await flag.wait()
    flag.clear()
    assert not flag.is_set()


async def test_one_that_is_set_and_cleared_before_its_task_runs_has_woken_it() -> None:
    flag = Flag()
    waiting = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    flag.set()
    flag.clear()
    await asyncio.wait_for(waiting, 5)
    assert not flag.is_set()


async def test_who_gave_up_waiting_leaves_room_for_the_next() -> None:
    flag = Flag()
    for _ in range(2):
        waiting = asyncio.create_task(flag.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        flag.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        flag.clear()


async def test_a_second_one_that_waits_is_told() -> None:
    flag = Flag()
    waiting = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one task"):
        await flag.wait()
    flag.set()
    await waiting
