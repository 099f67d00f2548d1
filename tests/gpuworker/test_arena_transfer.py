"""Transfers through the arena of a real store: the same bytes, whatever dies or lies, and payload in messages when there is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import pytest
import torch
from octavo.v1 import kvstore_pb2 as pb
from octavo_gpuworker import transfer
from octavo_gpuworker.arena_link import CopiedOut
from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import LoadOrder, OffloadOrder
from octavo_gpuworker.transfer_wire import offload_entries
from octavo_kvstore.arena_desk import ArenaDesk
from octavo_kvstore.arena_file import ArenaFolder
from octavo_kvstore.arena_link import grouped
from octavo_kvstore.pins import PinTable
from octavo_kvstore.service import KvStoreServicer
from octavo_kvstore.store import Store
from octavo_kvstore.tiers.arena import ArenaTier
from octavo_kvstore.tiers.slab import SlabTier

from tests.gpuworker.test_transfer import KEYS, LAYOUT, Bench, serving

TAG = b"n" * 16


class Host:
    """A kvstore with an arena, and the bytes that went through messages."""

    def __init__(self, folder: Path, blocks: int, block_bytes: int) -> None:
        self.folder = folder
        slot_bytes = -(-block_bytes // 4096) * 4096
        pins = PinTable()
        arenas = folder / "shm"
        arenas.mkdir(exist_ok=True)
        place = ArenaFolder(arenas, blocks * slot_bytes)
        self.arena = ArenaTier(place, blocks * slot_bytes, pins.is_pinned)
        self.nvme = SlabTier(folder / "nvme", 4 * 2**20, pins.is_pinned)
        self.store = Store(self.arena, self.nvme, pins)
        self.desk = ArenaDesk(self.store, self.arena, place)
        self.servicer = Counting(self.store, "host0", "boot", self.desk)

    def close(self) -> None:
        self.servicer.close()
        self.store.close()


class Counting(KvStoreServicer):
    """Counts the payload bytes that travel in messages."""

    in_messages = 0

    async def Get(self, request, context):
        async for response in super().Get(request, context):
            self.in_messages += len(response.payload)
            yield response

    async def Put(self, request_iterator, context):
        async def counted():
            async for request in request_iterator:
                self.in_messages += len(request.payload)
                yield request

        return await super().Put(counted(), context)


@pytest.fixture
def pool(decoder) -> KvPool:
    pool = KvPool(decoder.config, 20, 4, torch.float32)
    pool.tensor.copy_(torch.randn(pool.tensor.shape, generator=torch.Generator().manual_seed(0)))
    return pool


@contextlib.asynccontextmanager
async def hosted(pool, folder: Path, blocks: int = 8, host: Host | None = None):
    host = host or Host(folder, blocks, pool.block_bytes)
    async with serving(host.servicer) as (address, server):
        bench = Bench(pool, address)
        try:
            yield host, bench, server
        finally:
            await bench.transfers.close()
    host.close()


async def settled(host: Host) -> None:
    """Nothing is reserved or lent any more, and every slot is in one state."""
    async with asyncio.timeout(5):
        while any(host.arena.slot_counts()[name] for name in ("arena_reserved", "arena_lent")):
            await asyncio.sleep(0.01)
    assert host.arena.audit() == []


async def test_bytes_come_back_and_none_travelled_in_a_message(pool, tmp_path) -> None:
    async with hosted(pool, tmp_path) as (host, bench, _):
        wanted = [pool.read_block(block) for block in (1, 2, 3)]
        done = await bench.run(OffloadOrder(1, [1, 2, 3], KEYS[:3], [bytes(32), *KEYS[:2]], [TAG] * 3))
        assert (done.ok_blocks, done.bytes) == (3, 3 * pool.block_bytes)
        done = await bench.run(LoadOrder(2, KEYS[:3], [11, 12, 13], 1_000_000))
        assert (done.ok_blocks, done.bytes, done.tier) == (3, 3 * pool.block_bytes, "dram")
        assert [pool.read_block(block) for block in (11, 12, 13)] == wanted
        assert host.servicer.in_messages == 0
        assert not any(isinstance(item, LoadedBlock) for item in bench.posted), "copied straight into the pool"
        assert len(host.arena.of_namespace(TAG)) == 3 and host.arena.parent_of(KEYS[1]) == KEYS[0]
        assert (await bench.run(OffloadOrder(3, [1, 2, 3, 4], KEYS[:4]))).ok_blocks == 4, "known ones count as whole"
        await settled(host)


async def test_what_lies_below_is_read_into_slots_as_it_is_asked_for(pool, tmp_path) -> None:
    async with hosted(pool, tmp_path, blocks=3) as (host, bench, _):
        wanted = [pool.read_block(block) for block in range(1, 7)]
        for at, key in enumerate(KEYS):
            assert (await bench.run(OffloadOrder(at + 1, [at + 1], [key]))).ok_blocks == 1
        assert await asyncio.to_thread(host.store.flush, 10)
        assert host.store.where(KEYS[0], LAYOUT) == "nvme"
        done = await bench.run(LoadOrder(10, KEYS[:2], [11, 12], 5_000_000))
        assert (done.ok_blocks, done.tier) == (2, "nvme") and host.servicer.in_messages == 0
        done = await bench.run(LoadOrder(11, KEYS, [11, 12, 13, 14, 15, 16], 5_000_000))
        assert done.ok_blocks == 6, "more than the arena has slots: the rest travels in messages"
        assert [pool.read_block(block) for block in range(11, 17)] == wanted
        await settled(host)


async def test_a_device_pool_gets_its_blocks_at_a_boundary(pool, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(KvPool, "host_array", lambda self, block: None)
    async with hosted(pool, tmp_path) as (host, bench, _):
        wanted = [pool.read_block(block) for block in (1, 2)]
        assert (await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))).ok_blocks == 2
        assert (await bench.run(LoadOrder(2, KEYS[:2], [11, 12], 0))).ok_blocks == 2
        assert sum(isinstance(item, LoadedBlock) for item in bench.posted) == 2
        assert [pool.read_block(block) for block in (11, 12)] == wanted and host.servicer.in_messages == 0


async def test_a_flipped_bit_in_a_slot_costs_that_copy_and_is_found(pool, tmp_path) -> None:
    async with hosted(pool, tmp_path) as (host, bench, _):
        wanted = [pool.read_block(block) for block in (1, 2, 3)]
        await bench.run(OffloadOrder(1, [1, 2, 3], KEYS[:3]))
        assert await asyncio.to_thread(host.store.flush, 10)
        entry = host.arena._index.raw(KEYS[1])
        host.arena._file.map.slot(entry.place)[7] ^= 4
        done = await bench.run(LoadOrder(2, KEYS[:3], [11, 12, 13], 0))
        assert done.ok_blocks == 3, "the sound copy below DRAM is taken instead"
        assert [pool.read_block(block) for block in (11, 12, 13)] == wanted
        assert host.arena.stats().corrupt == 1
        await settled(host)


async def test_a_restarted_store_is_attached_to_anew(pool, tmp_path) -> None:
    host = Host(tmp_path, 8, pool.block_bytes)
    async with hosted(pool, tmp_path, host=host) as (host, bench, _):
        await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))
        host.desk._clients.clear()  # as a new process knows none of them
        assert (await bench.run(LoadOrder(2, KEYS[:2], [11, 12], 0))).ok_blocks == 2
        assert host.servicer.in_messages == 0 and len(host.desk._clients) == 1
        host.desk._clients.clear()
        assert (await bench.run(OffloadOrder(3, [3], KEYS[2:3]))).ok_blocks == 1


async def test_without_an_arena_payload_travels_in_messages(pool, tmp_path) -> None:
    host = Host(tmp_path, 8, pool.block_bytes)
    host.servicer._desk = None
    async with hosted(pool, tmp_path, host=host) as (host, bench, _):
        assert (await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))).ok_blocks == 2
        assert (await bench.run(LoadOrder(2, KEYS[:2], [11, 12], 0))).ok_blocks == 2
        assert host.servicer.in_messages == 4 * pool.block_bytes


async def test_a_folder_that_the_worker_does_not_see_means_messages(pool, tmp_path, monkeypatch) -> None:
    """Another host, or a container without the volume."""
    real_open = os.open

    def not_here(path, *given, **more):
        if "octavo-lease" in str(path):
            raise FileNotFoundError(2, "No such file or directory")
        return real_open(path, *given, **more)

    async with hosted(pool, tmp_path) as (host, bench, _):
        monkeypatch.setattr(os, "open", not_here)
        assert (await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))).ok_blocks == 2
        assert (await bench.run(LoadOrder(2, KEYS[:2], [11, 12], 0))).ok_blocks == 2
        assert host.servicer.in_messages == 4 * pool.block_bytes


async def test_slots_come_back_when_a_transfer_is_cancelled_or_the_worker_goes(pool, tmp_path) -> None:
    async with hosted(pool, tmp_path) as (host, bench, _):
        await bench.run(OffloadOrder(1, [1, 2, 3], KEYS[:3]))
        for number in range(2, 12):
            bench.transfers.start(LoadOrder(number, KEYS[:3], [11, 12, 13], 1_000_000))
            bench.transfers.start(OffloadOrder(100 + number, [4, 5], KEYS[3:5]))
            await asyncio.sleep(0.0005 * number)
            await bench.transfers.quiesce()
        await settled(host)  # without a death: what was reserved is handed back
        await bench.transfers.close()
        host.desk.reap()
        assert host.arena.audit() == []
        assert host.arena.slot_counts()["arena_reserved"] == host.arena.slot_counts()["arena_lent"] == 0


async def test_a_store_killed_during_a_load_ends_it(pool, tmp_path) -> None:
    async with hosted(pool, tmp_path) as (_, bench, server):
        await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))
        await server.stop(None)
        began = time.monotonic()
        assert (await bench.run(LoadOrder(2, KEYS[:2], [11, 12], 500_000))).ok_blocks == 0
        assert (await bench.run(OffloadOrder(3, [1], KEYS[:1]))).ok_blocks == 0
        assert time.monotonic() - began < 5


async def test_get_without_a_lease_sends_payload(pool, tmp_path) -> None:
    async with hosted(pool, tmp_path) as (_, bench, _server):
        await bench.run(OffloadOrder(1, [1], KEYS[:1]))
        client = bench.transfers._arena.client
        call = bench.transfers._store.Get(pb.GetRequest(keys=KEYS[0], layout=LAYOUT, arena_client=client))
        assert [len(item.payload) async for item in call] == [pool.block_bytes]


async def test_blocks_that_one_thread_read_come_in_one_message_to_those_that_take_groups(pool, tmp_path) -> None:
    async with hosted(pool, tmp_path) as (host, bench, _):
        await bench.run(OffloadOrder(1, [1, 2, 3, 4, 5, 6], KEYS))
        store, client, keys = bench.transfers._store, bench.transfers._arena.client, b"".join(KEYS)
        for groups, sizes in ((True, [2, 2, 2]), (False, [1] * 6)):
            lease = await store.Pin(pb.PinRequest(keys=keys, layout=LAYOUT, limit_us=1_000_000, arena_client=client))
            request = pb.GetRequest(keys=keys, layout=LAYOUT, lease=lease.lease, arena_client=client, groups=groups)
            messages = [message async for message in store.Get(request)]
            assert [1 + len(message.also) for message in messages] == sizes
            told = [item for message in messages for item in (message, *message.also)]
            assert [item.key for item in told] == KEYS and all(item.HasField("slot") for item in told)
            await store.Unpin(pb.UnpinRequest(lease=lease.lease))
        await settled(host)


def test_payload_is_never_grouped() -> None:
    named, sent = {"slot": pb.SlotRef(slot=1)}, {"payload": b"x"}
    messages = grouped([pb.GetResponse(**given) for given in (named, named, sent, named, sent, sent)])
    assert [(len(message.also), bool(message.payload)) for message in messages] == [
        (1, False),
        (0, True),
        (0, False),
        (0, True),
        (0, True),
    ]


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        offload_entries(OffloadOrder(1, [1, 2], KEYS[:2], namespaces=[TAG]))


async def test_a_lease_is_given_back_to_a_store_that_stood_still(pool, tmp_path, monkeypatch) -> None:
    """No timer ends the lease of a worker that lives, so the worker asks until it is answered."""
    monkeypatch.setattr(transfer, "UNPIN_LIMIT_S", 0.05)
    async with hosted(pool, tmp_path) as (host, bench, _):
        await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))
        tries: list[int] = []
        unpin, end_lease = host.store.unpin, host.desk.end_lease

        def stands_still_twice(lease: int) -> None:
            tries.append(lease)
            if len(tries) < 3:
                time.sleep(0.2)  # the whole process, as SIGSTOP does; what it was asked meanwhile is lost
                return
            unpin(lease)
            end_lease(lease)

        monkeypatch.setattr(host.store, "unpin", stands_still_twice)
        monkeypatch.setattr(host.desk, "end_lease", lambda lease: None)
        assert (await bench.run(LoadOrder(2, KEYS[:2], [11, 12], 0))).ok_blocks == 2
        await settled(host)
        assert len(set(tries)) == 1 and len(tries) > 2 and host.store.counters()["leases"] == 0


async def test_an_arena_that_is_forgotten_under_a_copy_fails_nothing(pool, tmp_path) -> None:
    """`forget` comes on the loop, while a copy runs in its thread."""
    async with hosted(pool, tmp_path) as (_, bench, _):
        await bench.run(OffloadOrder(1, [1], KEYS[:1], [bytes(32)], [TAG]))
        link = bench.transfers._arena
        assert link.client and link._slots is not None

        class Leaving:
            size = pool.block_bytes

            def __bool__(self) -> bool:
                link.forget()
                return True

        link._slots = Leaving()
        link._copy_rows = lambda to, to_at, source, source_at, size: [source.size][:0]
        assert link.copy_out([], []) == CopiedOut(0, [])
