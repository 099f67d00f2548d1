"""The answering side of Fetch: records of what this host holds, in pieces, never more than the caller has credit for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
import xxhash
from octavo.packing import unpack_keys
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc

from octavo_kvstore.block import KEY_BYTES, LAYOUT_BYTES, Block
from octavo_kvstore.codecs.choice import Chooser
from octavo_kvstore.codecs.forms import BY_NAME, LADDERS, RAW, Form
from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.codecs.shapes import ShapeTable
from octavo_kvstore.peers.pieces import PIECE_BYTES
from octavo_kvstore.store import Store
from octavo_kvstore.wire import meta_to, write_shape

MAX_FETCHES = 16
"""At once; another one is refused, which is a miss to its caller."""
MAX_KEYS = 65_536
CREDIT_LIMIT_S = 10.0
"""A caller that gives no credit for this long has stopped reading."""
READ_THREADS = 2

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class _Record:
    head: pb.FetchHead
    data: bytes


class _Credit:
    """Bytes that may still be sent."""

    def __init__(self) -> None:
        self._left = 0
        self._more = asyncio.Event()
        self.over = False

    def add(self, size_bytes: int) -> None:
        self._left += size_bytes
        self._more.set()

    def end(self) -> None:
        """The caller will give no more."""
        self.over = True
        self._more.set()

    async def take(self, size_bytes: int) -> bool:
        """Waits until `size_bytes` may be sent; False when the caller has left. Raises TimeoutError."""
        async with asyncio.timeout(CREDIT_LIMIT_S):
            while self._left < size_bytes:
                if self.over:
                    return False
                self._more.clear()
                await self._more.wait()
        self._left -= size_bytes
        return True


class PeerServicer(kvstore_pb2_grpc.KvStoreServiceServicer):
    """KvStoreService for other hosts: Fetch alone; every other method is UNIMPLEMENTED there."""

    def __init__(self, store: Store, shapes: ShapeTable, chooser: Chooser) -> None:
        """`chooser` codes for callers whose codec is this host's own; one for each other codec is made when it is asked for."""
        self._store = store
        self._shapes = shapes
        self._choosers = {chooser.codec: chooser}
        self._pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="kvstore-peer")
        self._running = 0
        self.blocks_sent = self.bytes_sent = self.refused = 0

    def close(self) -> None:
        """Lets running reads end and starts no new ones; blocks."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def figures(self) -> dict[str, float]:
        """Named as in instruments.py."""
        return {
            "peer_blocks_sent": float(self.blocks_sent),
            "peer_bytes_sent": float(self.bytes_sent),
            "peer_refused": float(self.refused),
        }

    async def Fetch(
        self, request_iterator: AsyncIterator[pb.FetchRequest], context: Context
    ) -> AsyncIterator[pb.FetchResponse]:
        first = await anext(request_iterator, None)
        if first is None or not first.HasField("open"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "open: the first message must have it")
        assert first is not None
        ask = first.open
        await _check(ask, context)
        if self._running >= MAX_FETCHES:
            self.refused += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_FETCHES} fetches are under way; ask later")
        self._running += 1
        credit = _Credit()
        credit.add(first.credit_bytes)
        granting = asyncio.create_task(_follow(request_iterator, credit))
        try:
            async for response in self._pieces(ask, credit):
                yield response
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no credit for {CREDIT_LIMIT_S:g} s")
        finally:
            self._running -= 1
            granting.cancel()
            await asyncio.gather(granting, return_exceptions=True)

    async def _pieces(self, ask: pb.FetchOpen, credit: _Credit) -> AsyncIterator[pb.FetchResponse]:
        keys = unpack_keys(ask.keys)
        ahead = self._read(keys[0], ask, ask.form) if keys else None
        for index in range(len(keys)):
            record = await ahead if ahead is not None else None
            # one record ahead: the disk and the codec work while the network does
            ahead = self._read(keys[index + 1], ask, "") if record and index + 1 < len(keys) else None
            if record is None:
                yield pb.FetchResponse(index=index, end=True)
                return
            same = record.head.record_checksum == ask.record_checksum
            start = ask.offset if not index and same and ask.offset < len(record.data) else 0
            view = memoryview(record.data)
            for offset in range(start, max(len(view), 1), PIECE_BYTES):
                data = bytes(view[offset : offset + PIECE_BYTES]) if len(view) > PIECE_BYTES or start else record.data
                if not await credit.take(len(data)):
                    return
                whole = len(data) == len(record.data)
                yield pb.FetchResponse(
                    index=index,
                    offset=offset,
                    data=data,
                    checksum=record.head.record_checksum if whole else xxhash.xxh3_64_intdigest(data),
                    head=record.head if offset == start else None,
                )
                self.bytes_sent += len(data)
            self.blocks_sent += 1
        yield pb.FetchResponse(index=len(keys), end=True)

    def _chooser(self, codec: str) -> Chooser:
        chooser = self._choosers.get(codec)
        return chooser if chooser is not None else self._choosers.setdefault(codec, Chooser(codec))

    def _read(self, key: bytes, ask: pb.FetchOpen, form: str) -> asyncio.Future[_Record | None]:
        return asyncio.get_running_loop().run_in_executor(self._pool, self._record, key, ask, form)

    def _record(self, key: bytes, ask: pb.FetchOpen, wanted: str) -> _Record | None:
        """In a thread: one block from this host's own tiers, coded for the caller's link; None is a miss."""
        found = self._store.get(key, ask.layout, exact=ask.exact)
        if found is None:
            return None
        block, payload = found.block, bytes(found.block.payload)
        told = self._shapes.get(ask.layout)
        shape = told.shape if told else None
        exact = ask.exact or bool(told and told.exact) or block.meta.lossy  # quantized once at most
        form, data = None, None
        if wanted in BY_NAME and shape is not None and len(payload) == shape.payload_bytes:
            form = BY_NAME[wanted]  # to go on with a record, it must be the same bytes
            data = None if exact and form.lossy else form.encode(payload, shape)
        if data is None or form is None:
            chooser = self._chooser(ask.codec)
            form, data = chooser.encode(payload, shape, exact=exact, link_bytes_per_s=ask.link_bytes_per_s)
        return _Record(_head(block, form, data, shape), data)


def _head(block: Block, form: Form, data: bytes, shape: PayloadShape | None) -> pb.FetchHead:
    return pb.FetchHead(
        parent=block.parent,
        form=form.name,
        record_bytes=len(data),
        record_checksum=block.checksum if form is RAW else xxhash.xxh3_64_intdigest(data),
        payload_bytes=len(block.payload),
        payload_checksum=block.checksum,
        shape=write_shape(shape),
        meta=meta_to(replace(block.meta, pinned=False), time.time()),  # a pin is of this host alone
    )


async def _follow(requests: AsyncIterator[pb.FetchRequest], credit: _Credit) -> None:
    try:
        async for request in requests:
            credit.add(request.credit_bytes)
    finally:
        credit.end()


async def _check(ask: pb.FetchOpen, context: Context) -> None:
    if len(ask.keys) % KEY_BYTES or len(ask.keys) > MAX_KEYS * KEY_BYTES:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"open.keys: {len(ask.keys)} bytes; give up to {MAX_KEYS} packed keys of {KEY_BYTES} bytes each",
        )
    if len(ask.layout) != LAYOUT_BYTES:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"open.layout: {len(ask.layout)} bytes; give the {LAYOUT_BYTES}-byte fingerprint",
        )
    if ask.codec not in LADDERS:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"open.codec: {ask.codec!r} is unknown; use {', '.join(LADDERS)}"
        )
