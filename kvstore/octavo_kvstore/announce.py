"""Tells the scheduler what this store holds: a stream that the store dials, again and again while it runs.

Each connection begins with StoreHello and a whole inventory; numbered events follow in batches. The scheduler may ask
for another inventory at any time. Losing the scheduler costs the store nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import grpc.aio
from octavo.packing import pack_keys, unpack_keys
from octavo.v1 import kvstore_pb2, scheduler_pb2, scheduler_pb2_grpc

from octavo_kvstore.codecs.choice import CodecFigures
from octavo_kvstore.events import HoldingEvent
from octavo_kvstore.peers.book import PeerBook
from octavo_kvstore.store import Store
from octavo_kvstore.tier import TierStats

INVENTORY_PART_KEYS = 65_536
EVENTS_PER_MESSAGE = 4096
BATCH_DELAY_S = 0.02
HEARTBEAT_S = 1.0
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 2.0
WELCOME_TIMEOUT_S = 5.0

Request = scheduler_pb2.AttachStoreRequest
Response = scheduler_pb2.AttachStoreResponse
log = logging.getLogger("octavo.kvstore.announce")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this store is to the scheduler and to workers."""

    store_id: str
    boot_id: str
    address: str
    peer_address: str = ""
    """Where kvstores of other hosts reach it; empty: they do not."""


class Announcer:
    """One stream to the scheduler. Create it inside the running loop; `run` ends only when it is cancelled."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        scheduler: str,
        open_channel: Callable[[str], grpc.aio.Channel],
        *,
        book: PeerBook | None = None,
        codec: Callable[[], CodecFigures] = CodecFigures,
        on_hint: Callable[[Sequence[bytes]], None] = lambda keys: None,
    ) -> None:
        """`book`: learns of other hosts' kvstores, None when nothing is fetched from them; `codec`: figures for the ledger;
        `on_hint`: hears keys that will be loaded soon.
        """
        self._on_hint = on_hint
        self._book = book
        self._codec = codec
        self._codec_told = CodecFigures()
        self._store = store
        self._identity = identity
        self._scheduler = scheduler
        self._open_channel = open_channel
        self._wake = asyncio.Event()
        self._inventory_asked = False
        self.connected = False
        self.connections = 0
        self._loop = asyncio.get_running_loop()
        store.events.on_event = self._notice

    def _notice(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Dials, speaks until the stream breaks, waits a little, dials again."""
        backoff_s = FIRST_BACKOFF_S
        async with self._open_channel(self._scheduler) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
            while True:
                try:
                    await self._attach(stub)
                except (grpc.aio.AioRpcError, TimeoutError, ConnectionError, asyncio.InvalidStateError) as error:
                    # the last of these: a write after the stream's end
                    reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                    log.log(logging.WARNING if self.connected else logging.DEBUG, "scheduler stream ended: %s", reason)
                backoff_s = FIRST_BACKOFF_S if self.connected else min(2 * backoff_s, MAX_BACKOFF_S)
                self.connected = False
                await asyncio.sleep(backoff_s)

    async def _attach(self, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        call = stub.AttachStore()
        try:
            hello = scheduler_pb2.StoreHello(
                store_id=self._identity.store_id,
                boot_id=self._identity.boot_id,
                address=self._identity.address,
                peer_address=self._identity.peer_address,
                fetches=self._book is not None,
            )
            await call.write(Request(hello=hello))
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                first = await call.read()
            if not isinstance(first, Response) or first.WhichOneof("message") != "welcome":
                raise ConnectionError("closed before a welcome")
            self.connected = True
            self.connections += 1
            self._inventory_asked = True
            log.info("attached to the scheduler at %s", self._scheduler)
            reading = asyncio.create_task(self._read(call))
            try:
                async for message in self._messages(reading):
                    await call.write(message)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        finally:
            call.cancel()

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:  # type: ignore[type-arg]
        try:
            while isinstance(message := await call.read(), Response):
                kind = message.WhichOneof("message")
                if kind == "inventory_request":
                    self._inventory_asked = True
                    self._wake.set()
                elif kind == "forget":
                    await asyncio.to_thread(self._forget, message.forget)
                elif kind == "pin":
                    await asyncio.to_thread(self._pin, message.pin)
                elif kind == "peers" and self._book is not None:
                    self._book.tell({peer.store_id: peer.address for peer in message.peers.peers})
                elif kind == "prefetch":
                    self._on_hint(unpack_keys(message.prefetch.keys))
        finally:
            self._wake.set()  # the writer finds that the stream is over

    def _forget(self, order: scheduler_pb2.ForgetOrder) -> None:
        """Blocks that somebody wants gone; may write to the disk."""
        gone = self._store.delete_namespace(order.namespace) if order.namespace else 0
        for key in unpack_keys(order.keys):
            gone += self._store.delete_below(key) if order.below else self._store.delete(key)
        log.info("the scheduler had %d blocks forgotten", gone)

    def _pin(self, order: scheduler_pb2.PinOrder) -> None:
        """What lasts of preloads; a folder that cannot be written costs them their restart, not the store its life."""
        try:
            self._store.set_pinned(unpack_keys(order.keys), pinned=order.pinned)
        except OSError as error:
            log.warning("pins cannot be kept: %s", error)

    async def _messages(self, reading: asyncio.Task[None]) -> AsyncIterator[scheduler_pb2.AttachStoreRequest]:
        """What goes up while `reading` goes on: an inventory when due, then events, a heartbeat when there is nothing."""
        sent, told_s = 0, 0.0
        while not reading.done():
            self._wake.clear()
            events = None if self._inventory_asked else self._store.events.after(sent, EVENTS_PER_MESSAGE)
            if events is None:  # asked for, or the log has forgotten what follows `sent`
                self._inventory_asked = False
                sent, keys = self._store.inventory()
                for part in inventory_parts(sent, keys):
                    yield part
            elif events:
                yield Request(events=events_message(events))
                sent = events[-1].number
            elif not await self._woken():
                yield Request(heartbeat=scheduler_pb2.Heartbeat())
            if time.monotonic() - told_s >= HEARTBEAT_S:
                told_s = time.monotonic()
                yield Request(tiers=tiers_message(self._store.tier_stats()))
                if (figures := self._codec()) != self._codec_told:
                    yield Request(codec=codec_message(self._codec_told, figures))
                    self._codec_told = figures

    async def _woken(self) -> bool:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._wake.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(BATCH_DELAY_S)  # events come in runs: one message for a run
        return True


def inventory_parts(number: int, keys: Sequence[bytes]) -> list[scheduler_pb2.AttachStoreRequest]:
    """An inventory as messages of bounded size; an empty one is one message too."""
    parts = []
    for start in range(0, max(len(keys), 1), INVENTORY_PART_KEYS):
        part = keys[start : start + INVENTORY_PART_KEYS]
        last = start + INVENTORY_PART_KEYS >= len(keys)
        parts.append(Request(inventory=scheduler_pb2.StoreInventory(number=number, keys=pack_keys(part), last=last)))
    return parts


def tiers_message(tiers: Sequence[TierStats]) -> scheduler_pb2.StoreTiers:
    """How full the tiers are."""
    return scheduler_pb2.StoreTiers(
        tiers=[
            kvstore_pb2.TierStats(
                name=tier.name,
                capacity_bytes=tier.capacity_bytes,
                used_bytes=tier.used_bytes,
                keys=tier.keys,
                hits=tier.hits,
                misses=tier.misses,
            )
            for tier in tiers
        ]
    )


def codec_message(told: CodecFigures, now: CodecFigures) -> scheduler_pb2.StoreCodec:
    """What compression did since it was told last."""
    spent_s = now.encode_s + now.decode_s - told.encode_s - told.decode_s
    left_out = (now.raw_bytes - now.coded_bytes) - (told.raw_bytes - told.coded_bytes)
    return scheduler_pb2.StoreCodec(
        blocks=now.blocks - told.blocks,
        saved_us=1e6 * (now.saved_s - told.saved_s),
        cost_us=1e6 * spent_s,
        saved_bytes=max(0, left_out),
    )


def events_message(events: Sequence[HoldingEvent]) -> kvstore_pb2.StoreEvents:
    """Consecutive events as one message."""
    return kvstore_pb2.StoreEvents(
        first_number=events[0].number,
        events=[kvstore_pb2.StoreEvent(key=item.key, removed=item.removed, tier=item.tier) for item in events],
    )
