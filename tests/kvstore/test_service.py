"""KvStoreService over a live gRPC server, with blocks of the default model's size (368,640 bytes)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest
from octavo.packing import pack_keys
from octavo.rpc.channels import open_channel
from octavo.rpc.host import SERVER_OPTIONS
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc
from octavo_kvstore.block import Block
from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.codecs.shapes import ShapeTable, Told
from octavo_kvstore.pins import PinTable
from octavo_kvstore.service import MAX_PAYLOAD_BYTES, KvStoreServicer
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, OTHER_LAYOUT, key_of, make_block
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.slab import SlabTier

BLOCK_BYTES = 368_640


class Live:
    """A served store with a client."""

    def __init__(self, store: Store, stub: kvstore_pb2_grpc.KvStoreServiceStub) -> None:
        self.store, self.stub = store, stub

    async def put(self, blocks: Iterable[Block]) -> pb.PutResponse:
        async def requests() -> AsyncIterator[pb.PutRequest]:
            for block in blocks:
                yield put_request(block)

        response = await self.stub.Put(requests())
        await asyncio.to_thread(self.store.flush, 10)
        return response

    async def get(self, numbers: Iterable[int], layout: bytes = LAYOUT, lease: int = 0) -> list[pb.GetResponse]:
        keys = pack_keys([key_of(number) for number in numbers])
        return [item async for item in self.stub.Get(pb.GetRequest(keys=keys, layout=layout, lease=lease))]


def put_request(block: Block) -> pb.PutRequest:
    return pb.PutRequest(
        key=block.key, parent=block.parent, payload=block.payload, checksum=block.checksum, layout=block.layout
    )


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    pins = PinTable()
    nvme = await asyncio.to_thread(SlabTier, tmp_path, 64 * 2**20, pins.is_pinned)
    store = Store(HeapTier(10 * (BLOCK_BYTES + 1024), pins.is_pinned), nvme, pins)
    servicer = KvStoreServicer(store, "store-1", "boot-1")
    server = grpc.aio.server(options=SERVER_OPTIONS)
    kvstore_pb2_grpc.add_KvStoreServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield Live(store, kvstore_pb2_grpc.KvStoreServiceStub(channel))
    await server.stop(None)
    await asyncio.to_thread(servicer.close)
    await asyncio.to_thread(store.close)


async def test_blocks_of_the_default_model_travel_both_ways(live: Live) -> None:
    # three chains of eight: one fits into DRAM
    blocks = [make_block(number, BLOCK_BYTES, parent=number - 1 if number % 8 else None) for number in range(24)]
    response = await live.put(blocks)
    assert (response.stored, response.known, response.refused) == (24, 0, 0)
    got = await live.get([*range(16, 24), *range(16)])
    got = got[8:] + got[:8]
    assert [(item.key, item.payload, item.checksum) for item in got] == [
        (block.key, block.payload, block.checksum) for block in blocks
    ]
    assert {item.tier for item in got} == {"dram", "nvme"}
    assert len(await live.get(range(8))) == 8
    assert "dram" in {item.tier for item in await live.get(range(8))}, "lifted by the get before"
    again = await live.put(blocks)
    assert (again.stored, again.known) == (0, 24)


async def test_a_get_ends_at_the_first_miss(live: Live) -> None:
    await live.put(make_block(number) for number in (0, 1, 3))
    assert [item.key for item in await live.get(range(4))] == [key_of(0), key_of(1)]
    assert await live.get([2, 3]) == []
    assert await live.get([]) == []
    assert await live.get([0], layout=OTHER_LAYOUT) == []


async def test_what_is_not_intact_is_refused(live: Live) -> None:
    response = await live.put([replace(make_block(0), checksum=1), make_block(1)])
    assert (response.stored, response.refused) == (1, 1)
    assert await live.get([0]) == []


async def test_the_largest_block_fits_a_message(live: Live) -> None:
    largest = MAX_PAYLOAD_BYTES - MAX_PAYLOAD_BYTES // 8  # the DRAM tier of this test holds 3.7 MB
    await live.put([make_block(0, largest)])
    got = await live.get([0])
    assert [len(item.payload) for item in got] == [largest]
    biggest = put_request(make_block(1, MAX_PAYLOAD_BYTES))
    assert biggest.ByteSize() < 4 * 2**20


async def test_pins_hold_through_eviction_and_end(live: Live) -> None:
    await live.put(make_block(number, BLOCK_BYTES) for number in range(3))
    keys = pack_keys([key_of(0), key_of(1), key_of(99), key_of(2)])
    pinned = await live.stub.Pin(pb.PinRequest(keys=keys, layout=LAYOUT, limit_us=30_000_000))
    assert pinned.held == 2 and pinned.lease
    await live.put(make_block(number, BLOCK_BYTES) for number in range(100, 300))
    assert len(await live.get([0, 1], lease=pinned.lease)) == 2
    assert await live.get([2]) == []
    await live.stub.Unpin(pb.UnpinRequest(lease=pinned.lease))
    assert (await live.stub.GetStats(pb.GetStatsRequest())).counters["leases"] == 0
    nothing = await live.stub.Pin(pb.PinRequest(keys=key_of(99), layout=LAYOUT))
    assert (nothing.lease, nothing.held) == (0, 0)
    await live.stub.Unpin(pb.UnpinRequest(lease=12345))


async def test_a_chain_without_parents_loses_its_end_first(live: Live) -> None:
    """A worker need not know the parents of what it hands down: order within one call is enough."""
    await live.put(make_block(number, BLOCK_BYTES) for number in range(8))
    for start in range(100, 150, 2):
        await live.put(make_block(number, BLOCK_BYTES) for number in (start, start + 1))
        held = [live.store.contains(key_of(number), LAYOUT) for number in range(8)]
        assert held == sorted(held, reverse=True)
    for start in range(200, 600, 4):
        await live.get(range(4))
        await live.put(make_block(number, BLOCK_BYTES) for number in range(start, start + 4))
    assert [live.store.contains(key_of(number), LAYOUT) for number in range(8)] == [True] * 4 + [False] * 4


async def test_contains_and_delete(live: Live) -> None:
    await live.put([make_block(0), make_block(1)])
    keys = pack_keys([key_of(0), key_of(5), key_of(1)])
    there = await live.stub.Contains(pb.ContainsRequest(keys=keys, layout=LAYOUT))
    assert list(there.tiers) == ["dram", "", "dram"]
    deleted = await live.stub.Delete(pb.DeleteRequest(keys=keys))
    assert deleted.deleted == 2
    assert await live.get([0]) == []


async def test_what_a_worker_says_of_its_layout_is_learnt(tmp_path: Path) -> None:
    shapes = ShapeTable()
    servicer = KvStoreServicer(Store(HeapTier(2**20), None, PinTable()), "s", "b", shapes=shapes)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    kvstore_pb2_grpc.add_KvStoreServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
        shape = pb.PayloadShape(layers=2, halves=2, heads=1, tokens=16, width=8, dtype="bfloat16")
        told, plain = put_request(make_block(1)), put_request(make_block(2))
        told.shape.CopyFrom(shape)
        told.exact = True
        assert (await stub.Put(iter([told, plain]))).stored == 2
        assert shapes.get(LAYOUT) == Told(PayloadShape(2, 2, 1, 16, 8, "bfloat16"), True)
        told.shape.dtype = "float12"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Put(iter([told]))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith("shape.dtype: ")
    await server.stop(None)
    servicer.close()


async def test_stats_count(live: Live) -> None:
    await live.put([make_block(0)])
    await live.get([0, 1])
    stats = await live.stub.GetStats(pb.GetStatsRequest())
    assert (stats.store_id, stats.boot_id) == ("store-1", "boot-1")
    by_name = {tier.name: tier for tier in stats.tiers}
    assert by_name["dram"].keys == by_name["nvme"].keys == 1
    assert by_name["dram"].hits == 1 and by_name["nvme"].misses == 1
    assert stats.counters["write_behind_written"] == 1


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Get", pb.GetRequest(keys=b"short", layout=LAYOUT), "keys"),
        ("Get", pb.GetRequest(keys=key_of(1), layout=b""), "layout"),
        ("Pin", pb.PinRequest(keys=b"x" * 33, layout=LAYOUT), "keys"),
        ("Contains", pb.ContainsRequest(keys=key_of(1), layout=b"x"), "layout"),
        ("Delete", pb.DeleteRequest(keys=b"x"), "keys"),
        ("Put", pb.PutRequest(key=b"x", layout=LAYOUT), "key"),
        ("Put", pb.PutRequest(key=key_of(1), parent=b"x", layout=LAYOUT), "parent"),
        ("Put", pb.PutRequest(key=key_of(1), layout=b"x"), "layout"),
    ],
)
async def test_malformed_fields_are_named(live: Live, method: str, request_: object, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if method == "Put":
            await live.stub.Put(iter([request_]))
        elif method == "Get":
            _ = [item async for item in live.stub.Get(request_)]
        else:
            await getattr(live.stub, method)(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith(f"{field}: ")
    await live.put([make_block(0)])
    assert len(await live.get([0])) == 1, "and the service goes on"


async def test_a_client_that_breaks_its_streams_harms_nobody(live: Live) -> None:
    await live.put(make_block(number, BLOCK_BYTES) for number in range(24))
    keys = pack_keys([key_of(number) for number in range(24)])
    call = live.stub.Get(pb.GetRequest(keys=keys, layout=LAYOUT))
    assert (await call.read()).key == key_of(0)
    call.cancel()
    put = live.stub.Put()
    await put.write(put_request(make_block(50)))
    put.cancel()
    assert len(await live.get(range(24))) == 24


async def test_meta_data_travels_as_durations(live: Live) -> None:
    block = make_block(1)
    meta = pb.BlockMeta(namespace=b"n" * 16, ttl_us=60_000_000, priority=-2, recompute_us=77)
    request = put_request(block)
    request.meta.CopyFrom(meta)
    assert (await live.stub.Put(iter([request]))).stored == 1
    (item,) = await live.get([1])
    assert (item.meta.namespace, item.meta.priority, item.meta.recompute_us) == (b"n" * 16, -2, 77)
    assert 50_000_000 < item.meta.ttl_us <= 61_000_000
    request.meta.namespace = b"short"
    with pytest.raises(grpc.aio.AioRpcError, match="namespace: 5 bytes"):
        await live.stub.Put(iter([request]))


async def test_a_namespace_is_deleted_alone_and_lasting_pins_are_counted(live: Live) -> None:
    for number, tag in ((1, b"a" * 16), (2, b"b" * 16)):
        request = put_request(make_block(number))
        request.meta.namespace = tag
        await live.stub.Put(iter([request]))
    assert (await live.stub.SetPinned(pb.SetPinnedRequest(keys=key_of(1) + key_of(9), pinned=True))).held == 1
    assert (await live.stub.GetStats(pb.GetStatsRequest())).counters["pinned_keys"] == 2
    assert (await live.stub.Delete(pb.DeleteRequest(namespace=b"a" * 16))).deleted == 1
    assert await live.get([1]) == [] and len(await live.get([2])) == 1
    await live.stub.SetPinned(pb.SetPinnedRequest(keys=key_of(1) + key_of(9)))
    assert (await live.stub.GetStats(pb.GetStatsRequest())).counters["pinned_keys"] == 0


async def test_watch_blocks_over_the_wire(live: Live) -> None:
    call = live.stub.WatchBlocks(pb.WatchBlocksRequest())
    first = await call.read()
    assert first.restart and first.whole and not first.changes
    await live.put([make_block(1, parent=0)])
    seen = [change for change in (await call.read()).changes if change.tier == "dram"]
    assert [(change.key, change.parent, change.host) for change in seen] == [(key_of(1), key_of(0), "store-1")]
    call.cancel()


async def test_without_an_arena_its_calls_say_so(live: Live) -> None:
    assert not (await live.stub.AttachArena(pb.AttachArenaRequest(block_bytes=100, lock_name="x"))).path
    for call in (
        live.stub.Reserve(pb.ReserveRequest(arena_client=1, keys=key_of(1), layout=LAYOUT)),
        live.stub.Commit(pb.CommitRequest(arena_client=1, layout=LAYOUT)),
        live.stub.Pin(pb.PinRequest(arena_client=1, keys=key_of(1), layout=LAYOUT)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION and "attach again" in caught.value.details()
