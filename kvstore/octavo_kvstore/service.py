"""octavo.v1.KvStoreService: the gRPC edge of the store. Whatever may touch the disk runs in a small thread pool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypeVar

import grpc.aio
from octavo.packing import unpack_keys
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc

from octavo_kvstore.arena_desk import ArenaDesk
from octavo_kvstore.arena_link import ArenaReader, grouped
from octavo_kvstore.block import KEY_BYTES, LAYOUT_BYTES, NAMESPACE_BYTES, Block
from octavo_kvstore.codecs.shapes import ShapeTable
from octavo_kvstore.index import Clock
from octavo_kvstore.store import Found, Store
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers.remote import RemoteTier
from octavo_kvstore.watch_link import watch_blocks
from octavo_kvstore.wire import get_response, meta_from, read_shape, read_sources, ref_from, ref_to

READ_AHEAD_BYTES = 2 * 2**20
"""How many payload bytes one trip to the thread pool may fetch for a Get."""
MAX_KEYS = 65_536
MAX_PAYLOAD_BYTES = 4 * 2**20 - 4096
"""One block travels in one message, and messages are bounded at 4 MB."""
DISK_THREADS = 4

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")


class KvStoreServicer(kvstore_pb2_grpc.KvStoreServiceServicer):
    """Answers for one store. Malformed fields get INVALID_ARGUMENT; missing blocks are never an error."""

    def __init__(
        self,
        store: Store,
        store_id: str,
        boot_id: str,
        desk: ArenaDesk | None = None,
        clock_s: Clock = time.time,
        *,
        shapes: ShapeTable | None = None,
        remote: RemoteTier | None = None,
    ) -> None:
        """`shapes` learns what workers tell of their layouts; with `remote`, blocks of other hosts are fetched too."""
        self._store = store
        self._shapes = shapes
        self._remote = remote
        self._desk = desk
        self._clock_s = clock_s
        self._store_id = store_id
        self._boot_id = boot_id
        self._pool = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="kvstore-disk")

    def close(self) -> None:
        """Lets running calls end and starts no new ones; blocks."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinResponse:
        keys = await _keys(request.keys, context)
        await _layout(request.layout, context)
        desk = await self._client(request.arena_client, context)
        lease, held = self._store.pin(keys, request.layout, request.limit_us / 1e6, request.arena_client)
        response = pb.PinResponse(lease=lease, held=held)
        if desk is not None and lease:
            desk.begin_lease(request.arena_client, lease)
            refs = desk.lend(request.arena_client, lease, keys[:held], request.layout, exact=request.exact)
            response.slots.extend(map(ref_to, refs))
        if self._remote is not None and request.sources:
            response.held = self._within_reach(keys, held, request)
        return response

    def _within_reach(self, keys: list[bytes], held: int, request: pb.PinRequest) -> int:
        """How far the run goes on when peers that answer give what they are believed to hold."""
        assert self._remote is not None
        sources, at, before = read_sources(request.sources, len(keys)), held, -1
        while at != before:
            before = at
            at += self._remote.run(sources, at, len(keys))
            while at < len(keys) and self._store.contains(keys[at], request.layout):
                at += 1
        return at

    async def Unpin(self, request: pb.UnpinRequest, context: Context) -> pb.UnpinResponse:
        if self._desk is not None:
            self._desk.end_lease(request.lease)
        self._store.unpin(request.lease)
        return pb.UnpinResponse()

    async def Get(self, request: pb.GetRequest, context: Context) -> AsyncIterator[pb.GetResponse]:
        keys = await _keys(request.keys, context)
        await _layout(request.layout, context)
        desk = await self._client(request.arena_client, context)
        reader = None
        if desk is not None and request.lease:
            reader = ArenaReader(self._store, desk, self._pool, request.arena_client, request.lease, request.exact)
        at, before = 0, -1
        while before < at < len(keys):
            before = at
            rest = keys[at:]
            if reader is not None:
                async for responses in reader.read(rest, request.layout, self._clock_s):
                    at += len(responses)
                    for response in grouped(responses) if request.groups else responses:
                        yield response
            else:
                async for response in self._read(rest, request):
                    yield response
                    at += 1
            if self._remote is None or not request.sources or at == len(keys):
                return
            async for response in self._from_peers(keys[at:], at, request):
                yield response
                at += 1

    async def _read(self, keys: list[bytes], request: pb.GetRequest) -> AsyncIterator[pb.GetResponse]:
        """Payload from this host's own tiers, up to the first miss."""
        at, ended = 0, False
        while at < len(keys) and not ended:
            found, ended = await self._off_loop(self._fetch, keys, at, request.layout, request.exact)
            for item in found:
                yield get_response(item, self._clock_s())
            at += len(found)
        self._store.touch_chain(keys[:at])

    async def _from_peers(self, keys: list[bytes], at: int, request: pb.GetRequest) -> AsyncIterator[pb.GetResponse]:
        """Blocks of other hosts, kept here too as far as there is room; `keys` begin at `at` of the request's."""
        assert self._remote is not None
        sources = [source.behind(at) for source in read_sources(request.sources, at + len(keys))]
        given = [source for source in sources if source is not None]
        async with aclosing(self._remote.fetch(keys, request.layout, given, exact=request.exact)) as blocks:
            async for block in blocks:
                await self._off_loop(self._store.put, block)
                yield get_response(Found(block, self._remote.name), self._clock_s())

    def _fetch(self, keys: list[bytes], at: int, layout: bytes, exact: bool) -> tuple[list[Found], bool]:
        """The run of blocks from keys[at] on, a handful of bytes at most; True when a miss ended it."""
        found: list[Found] = []
        size = 0
        while at < len(keys) and size < READ_AHEAD_BYTES:
            item = self._store.get(keys[at], layout, exact=exact)
            if item is None:
                return found, True
            found.append(item)
            size += len(item.block.payload)
            at += 1
        return found, False

    async def Put(self, request_iterator: AsyncIterator[pb.PutRequest], context: Context) -> pb.PutResponse:
        counts = dict.fromkeys(Put, 0)
        chain: list[bytes] = []
        async for request in request_iterator:
            await _check_put(request, context)
            await self._learn(request, context)
            meta = meta_from(request.meta, self._clock_s())
            block = Block(request.key, request.parent, request.layout, request.checksum, request.payload, meta)
            if len(block.payload) > MAX_PAYLOAD_BYTES:
                counts[Put.REFUSED] += 1
                continue
            counts[await self._off_loop(self._store.put, block)] += 1
            chain.append(block.key)
        self._store.touch_chain(chain)
        return pb.PutResponse(stored=counts[Put.STORED], known=counts[Put.KNOWN], refused=counts[Put.REFUSED])

    async def _learn(self, request: pb.PutRequest | pb.CommitRequest, context: Context) -> None:
        """What the worker says of its layout, when it does."""
        if self._shapes is None or not request.HasField("shape"):
            return
        try:
            shape = read_shape(request.shape)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        else:
            self._shapes.tell(request.layout, shape, exact=request.exact)

    async def AttachArena(self, request: pb.AttachArenaRequest, context: Context) -> pb.AttachArenaResponse:
        desk = self._desk
        if desk is None:
            return pb.AttachArenaResponse()
        if not request.lock_name:
            return pb.AttachArenaResponse(folder=str(desk.folder.path))
        try:
            given = await self._off_loop(desk.attach, request.block_bytes, request.lock_name)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if given is None:
            return pb.AttachArenaResponse(folder=str(desk.folder.path))
        return pb.AttachArenaResponse(
            path=str(given.file.path),
            client=given.client,
            slot_bytes=given.file.slot_bytes,
            slots=given.file.slots,
            data_offset=given.file.map.data_offset,
            folder=str(desk.folder.path),
        )

    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.ReserveResponse:
        keys = await _keys(request.keys, context)
        await _layout(request.layout, context)
        await _namespace(request.meta.namespace, context)
        desk = await self._client(request.arena_client, context)
        if desk is None or not request.length:
            return pb.ReserveResponse()
        refs = desk.reserve(request.arena_client, keys, request.layout, request.length, request.meta.namespace)
        return pb.ReserveResponse(slots=map(ref_to, refs))

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitResponse:
        await _layout(request.layout, context)
        desk = await self._client(request.arena_client, context)
        if desk is None:
            return pb.CommitResponse(refused=len(request.filled))
        await self._learn(request, context)
        desk.give_up(request.arena_client, request.given_up)
        counts = dict.fromkeys(Put, 0)
        for item in request.filled:
            await _check_block(item.key, item.parent, item.meta.namespace, context)
        now_s = self._clock_s()
        filled = [
            (
                ref_from(item.slot),
                Block(item.key, item.parent, request.layout, item.slot.checksum, b"", meta_from(item.meta, now_s)),
            )
            for item in request.filled
        ]
        for outcome in await self._off_loop(desk.commit_many, request.arena_client, filled):
            counts[outcome] += 1
        self._store.touch_chain([item.key for item in request.filled])
        return pb.CommitResponse(stored=counts[Put.STORED], known=counts[Put.KNOWN], refused=counts[Put.REFUSED])

    async def _client(self, client: int, context: Context) -> ArenaDesk | None:
        """The desk for a call that names a client; None when it names none. Aborts for one that must attach again."""
        if not client:
            return None
        if self._desk is None or not self._desk.knows(client):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"arena_client: {client} is unknown to this store; attach again"
            )
        return self._desk

    async def Contains(self, request: pb.ContainsRequest, context: Context) -> pb.ContainsResponse:
        keys = await _keys(request.keys, context)
        await _layout(request.layout, context)
        return pb.ContainsResponse(tiers=[self._store.where(key, request.layout) for key in keys])

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
        keys = await _keys(request.keys, context)
        await _namespace(request.namespace, context)
        deleted = await self._off_loop(lambda: sum(self._store.delete(key) for key in keys))
        if request.namespace:
            deleted += await self._off_loop(self._store.delete_namespace, request.namespace)
        return pb.DeleteResponse(deleted=deleted)

    async def SetPinned(self, request: pb.SetPinnedRequest, context: Context) -> pb.SetPinnedResponse:
        keys = await _keys(request.keys, context)
        held = await self._off_loop(lambda: self._store.set_pinned(keys, pinned=request.pinned))
        return pb.SetPinnedResponse(held=held)

    async def WatchBlocks(
        self, request: pb.WatchBlocksRequest, context: Context
    ) -> AsyncIterator[pb.WatchBlocksResponse]:
        async for response in watch_blocks(self._store, self._store_id):
            yield response

    async def GetStats(self, request: pb.GetStatsRequest, context: Context) -> pb.GetStatsResponse:
        tiers = [
            pb.TierStats(
                name=tier.name,
                capacity_bytes=tier.capacity_bytes,
                used_bytes=tier.used_bytes,
                keys=tier.keys,
                hits=tier.hits,
                misses=tier.misses,
                corrupt=tier.corrupt,
            )
            for tier in self._store.tier_stats()
        ]
        return pb.GetStatsResponse(
            store_id=self._store_id, boot_id=self._boot_id, tiers=tiers, counters=self._store.counters()
        )

    async def _off_loop(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)


async def _keys(packed: bytes, context: Context) -> list[bytes]:
    if len(packed) % KEY_BYTES or len(packed) > MAX_KEYS * KEY_BYTES:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"keys: {len(packed)} bytes; give up to {MAX_KEYS} packed keys of {KEY_BYTES} bytes each",
        )
    return unpack_keys(packed)


async def _layout(layout: bytes, context: Context) -> None:
    if len(layout) != LAYOUT_BYTES:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"layout: {len(layout)} bytes; give the {LAYOUT_BYTES}-byte fingerprint"
        )


async def _namespace(namespace: bytes, context: Context) -> None:
    if len(namespace) not in (0, NAMESPACE_BYTES):
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"namespace: {len(namespace)} bytes; give {NAMESPACE_BYTES}, or none"
        )


async def _check_put(request: pb.PutRequest, context: Context) -> None:
    await _check_block(request.key, request.parent, request.meta.namespace, context)
    await _layout(request.layout, context)


async def _check_block(key: bytes, parent: bytes, namespace: bytes, context: Context) -> None:
    if len(key) != KEY_BYTES:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"key: {len(key)} bytes; give a {KEY_BYTES}-byte key")
    if len(parent) not in (0, KEY_BYTES):
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"parent: {len(parent)} bytes; give a {KEY_BYTES}-byte key, or none for the head of a chain",
        )
    await _namespace(namespace, context)
