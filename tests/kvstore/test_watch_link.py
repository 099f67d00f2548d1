"""WatchBlocks: from what it says a follower has the exact directory, whatever happens and however slow it is."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from octavo_kvstore import watch
from octavo_kvstore.block import BlockMeta
from octavo_kvstore.pins import PinTable
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, key_of, make_block
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.slab import SlabTier
from octavo_kvstore.watch_link import watch_blocks

SIZE = 20_000
NUMBERS = 40


class Follower:
    """Rebuilds the directory from messages alone."""

    def __init__(self, store: Store) -> None:
        self.places: dict[bytes, set[str]] = {}
        self.parents: dict[bytes, bytes] = {}
        self.restarts = 0
        self.exact = asyncio.Event()
        self.told = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self._task = asyncio.create_task(self._follow(store))

    async def _follow(self, store: Store) -> None:
        async for message in watch_blocks(store, "host-1"):
            if message.restart:
                self.restarts += 1
                self.places.clear()
                self.parents.clear()
            for change in message.changes:
                assert change.host == "host-1"
                held = self.places.setdefault(change.key, set())
                assert (change.tier in held) == change.removed, "each change is a change"
                (held.discard if change.removed else held.add)(change.tier)
                self.parents[change.key] = change.parent
                if not held:
                    del self.places[change.key]
            if message.whole:
                self.exact.set()
            self.told.set()
            await self.go_on.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def truth(store: Store) -> dict[bytes, set[str]]:
    found = {key_of(number): set(store._tiers_of(key_of(number))) for number in range(NUMBERS)}
    return {key: tiers for key, tiers in found.items() if tiers}


def make(folder: Path) -> Store:
    pins = PinTable()
    upper = HeapTier(6 * (SIZE + 512), pins.is_pinned)
    return Store(upper, SlabTier(folder, 2**20, pins.is_pinned), pins, wall_s=lambda: 0.0)


async def agree(store: Store, follower: Follower) -> None:
    async with asyncio.timeout(10):
        while follower.places != truth(store):
            await asyncio.to_thread(store.flush, 10)
            store.reconcile(
                [key_of(number) for number in range(NUMBERS)]
            )  # the writer says what it wrote after the flush
            await asyncio.sleep(0.005)


async def test_a_follower_rebuilds_the_directory_exactly(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.put(make_block(0, SIZE))
    follower = Follower(store)
    await asyncio.wait_for(follower.exact.wait(), 10)
    source = random.Random(5)
    for step in range(300):
        number = source.randrange(NUMBERS)
        match source.randrange(4):
            case 0 | 1:
                store.put(make_block(number, SIZE, parent=number - 1 if number else None))
            case 2:
                await asyncio.to_thread(store.get, key_of(number), LAYOUT)
            case 3:
                await asyncio.to_thread(store.delete, key_of(number))
        if step % 50 == 0:
            await agree(store, follower)
    await agree(store, follower)
    assert follower.places and follower.restarts == 1
    assert all(follower.parents[key_of(n)] == key_of(n - 1) for n in range(1, NUMBERS) if key_of(n) in follower.places)
    await asyncio.to_thread(store.delete_namespace, b"n" * 16)
    await follower.close()
    assert store.holdings._watchers == []
    store.close()


async def test_a_slow_follower_begins_anew_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_BEHIND", 20)
    store = make(tmp_path)
    follower, quick = Follower(store), Follower(store)
    await asyncio.wait_for(follower.exact.wait(), 10)
    follower.go_on.clear()
    for number in range(NUMBERS):
        store.put(make_block(number, SIZE))
    await agree(store, quick)
    follower.go_on.set()
    await agree(store, follower)
    assert follower.restarts >= 2
    await follower.close()
    await quick.close()
    store.close()


async def test_what_expires_or_is_deleted_by_namespace_is_told(tmp_path: Path) -> None:
    now_s = 1000.0
    pins = PinTable()
    store = Store(HeapTier(2**20, pins.is_pinned, clock_s=lambda: now_s), None, pins, wall_s=lambda: now_s)
    follower = Follower(store)
    await asyncio.wait_for(follower.exact.wait(), 10)
    store.put(make_block(1, SIZE, meta=BlockMeta(expires_s=1010)))
    store.put(make_block(2, SIZE, meta=BlockMeta(b"n" * 16)))
    await agree(store, follower)
    assert len(follower.places) == 2
    now_s = 1010.0
    assert store.sweep() == [key_of(1)]
    assert store.delete_namespace(b"n" * 16) == 1
    await agree(store, follower)
    assert follower.places == {}
    await follower.close()
    store.close()


def test_children_are_what_is_chained_from_each(tmp_path: Path) -> None:
    store = make(tmp_path)
    for number, parent in ((0, None), (1, 0), (2, 0), (3, 2)):
        store.put(make_block(number, SIZE, parent=parent))
    children = store.holdings.children()
    assert children[b""] == [key_of(0)] and set(children[key_of(0)]) == {key_of(1), key_of(2)}
    assert store.delete_below(key_of(2)) == 2
    assert set(store.inventory()[1]) == {key_of(0), key_of(1)}
    store.close()
