"""Receiver: turns the pieces of one stream into whole, checked records; gives credit back as they are taken."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import xxhash
from octavo.rpc.stall import StallGuard

from octavo_kvstore.codecs.choice import LinkSpeed
from octavo_kvstore.peers.pieces import WINDOW_BYTES, PeerFailed, PeerStream, Piece, RecordHead

MAX_RECORD_BYTES = 64 * 2**20
"""More than any block has: a peer that claims it is wrong, and nothing is allocated for it."""


class PieceCorrupt(PeerFailed):
    """A piece or a record lacks its checksum."""


class PeerSilent(PeerFailed):
    """Nothing came within the stall limit."""


@dataclass(slots=True)
class Partial:
    """How much of the next record is here; it outlives the stream, so that another one can go on."""

    head: RecordHead | None = None
    data: bytearray = field(default_factory=bytearray)

    def clear(self) -> None:
        """Begins with the next record, or this one anew."""
        self.head, self.data = None, bytearray()


class Receiver:
    """Of one stream. `link` learns how fast pieces come while the peer has credit."""

    def __init__(
        self,
        stream: PeerStream,
        partial: Partial,
        count: int,
        link: LinkSpeed,
        stall_s: float,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stream = stream
        self._partial = partial
        self._count = count
        self._link = link
        self._stall_s = stall_s
        self._clock_s = clock_s
        self._guard = StallGuard(stall_s)
        self._ungranted_bytes = 0
        self._index = 0

    async def records(self) -> AsyncGenerator[tuple[RecordHead, bytes | memoryview], None]:
        """(head, record) of key 0, 1, ... up to the peer's first miss.

        Raises PeerFailed when the stream breaks, is silent for the stall limit, or carries what is wrong; `partial`
        then holds what was whole of the record under way. Pieces are read as they are taken, not ahead: what is under
        way waits in the transport, and a queue here would only make the memory of the blocks cold.
        """
        try:
            async with aclosing(self._stream.pieces()) as pieces:
                taken_s = self._clock_s()
                while not (piece := await self._next(pieces, taken_s)).end:
                    taken_s = self._clock_s()
                    record = self._take(piece)
                    await self._give_back(len(piece.data))
                    if record is not None:
                        yield record
                        self._index += 1
                        if self._index == self._count:
                            return
        finally:
            self._stream.cancel()

    async def _next(self, pieces: AsyncGenerator[Piece, None], taken_s: float) -> Piece:
        """The next piece; `taken_s`: when the one before was handed over."""
        asked_s = self._clock_s()
        try:
            with self._guard:
                piece = await anext(pieces, None)
        except TimeoutError as error:
            raise PeerSilent(f"silent for {self._stall_s:g} s") from error
        if piece is None:
            raise PeerFailed("the stream ended without an end")
        waited_s, held_s = self._clock_s() - asked_s, asked_s - taken_s
        # one that came while the block before was still in use says nothing of the link but that it is faster than that
        self._link.observe(len(piece.data), waited_s if waited_s < held_s else waited_s + held_s)
        return piece

    async def _give_back(self, size_bytes: int) -> None:
        self._ungranted_bytes += size_bytes
        if self._ungranted_bytes >= WINDOW_BYTES // 4:
            granted, self._ungranted_bytes = self._ungranted_bytes, 0
            await self._stream.grant(granted)

    def _take(self, piece: Piece) -> tuple[RecordHead, bytes | memoryview] | None:
        """Adds a piece; the record once it is whole."""
        if xxhash.xxh3_64_intdigest(piece.data) != piece.checksum:
            raise PieceCorrupt("a piece lacks its checksum")
        partial = self._partial
        if piece.index != self._index:
            raise PeerFailed(f"a piece of key {piece.index} came where key {self._index} was due")
        if piece.head is not None:
            self._begin(piece)
        head = partial.head
        if head is None or piece.offset != len(partial.data) or (head.record_bytes and not piece.data):
            raise PeerFailed("a piece came out of turn")
        if piece.offset + len(piece.data) > head.record_bytes:
            partial.clear()
            raise PeerFailed("a record is longer than its head says")
        if not piece.offset and len(piece.data) == head.record_bytes:
            record: bytes | memoryview = piece.data
            checksum = piece.checksum  # in one piece: nothing to copy, nothing to sum again
        else:
            partial.data += piece.data
            if len(partial.data) < head.record_bytes:
                return None
            record = bytes(partial.data)
            checksum = xxhash.xxh3_64_intdigest(record)
        partial.clear()
        if checksum != head.record_checksum:
            raise PieceCorrupt("a record lacks its checksum")
        return head, record

    def _begin(self, piece: Piece) -> None:
        """A head came: it goes on with the partial record when it is the same one, else that is dropped."""
        partial, head = self._partial, piece.head
        assert head is not None
        if head.record_bytes > MAX_RECORD_BYTES or head.payload_bytes > MAX_RECORD_BYTES:
            raise PeerFailed(f"a record claims {max(head.record_bytes, head.payload_bytes)} bytes")
        same = partial.head is not None and partial.head.record_checksum == head.record_checksum
        if not (same and piece.offset == len(partial.data)):
            partial.clear()
        partial.head = head
