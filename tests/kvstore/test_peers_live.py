"""Two kvstores as two hosts, over gRPC: blocks come from the other one, coded or not; a peer that dies costs a miss within a bound."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
import xxhash
from octavo.packing import pack_keys
from octavo.rpc.channels import open_channel
from octavo.rpc.host import SERVER_OPTIONS
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc
from octavo_kvstore.block import DRAM, NVME, Block, BlockMeta
from octavo_kvstore.codecs.choice import Chooser
from octavo_kvstore.codecs.samples import sample_payload
from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.codecs.shapes import ShapeTable
from octavo_kvstore.fetch_link import PeerChannels
from octavo_kvstore.peers.book import PeerBook
from octavo_kvstore.peers.pieces import PIECE_BYTES, WINDOW_BYTES
from octavo_kvstore.pins import PinTable
from octavo_kvstore.serve_link import MAX_FETCHES, PeerServicer
from octavo_kvstore.service import KvStoreServicer
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, OTHER_LAYOUT, is_right, key_of, make_block
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.remote import RemoteTier, Source

BLOCK_BYTES = 368_640
SHAPE = PayloadShape(4, 2, 3, 16, 64, "bfloat16")
SOURCES_OF = "far"


class HostB:
    """A kvstore that others fetch from."""

    def __init__(self, codec: str = "none") -> None:
        pins = PinTable()
        self.store = Store(HeapTier(256 * 2**20, pins.is_pinned), None, pins)
        self.shapes = ShapeTable()
        self.servicer = PeerServicer(self.store, self.shapes, Chooser(codec))
        self.address = ""


class HostA:
    """A kvstore whose worker asks, and which fetches."""

    def __init__(self, codec: str = "none") -> None:
        pins = PinTable()
        self.store = Store(HeapTier(256 * 2**20, pins.is_pinned), None, pins)
        self.channels = PeerChannels(open_channel)
        self.book = PeerBook("near", {})
        self.remote = RemoteTier(self.book, self.channels.dial, Chooser(codec))
        self.stub: kvstore_pb2_grpc.KvStoreServiceStub

    async def load(self, count: int, *, layout: bytes = LAYOUT, exact: bool = False) -> list[pb.GetResponse]:
        """As a worker does it: Pin, then Get what is said to be within reach."""
        keys = [key_of(number) for number in range(count)]
        sources = [pb.BlockSource(store_id=SOURCES_OF, first=0, count=count)]
        pinned = await self.stub.Pin(pb.PinRequest(keys=pack_keys(keys), layout=layout, exact=exact, sources=sources))
        get = pb.GetRequest(
            keys=pack_keys(keys[: pinned.held]), layout=layout, lease=pinned.lease, exact=exact, sources=sources
        )
        return [item async for item in self.stub.Get(get)] if pinned.held else []


@asynccontextmanager
async def two_hosts(codec: str = "none") -> AsyncIterator[tuple[HostA, HostB]]:
    a, b = HostA(codec), HostB(codec)
    servers = []
    own = KvStoreServicer(a.store, "near", "boot", remote=a.remote)
    for add in (lambda server: kvstore_pb2_grpc.add_KvStoreServiceServicer_to_server(own, server), b.servicer.add_to):
        server = grpc.aio.server(options=SERVER_OPTIONS)
        add(server)
        servers.append((server, server.add_insecure_port("127.0.0.1:0")))
        await server.start()
    b.address = f"127.0.0.1:{servers[1][1]}"
    a.book.tell({SOURCES_OF: b.address})
    async with open_channel(f"127.0.0.1:{servers[0][1]}") as channel:
        a.stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
        yield a, b
    await a.channels.close()
    for server, _ in servers:
        await server.stop(None)
    b.servicer.close()


def fill(store: Store, count: int, size: int = BLOCK_BYTES) -> list[Block]:
    blocks = [make_block(number, size, parent=number - 1 if number else None) for number in range(count)]
    for block in blocks:
        store.put(block)
    return blocks


def as_blocks(responses: Sequence[pb.GetResponse]) -> list[tuple[bytes, bytes]]:
    return [(item.key, item.payload) for item in responses]


async def test_blocks_come_from_the_other_host_and_stay() -> None:
    async with two_hosts() as (a, b):
        blocks = fill(b.store, 24)
        got = await a.load(24)
        assert as_blocks(got) == [(block.key, block.payload) for block in blocks]
        assert {item.tier for item in got} == {"remote"} and [item.parent for item in got][1] == key_of(0)
        assert b.servicer.bytes_sent == 24 * BLOCK_BYTES
        again = await a.load(24)
        assert as_blocks(again) == as_blocks(got) and {item.tier for item in again} == {"dram"}
        assert b.servicer.blocks_sent == 24, "fetched once"


async def test_own_blocks_and_those_of_a_peer_make_one_run() -> None:
    async with two_hosts() as (a, b):
        blocks = fill(b.store, 12, 5000)
        for number in (0, 1, 5, 6):
            a.store.put(blocks[number])
        b.store.delete(blocks[11].key)
        got = await a.load(12)
        tiers = ["dram", "dram", "remote", "remote", "remote", "remote", "remote", *["remote"] * 4]
        assert as_blocks(got) == [(block.key, block.payload) for block in blocks[:11]]
        assert [item.tier for item in got][:3] == tiers[:3] and got[-1].tier == "remote"


async def test_meta_data_travels_but_no_pin() -> None:
    async with two_hosts() as (a, b):
        meta = BlockMeta(b"n" * 16, int(time.time()) + 1000, 0, 5, True, 777)
        b.store.put(make_block(0, 5000, meta=meta))
        (got,) = await a.load(1)
        assert got.meta.namespace == b"n" * 16 and got.meta.priority == 5 and got.meta.recompute_us == 777
        assert 900e6 < got.meta.ttl_us <= 1001e6 and not got.meta.pinned
        found = a.store.get(key_of(0), LAYOUT)
        assert found is not None and found.block.meta.namespace == b"n" * 16


async def test_a_block_that_must_stay_on_its_host_stays() -> None:
    async with two_hosts() as (a, b):
        b.store.put(make_block(0, 5000, meta=BlockMeta(tiers=DRAM | NVME)))
        assert await a.load(1) == [] and b.servicer.bytes_sent == 0


async def test_blocks_larger_than_a_piece_and_the_window() -> None:
    async with two_hosts() as (a, b):
        size = 2 * PIECE_BYTES + 17
        blocks = fill(b.store, WINDOW_BYTES // size + 5, size)
        assert as_blocks(await a.load(len(blocks))) == [(block.key, block.payload) for block in blocks]


async def test_another_layout_is_a_miss() -> None:
    async with two_hosts() as (a, b):
        fill(b.store, 3, 5000)
        assert await a.load(3, layout=OTHER_LAYOUT) == []


@pytest.mark.parametrize(("codec", "exact"), [("zstd", False), ("int8", False), ("zstd", True)])
async def test_over_a_slow_link_blocks_travel_coded(codec: str, exact: bool) -> None:
    async with two_hosts(codec) as (a, b):
        b.shapes.tell(LAYOUT, SHAPE, exact=False)
        blocks = []
        for number in range(4):
            payload = sample_payload(SHAPE, number)
            blocks.append(Block(key_of(number), b"", LAYOUT, xxhash.xxh3_64_intdigest(payload), payload))
            b.store.put(blocks[-1])
        peer = a.book.find(SOURCES_OF)
        assert peer is not None
        peer.link.bytes_per_s = 1e6
        got = await a.load(4, exact=exact)
        assert [item.key for item in got] == [block.key for block in blocks]
        assert b.servicer.bytes_sent < 0.9 * 4 * SHAPE.payload_bytes
        assert {item.meta.lossy for item in got} == {not exact}
        assert (as_blocks(got) == [(block.key, block.payload) for block in blocks]) == exact
        assert all(xxhash.xxh3_64_intdigest(item.payload) == item.checksum for item in got)


async def test_a_lossy_block_is_no_answer_where_exactness_is_asked_for() -> None:
    async with two_hosts() as (a, b):
        b.store.put(make_block(0, 5000, meta=BlockMeta(lossy=True)))
        assert await a.load(1, exact=True) == []
        assert len(await a.load(1)) == 1
        assert await a.load(1, exact=True) == [], "nor now that this host has it"


async def test_the_peer_address_offers_fetch_alone() -> None:
    async with two_hosts() as (_, b), open_channel(b.address) as channel:
        stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
        fill(b.store, 1, 5000)
        for call in (
            stub.Delete(pb.DeleteRequest(keys=key_of(0))),
            stub.Pin(pb.PinRequest(keys=key_of(0), layout=LAYOUT)),
            stub.Contains(pb.ContainsRequest(keys=key_of(0), layout=LAYOUT)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert b.store.contains(key_of(0), LAYOUT)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.FetchRequest(credit_bytes=5), "open"),
        (pb.FetchRequest(open=pb.FetchOpen(keys=b"short", layout=LAYOUT, codec="none")), "open.keys"),
        (pb.FetchRequest(open=pb.FetchOpen(keys=key_of(1), layout=b"x", codec="none")), "open.layout"),
        (pb.FetchRequest(open=pb.FetchOpen(keys=key_of(1), layout=LAYOUT, codec="rot13")), "open.codec"),
    ],
)
async def test_malformed_fetches_name_the_field(request_: pb.FetchRequest, field: str) -> None:
    async with two_hosts() as (_, b), open_channel(b.address) as channel:
        call = kvstore_pb2_grpc.KvStoreServiceStub(channel).Fetch(iter([request_]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [item async for item in call]
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith(f"{field}: ")


async def test_no_more_is_sent_than_there_is_credit_for() -> None:
    async with two_hosts() as (_, b), open_channel(b.address) as channel:
        fill(b.store, 8, 100_000)
        keys = pack_keys([key_of(number) for number in range(8)])
        call = kvstore_pb2_grpc.KvStoreServiceStub(channel).Fetch()
        opened = pb.FetchOpen(keys=keys, layout=LAYOUT, codec="none")
        await call.write(pb.FetchRequest(open=opened, credit_bytes=250_000))
        assert [(await call.read()).index for _ in range(2)] == [0, 1]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.shield(reading := asyncio.ensure_future(call.read()))
        assert b.servicer.bytes_sent == 200_000
        await call.write(pb.FetchRequest(credit_bytes=50_000))
        assert (await reading).index == 2
        call.cancel()


async def test_too_many_fetches_are_refused_and_that_is_a_miss() -> None:
    async with two_hosts() as (a, b), open_channel(b.address) as channel:
        fill(b.store, 4, 100_000)
        stub, held = kvstore_pb2_grpc.KvStoreServiceStub(channel), []
        for _ in range(MAX_FETCHES):
            call = stub.Fetch()
            await call.write(
                pb.FetchRequest(open=pb.FetchOpen(keys=key_of(0), layout=LAYOUT, codec="none"), credit_bytes=1)
            )
            held.append(call)
        while b.servicer._running < MAX_FETCHES:
            await asyncio.sleep(0.01)
        assert await a.load(4) == [] and b.servicer.refused >= 1
        for call in held:
            call.cancel()
        while b.servicer._running:
            await asyncio.sleep(0.01)


CHILD = """
import asyncio, json, sys
import grpc.aio
from octavo.rpc.host import SERVER_OPTIONS
from octavo_kvstore.codecs.choice import Chooser
from octavo_kvstore.codecs.shapes import ShapeTable
from octavo_kvstore.pins import PinTable
from octavo_kvstore.serve_link import PeerServicer
from octavo_kvstore.store import Store
from octavo_kvstore.testing import make_block
from octavo_kvstore.tiers.heap import HeapTier

async def main():
    pins = PinTable()
    store = Store(HeapTier(256 * 2**20, pins.is_pinned), None, pins)
    for number in range(int(sys.argv[1])):
        store.put(make_block(number, int(sys.argv[2]), parent=number - 1 if number else None))
    server = grpc.aio.server(options=SERVER_OPTIONS)
    PeerServicer(store, ShapeTable(), Chooser("none")).add_to(server)
    port = server.add_insecure_port("127.0.0.1:" + sys.argv[3])
    await server.start()
    print(json.dumps(port), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class PeerProcess:
    """A peer that can be killed."""

    def __init__(self, blocks: int, size: int = BLOCK_BYTES, port: int = 0) -> None:
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": f"{root}/protos{os.pathsep}{root}/kvstore"}
        command = [sys.executable, "-c", CHILD, str(blocks), str(size), str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline()))

    def end(self, signum: int = signal.SIGKILL) -> None:
        self.process.send_signal(signum)

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


async def kill_midway(signum: int) -> tuple[list[Block], float, HostA]:
    """Fetches 100 blocks and sends the signal after the third; what came, and how long the rest took."""
    peer = await asyncio.to_thread(PeerProcess, 100)
    a = HostA()
    a.book.tell({SOURCES_OF: f"127.0.0.1:{peer.port}"})
    keys = [key_of(number) for number in range(100)]
    got: list[Block] = []
    hit_s = 0.0
    try:
        async for block in a.remote.fetch(keys, LAYOUT, [Source(SOURCES_OF, 0, 100)], exact=False):
            got.append(block)
            if len(got) == 3:
                peer.end(signum)
                hit_s = time.monotonic()
        return got, time.monotonic() - hit_s, a
    finally:
        await a.channels.close()
        await asyncio.to_thread(peer.close)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_a_peer_that_dies_in_the_middle_of_a_stream_costs_a_miss_within_a_bound(signum: int) -> None:
    got, took_s, a = await kill_midway(signum)
    assert 3 <= len(got) < 100 and all(map(is_right, got)), "what came before is whole"
    assert [block.key for block in got] == [key_of(number) for number in range(len(got))]
    assert took_s < 5, "the stall limit, and what a loaded machine adds; never a hang"
    peer = a.book.find(SOURCES_OF)
    assert peer is not None and not peer.answers(time.monotonic()) and a.remote.counters.misses == 1


async def test_a_peer_that_comes_back_is_found_again() -> None:
    peer = await asyncio.to_thread(PeerProcess, 4, 5000)
    a = HostA()
    a.book.tell({SOURCES_OF: f"127.0.0.1:{peer.port}"})

    async def fetch() -> int:
        keys = [key_of(number) for number in range(4)]
        return len([b async for b in a.remote.fetch(keys, LAYOUT, [Source(SOURCES_OF, 0, 4)], exact=False)])

    assert await fetch() == 4
    await asyncio.to_thread(peer.close)
    assert await fetch() == 0
    again = await asyncio.to_thread(PeerProcess, 4, 5000, peer.port)
    try:
        async with asyncio.timeout(20):
            while await fetch() != 4:
                await asyncio.sleep(0.1)
    finally:
        await a.channels.close()
        await asyncio.to_thread(again.close)
