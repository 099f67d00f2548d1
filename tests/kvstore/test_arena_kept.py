"""Slots that are kept until their block is written further down: nobody fills them meanwhile, and none is lost."""

from __future__ import annotations

import fcntl
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from octavo.arena import ArenaMap
from octavo_kvstore.arena_desk import ArenaDesk
from octavo_kvstore.arena_file import ArenaFolder
from octavo_kvstore.block import Block
from octavo_kvstore.pins import PinTable
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, is_right, key_of, make_block
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers.arena import KEPT_SHARE, ArenaTier, SlotRef
from octavo_kvstore.tiers.slab import SlabTier

SIZE, SLOTS = 8192, 16


class GatedSlab(SlabTier):
    """Writes only while the gate is open."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 8 * 2**20)
        self.gate = threading.Event()
        self.views = 0

    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        assert self.gate.wait(10)
        self.views += sum(isinstance(block.payload, memoryview) for block in blocks)
        return super().put_many(blocks)


class Host:
    def __init__(self, folder: Path) -> None:
        (folder / "shm").mkdir()
        self.folder = ArenaFolder(folder / "shm", SIZE * SLOTS)
        pins = PinTable()
        self.arena = ArenaTier(self.folder, SIZE * SLOTS, pins.is_pinned)
        self.nvme = GatedSlab(folder / "nvme")
        self.store = Store(self.arena, self.nvme, pins)
        self.desk = ArenaDesk(self.store, self.arena, self.folder)
        self.fds: list[int] = []
        self.client, self.map = self.attach(SIZE)

    def attach(self, size: int) -> tuple[int, ArenaMap]:
        name = f"octavo-lease-{uuid.uuid4().hex}"
        self.fds.append(os.open(self.folder.path / name, os.O_RDWR | os.O_CREAT))
        fcntl.flock(self.fds[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        given = self.desk.attach(size, name)
        assert given is not None
        return given.client, ArenaMap(given.file.path, given.file.slots, given.file.slot_bytes)

    def put(self, number: int) -> tuple[Put, int]:
        block = make_block(number, SIZE)
        refs = self.desk.reserve(self.client, [block.key], LAYOUT, SIZE, b"")
        if not refs:
            return Put.REFUSED, -1
        self.map.slot(refs[0].slot)[:SIZE] = block.payload
        ref = SlotRef(refs[0].slot, refs[0].generation, SIZE, block.checksum)
        return self.desk.commit(self.client, ref, Block(block.key, b"", LAYOUT, block.checksum, b"")), ref.slot


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.nvme.gate.set()
    host.store.close()
    for fd in host.fds:
        os.close(fd)


def test_a_kept_slot_is_filled_by_nobody_until_it_is_written(host: Host) -> None:
    kept = [host.put(number)[1] for number in range(SLOTS // KEPT_SHARE)]
    used = [host.put(number) for number in range(100, 100 + 3 * SLOTS)]
    assert all(outcome is Put.STORED for outcome, _ in used) and not {slot for _, slot in used} & set(kept)
    assert not any(host.arena.contains(key_of(number)) for number in range(4)), "evicted, and read from the queue"
    found = host.store.get(key_of(0), LAYOUT)
    assert found is not None and is_right(found.block) and host.arena.audit() == []
    assert host.arena.slot_counts()["arena_lent"] == 0, "no worker has any"
    host.nvme.gate.set()
    assert host.store.flush(10) and host.nvme.views == len(kept), "the others were copied: too many slots kept"
    assert host.arena.audit() == [] and not host.arena._kept and not host.arena._lent
    assert all(is_right(block) for number in range(4) if (block := host.nvme.get(key_of(number), LAYOUT)))
    assert sum(host.put(number)[1] in kept for number in range(200, 200 + SLOTS)) > 0, "free again"


def test_a_deleted_block_gives_its_kept_slot_back(host: Host) -> None:
    for number in range(3):
        assert host.put(number)[0] is Put.STORED
    waiter = threading.Timer(0.05, host.nvme.gate.set)
    waiter.start()
    assert all(host.store.delete(key_of(number)) for number in range(3))
    waiter.join()
    assert host.store.flush(10) and host.arena.audit() == [] and not host.arena._kept
    assert not any(host.store.contains(key_of(number), LAYOUT) for number in range(3))


def test_what_a_worker_writes_after_its_commit_is_never_served(host: Host) -> None:
    _, slot = host.put(0)
    host.map.slot(slot)[:8] = b"scribble"
    host.nvme.gate.set()
    assert host.store.flush(10)
    assert host.store.get(key_of(0), LAYOUT) is None and host.nvme.stats().corrupt == 1


def test_another_block_size_may_come_while_slots_are_kept(host: Host) -> None:
    assert host.put(0)[0] is Put.STORED
    os.close(host.fds.pop())  # the worker leaves
    host.desk.reap()
    host.client, host.map = host.attach(2 * SIZE)
    host.nvme.gate.set()
    assert host.store.flush(10) and host.arena.audit() == []
    found = host.nvme.get(key_of(0), LAYOUT)
    assert found is not None and is_right(found)
