"""The asking side of Fetch on gRPC: one channel per address, one stream per run of keys."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc.aio
from octavo.packing import pack_keys
from octavo.v1 import kvstore_pb2 as pb

from octavo_kvstore.peers.pieces import FETCH, WINDOW_BYTES, Ask, PeerFailed, Piece, RecordHead
from octavo_kvstore.piece_wire import split_piece
from octavo_kvstore.wire import meta_from, read_shape

log = logging.getLogger("octavo.kvstore.remote")
_BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, ConnectionError, asyncio.InvalidStateError)
EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 - missing in grpc-stubs


class PeerChannels:
    """Channels by address, made when first needed. Used on the event loop alone."""

    def __init__(self, open_channel: Callable[[str], grpc.aio.Channel]) -> None:
        self._open_channel = open_channel
        self._channels: dict[str, grpc.aio.Channel] = {}

    def dial(self, address: str, ask: Ask) -> FetchStream:
        """A Fetch that has been opened; it fails later when nobody answers."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open_channel(address)
        fetch: Any = channel.stream_stream(FETCH, pb.FetchRequest.SerializeToString, None)
        return FetchStream(fetch(), ask)

    async def close(self) -> None:
        """Ends every stream and channel."""
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close(None)


class FetchStream:
    """One call; see PeerStream."""

    def __init__(self, call: Any, ask: Ask) -> None:
        self._call = call
        self._ask = ask

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        ask = self._ask
        try:
            await self._call.write(
                pb.FetchRequest(
                    credit_bytes=WINDOW_BYTES,
                    open=pb.FetchOpen(
                        keys=pack_keys(ask.keys),
                        layout=ask.layout,
                        exact=ask.exact,
                        link_bytes_per_s=ask.link_bytes_per_s,
                        codec=ask.codec,
                        offset=ask.offset,
                        record_checksum=ask.record_checksum,
                        form=ask.form,
                    ),
                )
            )
            while (message := await self._call.read()) is not EOF:
                piece = _piece(message)
                yield piece
                if piece.end:
                    return
            code = await self._call.code()
            if code is not grpc.StatusCode.OK:
                raise PeerFailed(f"{code.name}: {await self._call.details()}")
        except _BROKEN as error:
            raise PeerFailed(_reason(error)) from error

    async def grant(self, size_bytes: int) -> None:
        try:
            await self._call.write(pb.FetchRequest(credit_bytes=size_bytes))
        except _BROKEN as error:  # all was sent already, or `pieces` is about to say what broke
            log.debug("credit came too late: %s", _reason(error))

    def cancel(self) -> None:
        self._call.cancel()


def _piece(raw: bytes) -> Piece:
    head = None
    try:
        message, data = split_piece(raw)
    except ValueError as error:
        raise PeerFailed(str(error)) from error
    if message.HasField("head"):
        given = message.head
        try:
            shape = read_shape(given.shape) if given.HasField("shape") else None
        except ValueError as error:
            raise PeerFailed(str(error)) from error
        head = RecordHead(
            parent=given.parent,
            form=given.form,
            record_bytes=given.record_bytes,
            record_checksum=given.record_checksum,
            payload_bytes=given.payload_bytes,
            payload_checksum=given.payload_checksum,
            shape=shape,
            meta=meta_from(given.meta, time.time()),
        )
    return Piece(message.index, message.offset, data, message.checksum, head, message.end)


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
