"""Transfers against a scripted kvstore over real gRPC: every order ends with exactly one TransferDone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import xxhash
from octavo.packing import unpack_keys
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc
from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.orders import LoadOrder, OffloadOrder, TransferDone
from octavo_gpuworker.transfer import Transfers

SIZE = 64
LAYOUT = b"l" * 32
KEYS = [bytes([i]) * 32 for i in range(1, 6)]


class FakePool:
    """Blocks whose bytes are their own number."""

    block_bytes = SIZE

    def read_block(self, block_id: int) -> bytes:
        return bytes([block_id]) * SIZE


def payload(key: bytes) -> bytes:
    return key[:1] * SIZE


def whole(key: bytes) -> pb.GetResponse:
    return pb.GetResponse(key=key, payload=payload(key), checksum=xxhash.xxh3_64_intdigest(payload(key)))


@dataclass
class FakeStore(kvstore_pb2_grpc.KvStoreServiceServicer):
    """Holds `held` leading keys and answers Get with what `blocks` makes of the request's keys."""

    held: int = len(KEYS)
    blocks: Callable[[list[bytes]], list[pb.GetResponse | float]] = lambda keys: [whole(key) for key in keys]
    refused: int = 0
    puts: list[pb.PutRequest] = field(default_factory=list)

    async def Pin(self, request: pb.PinRequest, context: Any) -> pb.PinResponse:
        held = min(self.held, len(unpack_keys(request.keys)))
        return pb.PinResponse(lease=9 if held else 0, held=held)

    async def Unpin(self, request: pb.UnpinRequest, context: Any) -> pb.UnpinResponse:
        return pb.UnpinResponse()

    async def Get(self, request: pb.GetRequest, context: Any) -> AsyncIterator[pb.GetResponse]:
        for item in self.blocks(unpack_keys(request.keys)):
            if isinstance(item, float):
                await asyncio.sleep(item)
            else:
                yield item

    async def Put(self, stream: AsyncIterator[pb.PutRequest], context: Any) -> pb.PutResponse:
        async for request in stream:
            self.puts.append(request)
        return pb.PutResponse(stored=len(self.puts) - self.refused, refused=self.refused)


class Posted:
    """Collects what the step thread would get."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._ended = asyncio.Event()

    def __call__(self, items: list[Any]) -> None:
        self.items += items
        if any(isinstance(item, TransferDone) for item in items):
            self._ended.set()

    async def done(self) -> TransferDone:
        async with asyncio.timeout(5):
            await self._ended.wait()
        (done,) = [item for item in self.items if isinstance(item, TransferDone)]
        assert self.items[-1] is done  # no block is written after the hold has ended
        return done

    @property
    def written(self) -> dict[int, bytes]:
        return {item.block: item.payload for item in self.items if isinstance(item, LoadedBlock)}


@asynccontextmanager
async def transfers_to(store: FakeStore | None) -> AsyncIterator[tuple[Transfers, Posted, grpc.aio.Server]]:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    if store is not None:
        kvstore_pb2_grpc.add_KvStoreServiceServicer_to_server(store, server)
        await server.start()
    posted = Posted()
    transfers = Transfers(f"127.0.0.1:{port}", FakePool(), LAYOUT, posted)  # type: ignore[arg-type]
    try:
        yield transfers, posted, server
    finally:
        await transfers.close()
        await server.stop(None)


def load(count: int = 3, limit_us: int = 2_000_000) -> LoadOrder:
    return LoadOrder(4, KEYS[:count], [10 + i for i in range(count)], limit_us)


async def test_a_whole_load_writes_every_block_before_it_ends() -> None:
    async with transfers_to(FakeStore()) as (transfers, posted, _):
        transfers.start(load())
        done = await posted.done()
    assert (done.xfer_id, done.ok_blocks, done.bytes) == (4, 3, 3 * SIZE)
    assert posted.written == {10 + i: payload(KEYS[i]) for i in range(3)}


async def test_a_partial_hold_loads_the_leading_run() -> None:
    async with transfers_to(FakeStore(held=2)) as (transfers, posted, _):
        transfers.start(load())
        assert (await posted.done()).ok_blocks == 2
    assert sorted(posted.written) == [10, 11]


async def test_a_miss_ends_with_nothing() -> None:
    async with transfers_to(FakeStore(held=0)) as (transfers, posted, _):
        transfers.start(load())
        assert (await posted.done()).ok_blocks == 0


async def test_a_bad_checksum_ends_the_run_before_it() -> None:
    def flipped(keys: list[bytes]) -> list[pb.GetResponse | float]:
        blocks = [whole(key) for key in keys]
        blocks[1].payload = b"\xff" + blocks[1].payload[1:]
        return list(blocks)

    async with transfers_to(FakeStore(blocks=flipped)) as (transfers, posted, _):
        transfers.start(load())
        assert (await posted.done()).ok_blocks == 1
    assert sorted(posted.written) == [10]


async def test_blocks_in_another_order_are_not_taken() -> None:
    async with transfers_to(FakeStore(blocks=lambda keys: [whole(key) for key in reversed(keys)])) as case:
        transfers, posted, _ = case
        transfers.start(load())
        assert (await posted.done()).ok_blocks == 0


async def test_a_store_that_sends_more_than_was_asked_still_ends_the_transfer() -> None:
    async with transfers_to(FakeStore(blocks=lambda keys: [whole(key) for key in KEYS])) as (transfers, posted, _):
        transfers.start(load(count=3))
        assert (await posted.done()).ok_blocks == 3
    assert sorted(posted.written) == [10, 11, 12]


async def test_a_lease_on_more_keys_than_were_asked_is_no_load_of_them() -> None:
    class Generous(FakeStore):
        async def Pin(self, request: pb.PinRequest, context: Any) -> pb.PinResponse:
            return pb.PinResponse(lease=9, held=99)

    async with transfers_to(Generous()) as (transfers, posted, _):
        transfers.start(load(count=2))
        assert (await posted.done()).ok_blocks == 2


async def test_a_stalled_store_ends_the_load_at_its_limit_with_what_came() -> None:
    async with transfers_to(FakeStore(blocks=lambda keys: [whole(keys[0]), 60.0])) as (transfers, posted, _):
        transfers.start(load(limit_us=200_000))
        assert (await posted.done()).ok_blocks == 1


async def test_a_store_that_dies_during_the_load_leaves_the_leading_run() -> None:
    async with transfers_to(FakeStore(blocks=lambda keys: [whole(keys[0]), 60.0])) as (transfers, posted, server):
        transfers.start(load(limit_us=5_000_000))
        async with asyncio.timeout(5):
            while not posted.written:
                await asyncio.sleep(0.01)
        await server.stop(None)
        assert (await posted.done()).ok_blocks == 1


async def test_a_dead_store_ends_load_and_offload_with_nothing() -> None:
    for order in (load(limit_us=500_000), OffloadOrder(4, [1], [KEYS[0]])):
        async with transfers_to(None) as (transfers, posted, _):
            transfers.start(order)
            assert (await posted.done()).ok_blocks == 0


async def test_an_offload_stores_the_blocks_under_their_keys() -> None:
    store = FakeStore()
    async with transfers_to(store) as (transfers, posted, _):
        transfers.start(OffloadOrder(4, [3, 1], KEYS[:2]))
        done = await posted.done()
    assert (done.ok_blocks, done.bytes) == (2, 2 * SIZE)
    assert [(put.key, put.payload) for put in store.puts] == [(KEYS[0], b"\x03" * SIZE), (KEYS[1], b"\x01" * SIZE)]
    assert all(put.layout == LAYOUT and put.checksum == xxhash.xxh3_64_intdigest(put.payload) for put in store.puts)


async def test_a_refused_block_is_not_claimed() -> None:
    async with transfers_to(FakeStore(refused=1)) as (transfers, posted, _):
        transfers.start(OffloadOrder(4, [3, 1], KEYS[:2]))
        assert (await posted.done()).ok_blocks == 0


async def test_an_order_that_cannot_be_run_still_ends() -> None:
    """More keys than blocks: a fault of the scheduler, which must get its blocks back all the same."""
    async with transfers_to(FakeStore()) as (transfers, posted, _):
        transfers.start(LoadOrder(4, KEYS[:2], [10], 2_000_000))
        assert (await posted.done()).ok_blocks == 0


async def test_quiesce_ends_a_running_load_and_nothing_is_written_after_it() -> None:
    async with transfers_to(FakeStore(blocks=lambda keys: [whole(keys[0]), 60.0])) as (transfers, posted, _):
        transfers.start(load(limit_us=5_000_000))
        async with asyncio.timeout(5):
            while not posted.written:
                await asyncio.sleep(0.01)
            await transfers.quiesce()
        count = len(posted.items)
        await asyncio.sleep(0)
        assert len(posted.items) == count
        assert not any(isinstance(item, TransferDone) for item in posted.items)  # a new epoch knows nothing of it
