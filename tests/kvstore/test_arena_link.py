"""A Get that fills slots from disk, in a lane and spread over threads: the same answers, whatever becomes of a block meanwhile."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from octavo_kvstore.arena_desk import ArenaDesk
from octavo_kvstore.arena_file import ArenaFolder
from octavo_kvstore.arena_link import ArenaReader
from octavo_kvstore.pins import PinTable
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, key_of, make_block, payload_of
from octavo_kvstore.tiers.arena import ArenaTier
from octavo_kvstore.tiers.slab import SlabTier
from octavo_kvstore.tiers.slab_lane import SlabLane

SIZE, CHAIN = 34_000, 24
ROOM = 9 * 4096
CHAINS = 2


class Host(NamedTuple):
    store: Store
    arena: ArenaTier
    desk: ArenaDesk
    nvme: SlabTier
    client: int
    pool: ThreadPoolExecutor


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Two chains on disk; DRAM has room for one, and holds the second."""
    (tmp_path / "shm").mkdir()
    folder = ArenaFolder(tmp_path / "shm", ROOM * (CHAIN + 1))
    pins = PinTable(None)
    arena = ArenaTier(folder, ROOM * (CHAIN + 1), pins.is_pinned)
    nvme = SlabTier(tmp_path / "nvme", 16 * 2**20, pins.is_pinned)
    store = Store(arena, nvme, pins)
    desk = ArenaDesk(store, arena, folder)
    name = f"octavo-lease-{uuid.uuid4().hex}"
    fd = os.open(folder.path / name, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    given = desk.attach(SIZE, name)
    assert given is not None
    for number in range(CHAINS * CHAIN):
        store.put(make_block(number, SIZE, parent=number - 1 if number % CHAIN else None))
        assert store.flush(10)  # one at a time, so that a chain lies in a row
    pool = ThreadPoolExecutor(4)
    yield Host(store, arena, desk, nvme, given.client, pool)
    pool.shutdown()
    store.close()
    os.close(fd)


@pytest.fixture(params=[True, False], ids=["lane", "spread"])
def in_lane(request: pytest.FixtureRequest, host: Host, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(host.desk.ways, "lane_next", lambda: request.param)
    return bool(request.param)


def load(host: Host, numbers: range) -> int:
    """How many blocks a Get names; each one's slot must hold its payload."""

    async def run() -> int:
        keys = [key_of(number) for number in numbers]
        lease, _ = host.store.pin(keys, LAYOUT, 30.0, host.client)
        host.desk.begin_lease(host.client, lease)
        reader = ArenaReader(host.store, host.desk, host.pool, host.client, lease)
        count = 0
        async for group in reader.read(keys, LAYOUT, time.time):
            for response in group:
                assert response.key == keys[count] and response.HasField("slot")
                payload = host.arena.get(response.key, LAYOUT)
                assert payload is not None and payload.payload == payload_of(keys[count] + LAYOUT, SIZE)
                count += 1
        host.desk.end_lease(lease)
        host.store.unpin(lease)
        return count

    count = asyncio.run(run())
    assert host.arena.audit() == [] and host.arena.slot_counts()["arena_lent"] == 0
    return count


def test_a_chain_in_a_row_comes_back_and_is_measured(host: Host, in_lane: bool) -> None:
    keys = [key_of(number) for number in range(CHAIN)]
    held_above = [key for key in keys if host.arena.contains(key)]
    assert len(held_above) <= 1 and host.nvme.in_a_row(keys, LAYOUT) == CHAIN
    open_files = len(os.listdir("/proc/self/fd"))
    assert load(host, range(CHAIN)) == CHAIN
    assert len(os.listdir("/proc/self/fd")) == open_files
    figures = host.desk.ways.figures()
    assert (figures["read_lane_bytes_per_s"] > 0) == in_lane and (figures["read_spread_bytes_per_s"] > 0) != in_lane


def test_a_block_that_is_gone_or_damaged_ends_the_run_there(host: Host, in_lane: bool) -> None:
    entry = host.nvme._index.find(key_of(10), LAYOUT)
    assert entry is not None
    fd = os.open(next(host.nvme._folder.path.glob("slab-*.bin")), os.O_RDWR)
    os.pwrite(fd, b"\xff\x00\xff", entry.place.offset + 5000)
    os.fsync(fd)
    os.close(fd)
    assert load(host, range(CHAIN)) == 10
    assert host.nvme.stats().corrupt == 1 and not host.store.contains(key_of(10), LAYOUT)
    host.store.delete(key_of(CHAIN + 4))
    assert load(host, range(CHAIN, 2 * CHAIN)) == 4


def test_pages_that_were_read_too_early_cost_a_second_read_only(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.desk.ways, "lane_next", lambda: True)
    read, stale = SlabLane.read, []

    def old(self, slot, room):  # type: ignore[no-untyped-def]
        done = read(self, slot, room)
        if slot.number % 3 == 0:
            room[100:200] = bytes(100)
            stale.append(slot)
        return done

    monkeypatch.setattr(SlabLane, "read", old)
    assert load(host, range(CHAIN)) == CHAIN and len(stale) >= 7 and host.nvme.stats().corrupt == 0


def test_a_reader_whose_caller_leaves_lets_everything_go(host: Host, in_lane: bool) -> None:
    async def run() -> None:
        keys = [key_of(number) for number in range(CHAIN)]
        lease, _ = host.store.pin(keys, LAYOUT, 30.0, host.client)
        host.desk.begin_lease(host.client, lease)
        reading = ArenaReader(host.store, host.desk, host.pool, host.client, lease).read(keys, LAYOUT, time.time)
        await anext(reading)
        await reading.aclose()  # type: ignore[attr-defined]
        host.desk.end_lease(lease)
        host.store.unpin(lease)

    open_files = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    host.pool.submit(lambda: None).result()
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert host.arena.audit() == [] and host.arena.slot_counts()["arena_lent"] == 0


def test_only_what_follows_is_in_a_row(host: Host) -> None:
    keys = [key_of(number) for number in range(CHAIN)]
    assert host.nvme.in_a_row(keys[3:7], LAYOUT) == 4
    assert host.nvme.in_a_row([keys[0], keys[2]], LAYOUT) == 1
    assert host.nvme.in_a_row(keys, bytes(32)) == 0 == host.nvme.in_a_row([], LAYOUT)
    assert host.store.lane_of([key_of(2 * CHAIN - 1)], LAYOUT) == (0, None), "DRAM has it"
    assert host.store.lane_of([key_of(999)], LAYOUT) == (0, None)


def test_a_prefetch_reads_what_lies_in_a_row_in_a_lane(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    read, lanes = SlabLane.read, []
    monkeypatch.setattr(SlabLane, "read", lambda self, *given: (lanes.append(self), read(self, *given))[1])
    open_files = len(os.listdir("/proc/self/fd"))
    count = host.store.prefetch([key_of(number) for number in range(CHAIN)])
    assert count == (CHAIN + 1) // 4 == len(lanes) and len(set(map(id, lanes))) == 1
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert load(host, range(count)) == count


def test_what_lies_in_dram_tells_nothing_of_the_disk(
    host: Host, in_lane: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(host.desk.ways, "note", lambda lane, size_bytes, took_s: noted.append(size_bytes))
    for number in range(2, CHAIN):
        host.store.lift(key_of(number), LAYOUT)
    below = sum(not host.arena.contains(key_of(number)) for number in range(CHAIN))
    assert 0 < below < CHAIN // 2 and not host.arena.contains(key_of(0))
    assert load(host, range(CHAIN)) == CHAIN
    assert noted == [below * SIZE]
