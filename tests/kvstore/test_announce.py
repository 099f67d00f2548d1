"""The stream to the scheduler, against a scripted scheduler that keeps a directory as the real one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest
from octavo.packing import unpack_keys
from octavo.rpc.channels import open_channel
from octavo.v1 import scheduler_pb2 as pb
from octavo.v1 import scheduler_pb2_grpc
from octavo_kvstore import announce
from octavo_kvstore.announce import Announcer, Identity, inventory_parts
from octavo_kvstore.codecs.choice import CodecFigures
from octavo_kvstore.peers.book import PeerBook
from octavo_kvstore.pins import PinTable
from octavo_kvstore.store import Store
from octavo_kvstore.testing import key_of, make_block
from octavo_kvstore.tiers.heap import HeapTier


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Follows hello, inventory and events; says what broke the rules."""

    def __init__(self) -> None:
        self.hellos: list[pb.StoreHello] = []
        self.directory: set[bytes] = set()
        self.number = -1
        self.inventories = 0
        self.heartbeats = 0
        self.messages = 0
        self.codecs: list[pb.StoreCodec] = []
        self.broken: list[str] = []
        self.orders: asyncio.Queue[pb.AttachStoreResponse | None] = asyncio.Queue()

    async def AttachStore(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.AttachStoreResponse]:
        self.number = -1
        self.orders = asyncio.Queue()
        reading = asyncio.create_task(self._read(request_iterator))
        try:
            while (order := await self.orders.get()) is not None:
                yield order
        finally:
            reading.cancel()

    async def _read(self, requests: AsyncIterator[pb.AttachStoreRequest]) -> None:
        parts: set[bytes] | None = None
        async for message in requests:
            self.messages += 1
            kind = message.WhichOneof("message")
            if kind == "hello":
                self.hellos.append(message.hello)
                self.orders.put_nowait(pb.AttachStoreResponse(welcome=pb.StoreWelcome(scheduler_boot_id="s")))
            elif kind == "inventory":
                parts = (parts or set()) | set(unpack_keys(message.inventory.keys))
                if message.inventory.last:
                    self.directory, self.number, parts = parts, message.inventory.number, None
                    self.inventories += 1
            elif kind == "events":
                if message.events.first_number != self.number + 1:
                    self.broken.append(f"{message.events.first_number} after {self.number}")
                for event in message.events.events:
                    self.number += 1
                    (self.directory.discard if event.removed else self.directory.add)(event.key)
            elif kind == "codec":
                self.codecs.append(message.codec)
            else:
                self.heartbeats += 1


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


async def serve(fake: FakeScheduler, port: int = 0) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(fake, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


def make_store(blocks: int = 50) -> Store:
    pins = PinTable()
    return Store(HeapTier(blocks * 3600, pins.is_pinned), None, pins)


@pytest.fixture
async def running() -> AsyncIterator[tuple[Store, FakeScheduler, Announcer, Callable[[], Any]]]:
    store, fake = make_store(), FakeScheduler()
    for number in range(10):
        store.put(make_block(number))
    server, port = await serve(fake)
    announcer = Announcer(store, Identity("store-1", "boot-1", "127.0.0.1:9"), f"127.0.0.1:{port}", open_channel)
    task = asyncio.create_task(announcer.run())
    servers = [server]

    async def restart() -> None:
        await servers.pop().stop(None)
        servers.append((await serve(fake, port))[0])

    yield store, fake, announcer, restart
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await servers.pop().stop(None)


async def test_hello_inventory_then_events(running: Any) -> None:
    store, fake, _, _ = running
    await until(lambda: fake.inventories == 1)
    hello = fake.hellos[0]
    assert (hello.store_id, hello.boot_id, hello.address) == ("store-1", "boot-1", "127.0.0.1:9")
    assert fake.directory == {key_of(number) for number in range(10)}
    before = fake.messages
    for number in range(10, 200):  # more than the tier holds: stored and removed
        store.put(make_block(number))
    store.delete(key_of(199))
    await until(lambda: fake.number == store.events.number)
    assert fake.directory == set(store.inventory()[1]) and fake.broken == []
    assert fake.messages - before < 20, "events travel in batches"


async def test_an_inventory_on_request(running: Any) -> None:
    store, fake, _, _ = running
    await until(lambda: fake.inventories == 1)
    fake.directory = {key_of(77)}
    fake.orders.put_nowait(pb.AttachStoreResponse(inventory_request=pb.InventoryRequest()))
    await until(lambda: fake.inventories == 2)
    assert fake.directory == set(store.inventory()[1])


async def test_it_comes_back_with_an_inventory_when_the_scheduler_restarts(running: Any) -> None:
    store, fake, announcer, restart = running
    await until(lambda: fake.inventories == 1)
    await restart()
    store.put(make_block(300))
    await until(lambda: fake.inventories == 2)
    assert key_of(300) in fake.directory
    store.put(make_block(301))
    await until(lambda: key_of(301) in fake.directory)
    assert fake.broken == [] and announcer.connections == 2


async def test_a_stream_closed_by_the_scheduler_is_dialled_again(running: Any) -> None:
    _, fake, _, _ = running
    await until(lambda: fake.inventories == 1)
    fake.orders.put_nowait(None)
    await until(lambda: fake.inventories == 2)


async def test_a_forgotten_event_makes_an_inventory(running: Any) -> None:
    store, fake, _, _ = running
    await until(lambda: fake.inventories == 1)
    store.put(make_block(400))
    store.events._events.clear()  # what the log does on its own after 65,536 events
    await until(lambda: fake.inventories == 2)
    assert key_of(400) in fake.directory and fake.broken == []


async def test_heartbeats_when_there_is_nothing_to_say(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "HEARTBEAT_S", 0.01)
    _, fake, _, _ = running
    await until(lambda: fake.heartbeats >= 3)


async def test_no_scheduler_is_no_reason_to_die() -> None:
    store = make_store()
    announcer = Announcer(store, Identity("s", "b", "a"), "127.0.0.1:1", open_channel)
    task = asyncio.create_task(announcer.run())
    await asyncio.sleep(0.3)
    assert not task.done() and not announcer.connected
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_inventories_travel_in_parts() -> None:
    keys = [number.to_bytes(32, "little") for number in range(2 * announce.INVENTORY_PART_KEYS + 1)]
    parts = inventory_parts(7, keys)
    assert [part.inventory.last for part in parts] == [False, False, True]
    assert all(part.inventory.number == 7 and part.ByteSize() < 4 * 2**20 for part in parts)
    assert [key for part in parts for key in unpack_keys(part.inventory.keys)] == keys
    (empty,) = inventory_parts(3, [])
    assert empty.inventory.last and not empty.inventory.keys


async def test_a_prefetch_hint_is_passed_on(running: Any) -> None:
    _, fake, announcer, _ = running
    hints: list[Any] = []
    announcer._on_hint = hints.append
    await until(lambda: fake.inventories == 1)
    fake.orders.put_nowait(pb.AttachStoreResponse(prefetch=pb.PrefetchHint(keys=key_of(1) + key_of(2))))
    await until(lambda: hints == [[key_of(1), key_of(2)]])


async def test_peers_are_learnt_and_compression_is_told_as_differences() -> None:
    store, fake, book = make_store(), FakeScheduler(), PeerBook("store-1", {})
    figures = [CodecFigures(2, 100, 40, 0.001, 0.002, 0.5)]
    server, port = await serve(fake)
    announcer = Announcer(
        store,
        Identity("store-1", "boot-1", "127.0.0.1:9", "127.0.0.1:10"),
        f"127.0.0.1:{port}",
        open_channel,
        book=book,
        codec=lambda: figures[-1],
    )
    task = asyncio.create_task(announcer.run())
    await until(lambda: bool(fake.hellos) and bool(fake.codecs))
    assert (fake.hellos[0].peer_address, fake.hellos[0].fetches) == ("127.0.0.1:10", True)
    told = fake.codecs[0]
    assert (told.blocks, told.saved_bytes) == (2, 60)
    assert (told.saved_us, told.cost_us) == pytest.approx((500_000, 3000))
    figures.append(CodecFigures(5, 400, 140, 0.002, 0.004, 0.75))
    await until(lambda: len(fake.codecs) == 2)
    told = fake.codecs[1]
    assert (told.blocks, told.saved_bytes) == (3, 200)
    assert (told.saved_us, told.cost_us) == pytest.approx((250_000, 3000))
    peers = [pb.StorePeer(store_id="far", address="10.0.0.2:1"), pb.StorePeer(store_id="store-1", address="me:1")]
    fake.orders.put_nowait(pb.AttachStoreResponse(peers=pb.StorePeers(peers=peers)))
    await until(lambda: len(book) == 1)
    assert [(peer.store_id, peer.address) for peer in book.all()] == [("far", "10.0.0.2:1")]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.stop(None)


async def test_a_write_after_the_stream_s_end_costs_a_dial_and_not_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What grpc.aio raises when the scheduler dies between two messages."""
    dials = 0

    async def attach(stub: Any) -> None:
        nonlocal dials
        dials += 1
        raise asyncio.InvalidStateError("RPC already finished.")

    pins = PinTable()
    announcer = Announcer(
        Store(HeapTier(2**20, pins.is_pinned), None, pins), Identity("s", "b", "a"), "127.0.0.1:1", open_channel
    )
    monkeypatch.setattr(announcer, "_attach", attach)
    running = asyncio.create_task(announcer.run())
    async with asyncio.timeout(20):
        while dials < 2:
            await asyncio.sleep(0.01)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
