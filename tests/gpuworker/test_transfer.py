"""Transfers against a kvstore over real grpc.aio: a scripted one that is slow, wrong or dies, and the real one."""

from __future__ import annotations

import asyncio
import contextlib
import time

import grpc.aio
import pytest
import torch
import xxhash
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc
from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import LoadOrder, LoadSource, OffloadOrder, TransferDone
from octavo_gpuworker.transfer import Transfers
from octavo_gpuworker.transfer_wire import sources_of

LAYOUT = b"l" * 32
KEYS = [b"%032d" % i for i in range(6)]


class ScriptedStore(kvstore_pb2_grpc.KvStoreServiceServicer):
    """Holds what was put; `mode` says how its Get misbehaves after `after` blocks."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.mode, self.after = "", 0
        self.unpinned: list[int] = []
        self.puts: list[pb.PutRequest] = []
        self.pins: list[pb.PinRequest] = []
        self.gets: list[pb.GetRequest] = []
        self.hanging = asyncio.Event()
        self.refuse = 0
        self.flip = 0

    async def GetStats(self, request, context):
        return pb.GetStatsResponse(store_id="host7")

    async def AttachArena(self, request, context):
        return pb.AttachArenaResponse()

    async def Pin(self, request, context):
        self.pins.append(request)
        if self.mode == "pin hangs":
            self.hanging.set()
            await asyncio.sleep(60)
        keys = [request.keys[i : i + 32] for i in range(0, len(request.keys), 32)]
        held = next((i for i, key in enumerate(keys) if key not in self.held), len(keys))
        return pb.PinResponse(lease=5 if held else 0, held=held)

    async def Unpin(self, request, context):
        self.unpinned.append(request.lease)
        return pb.UnpinResponse()

    async def Get(self, request, context):
        self.gets.append(request)
        keys = [request.keys[i : i + 32] for i in range(0, len(request.keys), 32)]
        for at, key in enumerate(keys):
            payload = self.held[key]
            checksum = xxhash.xxh3_64_intdigest(payload)
            if at == self.after:
                if self.mode == "hangs":
                    self.hanging.set()
                    await asyncio.sleep(60)
                elif self.mode == "aborts":
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "dead")
                elif self.mode == "bad checksum":
                    checksum ^= 1
                elif self.mode == "flipped bit":
                    payload = payload[: self.flip] + bytes([payload[self.flip] ^ 4]) + payload[self.flip + 1 :]
                elif self.mode == "short":
                    payload = payload[:-1]
                elif self.mode == "other key":
                    key = KEYS[5]
                elif self.mode == "ends":
                    return
            yield pb.GetResponse(key=key, payload=payload, checksum=checksum, tier="dram")
        if self.mode == "too many":
            yield pb.GetResponse(key=KEYS[0], payload=self.held[KEYS[0]], checksum=0, tier="dram")

    async def Put(self, request_iterator, context):
        stored = 0
        async for request in request_iterator:
            assert request.layout == LAYOUT
            self.puts.append(request)
            assert xxhash.xxh3_64_intdigest(request.payload) == request.checksum
            self.held[request.key] = request.payload
            stored += 1
        return pb.PutResponse(stored=stored - self.refuse, refused=self.refuse)


class Bench:
    """A pool, the transfers under test, and what they posted."""

    def __init__(self, pool: KvPool, transfers_at: str) -> None:
        self.pool = pool
        self.posted: list[LoadedBlock | TransferDone] = []
        self.ended: asyncio.Queue[TransferDone] = asyncio.Queue()
        self.transfers = Transfers(transfers_at, pool, LAYOUT, self.post)

    def post(self, items) -> None:
        for item in items:
            self.posted.append(item)
            if isinstance(item, TransferDone):
                self.ended.put_nowait(item)
            else:
                self.pool.write_block(item.block, item.payload)

    async def run(self, order) -> TransferDone:
        self.transfers.start(order)
        return await asyncio.wait_for(self.ended.get(), 10)


@contextlib.asynccontextmanager
async def serving(servicer):
    server = grpc.aio.server()
    kvstore_pb2_grpc.add_KvStoreServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", server
    finally:
        await server.stop(None)


@pytest.fixture
def pool(decoder) -> KvPool:
    pool = KvPool(decoder.config, 20, 4, torch.float32)
    pool.tensor.copy_(torch.randn(pool.tensor.shape, generator=torch.Generator().manual_seed(0)))
    return pool


@pytest.fixture
async def store():
    return ScriptedStore()


@pytest.fixture
async def bench(pool, store):
    async with serving(store) as (address, _):
        bench = Bench(pool, address)
        yield bench
        await bench.transfers.close()


async def test_what_was_offloaded_comes_back_byte_for_byte(bench, store, pool) -> None:
    wanted = [pool.read_block(block) for block in (1, 2, 3)]
    done = await bench.run(OffloadOrder(1, [1, 2, 3], KEYS[:3]))
    assert (done.xfer_id, done.ok_blocks, done.bytes) == (1, 3, 3 * pool.block_bytes)
    assert [store.held[key] for key in KEYS[:3]] == wanted
    done = await bench.run(LoadOrder(2, KEYS[:3], [11, 12, 13], 1_000_000))
    assert (done.xfer_id, done.ok_blocks, done.bytes) == (2, 3, 3 * pool.block_bytes)
    assert [pool.read_block(block) for block in (11, 12, 13)] == wanted
    assert done.lookup_us > 0 and done.transfer_us > 0
    await asyncio.sleep(0.05)
    assert store.unpinned == [5] and not bench.transfers._tasks


async def test_the_store_is_told_what_the_bytes_are(bench, store, pool) -> None:
    await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))
    shape, (layers, halves, heads, width) = store.puts[0].shape, (*pool.tensor.shape[1:4], pool.tensor.shape[5])
    assert (shape.layers, shape.halves, shape.heads, shape.tokens, shape.width) == (layers, halves, heads, 4, width)
    assert shape.dtype == "float32" and not store.puts[0].exact
    assert layers * halves * heads * 4 * width * 4 == pool.block_bytes


async def test_an_exact_worker_says_so_each_time(pool, store) -> None:
    async with serving(store) as (address, _):
        bench = Bench(pool, address)
        bench.transfers._exact = True
        await bench.run(OffloadOrder(1, [1], KEYS[:1]))
        await bench.run(LoadOrder(2, KEYS[:1], [11], 0))
        assert store.puts[0].exact and store.pins[0].exact and store.gets[0].exact
        await bench.transfers.close()


async def test_sources_go_on_to_the_store_relative_to_what_is_asked(bench, store) -> None:
    await bench.run(OffloadOrder(1, [1, 2, 3], KEYS[:3]))
    await bench.run(LoadOrder(2, KEYS[:3], [11, 12, 13], 0, (LoadSource("far", 1, 2),)))
    assert [[(s.store_id, s.first, s.count) for s in asked.sources] for asked in (store.pins[0], store.gets[0])] == [
        [("far", 1, 2)]
    ] * 2
    order = LoadOrder(3, KEYS, [], 0, (LoadSource("far", 1, 4), LoadSource("gone", 0, 2)))
    assert [(s.store_id, s.first, s.count) for s in sources_of(order, 2)] == [("far", 0, 3)]


async def test_a_load_takes_the_leading_run_that_is_held(bench, store) -> None:
    await bench.run(OffloadOrder(1, [1, 2, 3], [KEYS[0], KEYS[1], KEYS[3]]))
    done = await bench.run(LoadOrder(2, KEYS[:4], [11, 12, 13, 14], 0))
    assert done.ok_blocks == 2
    done = await bench.run(LoadOrder(3, KEYS[4:], [11, 12], 0))
    assert done.ok_blocks == 0 and done.bytes == 0


@pytest.mark.parametrize("mode", ["aborts", "bad checksum", "short", "other key", "ends"])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_store_that_fails_or_lies_costs_the_rest_only(bench, store, pool, mode, after) -> None:
    await bench.run(OffloadOrder(1, [1, 2, 3, 4], KEYS[:4]))
    untouched = [pool.read_block(block) for block in (11, 12, 13, 14)]
    store.mode, store.after = mode, after
    done = await bench.run(LoadOrder(2, KEYS[:4], [11, 12, 13, 14], 0))
    assert done.ok_blocks == after
    for at, block in enumerate((11, 12, 13, 14)):
        assert pool.read_block(block) == (pool.read_block(1 + at) if at < after else untouched[at])


async def test_a_store_that_sends_too_much_is_cut_off(bench, store) -> None:
    await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))
    store.mode, store.after = "too many", 9
    done = await bench.run(LoadOrder(2, KEYS[:2], [11, 12], 0))
    assert done.ok_blocks == 2


async def test_more_keys_than_blocks_still_ends(bench, store) -> None:
    await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))
    done = await bench.run(LoadOrder(2, KEYS[:2], [11], 0))
    assert done.ok_blocks == 1
    assert (await bench.run(OffloadOrder(3, [1, 2], KEYS[:1]))).ok_blocks == 0


@pytest.mark.parametrize(("mode", "ok"), [("hangs", 2), ("pin hangs", 0)])
async def test_a_load_ends_within_its_limit(bench, store, mode, ok) -> None:
    await bench.run(OffloadOrder(1, [1, 2, 3, 4], KEYS[:4]))
    store.mode, store.after = mode, 2
    began = time.monotonic()
    done = await bench.run(LoadOrder(2, KEYS[:4], [11, 12, 13, 14], 150_000))
    assert done.ok_blocks == ok
    assert 0.14 < time.monotonic() - began < 5, "limit_us, not the default of a second or the server's minute"


async def test_an_aborted_load_ends_at_once_with_what_has_come(bench, store, pool) -> None:
    await bench.run(OffloadOrder(1, [1, 2, 3, 4], KEYS[:4]))
    store.mode, store.after = "hangs", 2
    bench.transfers.start(LoadOrder(2, KEYS[:4], [11, 12, 13, 14], 60_000_000))
    await asyncio.wait_for(store.hanging.wait(), 10)
    while sum(isinstance(item, LoadedBlock) for item in bench.posted) < 2:
        await asyncio.sleep(0.01)
    bench.transfers.abort(2)
    bench.transfers.abort(2)
    done = await asyncio.wait_for(bench.ended.get(), 10)
    assert (done.xfer_id, done.ok_blocks) == (2, 2)
    assert [pool.read_block(block) for block in (11, 12)] == [pool.read_block(block) for block in (1, 2)]
    for _ in range(100):
        if store.unpinned and not bench.transfers._tasks:
            break
        await asyncio.sleep(0.02)
    assert store.unpinned == [5] and not bench.transfers._running, "its lease is given back, and it is told once"
    assert bench.ended.empty()
    bench.transfers.abort(2)
    bench.transfers.abort(77)
    store.mode = ""
    assert (await bench.run(LoadOrder(3, KEYS[:4], [11, 12, 13, 14], 0))).ok_blocks == 4


async def test_an_offload_that_was_begun_ahead_of_the_step_thread_runs_once(bench, store) -> None:
    order = OffloadOrder(1, [1, 2], KEYS[:2])
    bench.transfers.begin(order)
    assert (await asyncio.wait_for(bench.ended.get(), 10)).ok_blocks == 2
    bench.transfers.start(order)
    await asyncio.sleep(0.05)
    assert bench.ended.empty() and len(store.puts) == 2 and not bench.transfers._begun
    assert (await bench.run(OffloadOrder(2, [3], KEYS[2:3]))).ok_blocks == 1


async def test_an_epoch_that_ends_during_an_abort_is_not_told_of_it(bench, store) -> None:
    await bench.run(OffloadOrder(1, [1, 2, 3, 4], KEYS[:4]))
    store.mode, store.after = "hangs", 2
    bench.transfers.start(LoadOrder(2, KEYS[:4], [11, 12, 13, 14], 60_000_000))
    await asyncio.wait_for(store.hanging.wait(), 10)
    copying = asyncio.get_running_loop().create_future()
    bench.transfers._copying.add(copying)  # a thread that is at its blocks
    bench.transfers.abort(2)
    await asyncio.sleep(0.05)
    assert bench.ended.empty(), "not before no thread touches them"
    asyncio.get_running_loop().call_later(0.05, copying.set_result, None)
    await bench.transfers.quiesce()
    bench.transfers._copying.discard(copying)
    assert bench.ended.empty() and not bench.transfers._tasks


async def test_a_refused_block_is_not_claimed(bench, store) -> None:
    store.refuse = 1
    done = await bench.run(OffloadOrder(1, [1, 2, 3], KEYS[:3]))
    assert done.ok_blocks == 0


async def test_a_store_killed_during_a_load(pool, store) -> None:
    async with serving(store) as (address, server):
        bench = Bench(pool, address)
        await bench.run(OffloadOrder(1, [1, 2, 3], KEYS[:3]))
        store.mode, store.after = "hangs", 1
        bench.transfers.start(LoadOrder(2, KEYS[:3], [11, 12, 13], 5_000_000))
        await store.hanging.wait()
        await server.stop(None)
        done = await asyncio.wait_for(bench.ended.get(), 5)
        assert done.ok_blocks == 1
        # and what comes later ends at once
        began = time.monotonic()
        assert (await bench.run(LoadOrder(3, KEYS[:3], [11, 12, 13], 5_000_000))).ok_blocks == 0
        assert (await bench.run(OffloadOrder(4, [1], KEYS[:1]))).ok_blocks == 0
        assert time.monotonic() - began < 4
        await bench.transfers.close()


async def test_no_store_at_all(pool) -> None:
    bench = Bench(pool, "")
    assert (await bench.run(LoadOrder(1, KEYS[:1], [11], 0))).ok_blocks == 0
    assert (await bench.run(OffloadOrder(2, [1], KEYS[:1]))).ok_blocks == 0
    assert await bench.transfers.store_id() == ""
    await bench.transfers.close()


async def test_a_bug_in_a_transfer_still_ends_it(bench, pool, monkeypatch) -> None:
    monkeypatch.setattr(Transfers, "_load", lambda self, order, progress: 1 / 0)
    done = await bench.run(LoadOrder(1, KEYS[:1], [11], 0))
    assert done.ok_blocks == 0


async def test_quiesce_ends_copies_and_tells_nothing(bench, store) -> None:
    """Transfer ids restart in a new scheduler: an end of the old epoch must not reach the new one."""
    await bench.run(OffloadOrder(1, [1, 2, 3], KEYS[:3]))
    store.mode, store.after = "hangs", 1
    bench.transfers.start(LoadOrder(1, KEYS[:3], [11, 12, 13], 30_000_000))
    await store.hanging.wait()
    bench.posted.clear()
    await bench.transfers.quiesce()
    assert not bench.transfers._tasks
    store.mode = ""
    done = await bench.run(LoadOrder(1, KEYS[:3], [11, 12, 13], 0))
    assert done.ok_blocks == 3
    assert [item.xfer_id for item in bench.posted if isinstance(item, TransferDone)] == [1]


async def test_store_id(bench) -> None:
    assert await bench.transfers.store_id() == "host7"


async def test_against_the_real_store(pool, tmp_path) -> None:
    from octavo_kvstore.pins import PinTable
    from octavo_kvstore.service import KvStoreServicer
    from octavo_kvstore.store import Store
    from octavo_kvstore.tiers.heap import HeapTier

    servicer = KvStoreServicer(Store(HeapTier(2**24), None, PinTable()), "host0", "boot")
    async with serving(servicer) as (address, _):
        bench = Bench(pool, address)
        wanted = [pool.read_block(block) for block in (1, 2)]
        assert (await bench.run(OffloadOrder(1, [1, 2], KEYS[:2]))).ok_blocks == 2
        assert (await bench.run(OffloadOrder(2, [1, 2], KEYS[:2]))).ok_blocks == 2, "known blocks are whole as well"
        assert (await bench.run(LoadOrder(3, KEYS[:3], [11, 12, 13], 0))).ok_blocks == 2
        assert [pool.read_block(block) for block in (11, 12)] == wanted
        await bench.transfers.close()
    servicer.close()
