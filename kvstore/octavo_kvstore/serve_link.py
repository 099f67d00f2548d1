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

from octavo_kvstore.block import KEY_BYTES, LAYOUT_BYTES, REMOTE, Block
from octavo_kvstore.codecs.choice import Chooser
from octavo_kvstore.codecs.forms import BY_NAME, LADDERS, RAW, Form
from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.codecs.shapes import ShapeTable
from octavo_kvstore.peers.pieces import FETCH, PIECE_BYTES
from octavo_kvstore.piece_wire import join_piece
from octavo_kvstore.store import Store
from octavo_kvstore.wire import meta_to, write_shape

MAX_FETCHES = 16
"""At once; another one is refused, which is a miss to its caller."""
MAX_KEYS = 65_536
CREDIT_LIMIT_S = 10.0
"""A caller that gives no credit for this long has stopped reading."""
LINGER_S = 2.0
"""How long a call stays open behind its end, for its caller to leave first."""
READ_THREADS = 2
READ_AHEAD_BYTES = 2 * 2**20

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
        self.gone = False
        """Credit was needed that will not come."""

    def add(self, size_bytes: int) -> None:
        self._left += size_bytes
        self._more.set()

    def end(self) -> None:
        """The caller will give no more."""
        self.over = True
        self._more.set()

    async def take(self, size_bytes: int) -> bool:
        """Waits until `size_bytes` may be sent; False when the caller has left. Raises TimeoutError."""
        if self._left < size_bytes:
            async with asyncio.timeout(CREDIT_LIMIT_S):
                while self._left < size_bytes:
                    if self.over:
                        self.gone = True
                        return False
                    self._more.clear()
                    await self._more.wait()
        self._left -= size_bytes
        return True


class PeerServicer:
    """What other hosts may ask of this one: Fetch alone, so every other method is UNIMPLEMENTED there."""

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

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offers Fetch on a server; its answers are bytes already (piece_wire.py)."""
        service, method = FETCH.strip("/").split("/")
        handler = grpc.stream_stream_rpc_method_handler(
            self.Fetch, request_deserializer=pb.FetchRequest.FromString, response_serializer=bytes
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))

    async def Fetch(self, request_iterator: AsyncIterator[pb.FetchRequest], context: Context) -> AsyncIterator[bytes]:
        """See the rpc's comment in kvstore.proto."""
        first = await anext(request_iterator, None)
        if first is None or not first.HasField("open"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "open: the first message must have it")
        assert first is not None
        ask = first.open
        await _check(ask, context)
        if self._running >= MAX_FETCHES:
            self.refused += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_FETCHES} fetches are under way; ask later")
        credit = _Credit()
        credit.add(first.credit_bytes)
        granting = asyncio.create_task(_follow(request_iterator, credit))
        self._running += 1
        try:
            try:
                async for piece in self._pieces(ask, credit):
                    yield piece
            finally:
                self._running -= 1
            # a call that ends while its caller still writes credit is an error there, and loses what it has not read
            await asyncio.wait({granting}, timeout=LINGER_S)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no credit for {CREDIT_LIMIT_S:g} s")
        finally:
            granting.cancel()
            await asyncio.gather(granting, return_exceptions=True)

    async def _pieces(self, ask: pb.FetchOpen, credit: _Credit) -> AsyncIterator[bytes]:
        keys = unpack_keys(ask.keys)
        index, ahead = 0, self._read(keys, 0, ask)
        while index < len(keys):
            records, ended = await ahead
            # a handful of records ahead: the disk and the codec work while the network does
            following = index + len(records)
            if not ended and following < len(keys):
                ahead = self._read(keys, following, ask)
            for record in records:
                async for piece in self._pieces_of(record, index, ask, credit):
                    yield piece
                if credit.gone:
                    return
                index += 1
                self.blocks_sent += 1
            if ended:
                break
        yield pb.FetchResponse(index=index, end=True).SerializeToString()

    async def _pieces_of(self, record: _Record, index: int, ask: pb.FetchOpen, credit: _Credit) -> AsyncIterator[bytes]:
        same = record.head.record_checksum == ask.record_checksum
        start = ask.offset if not index and same and ask.offset < len(record.data) else 0
        view = memoryview(record.data)
        for offset in range(start, max(len(view), 1), PIECE_BYTES):
            data = view[offset : offset + PIECE_BYTES]
            if not await credit.take(len(data)):
                return
            whole = len(data) == len(view)
            checksum = record.head.record_checksum if whole else xxhash.xxh3_64_intdigest(data)
            head = record.head if offset == start else None
            yield join_piece(pb.FetchResponse(index=index, offset=offset, checksum=checksum, head=head), data)
            self.bytes_sent += len(data)

    def _chooser(self, codec: str) -> Chooser:
        chooser = self._choosers.get(codec)
        return chooser if chooser is not None else self._choosers.setdefault(codec, Chooser(codec))

    def _read(self, keys: list[bytes], index: int, ask: pb.FetchOpen) -> asyncio.Future[tuple[list[_Record], bool]]:
        return asyncio.get_running_loop().run_in_executor(self._pool, self._run, keys, index, ask)

    def _run(self, keys: list[bytes], index: int, ask: pb.FetchOpen) -> tuple[list[_Record], bool]:
        """In a thread: records from keys[index] on, a few megabytes at most; True when a miss ended them."""
        records: list[_Record] = []
        size = 0
        while index < len(keys) and size < READ_AHEAD_BYTES:
            record = self._record(keys[index], ask, "" if index else ask.form)
            if record is None:
                return records, True
            records.append(record)
            size += len(record.data)
            index += 1
        return records, False

    def _record(self, key: bytes, ask: pb.FetchOpen, wanted: str) -> _Record | None:
        """In a thread: one block from this host's own tiers, coded for the caller's link; None is a miss."""
        found = self._store.get(key, ask.layout, exact=ask.exact)
        if found is None or not found.block.meta.may_lie_in(REMOTE):
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
