"""What travels between two kvstores: a record per block, in pieces, each with its checksum."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from octavo_kvstore.block import BlockMeta
from octavo_kvstore.codecs.shape import PayloadShape

FETCH = "/octavo.v1.KvStoreService/Fetch"
PIECE_BYTES = 512 * 2**10
"""Payload of one message; a block of the default model fits whole."""
WINDOW_BYTES = 8 * 2**20
"""Credit: how much may be under way or wait at the reader."""


class PeerFailed(Exception):
    """The peer cannot be reached, broke its stream, said no, or sent what is wrong; the text says which."""


@dataclass(frozen=True, slots=True)
class RecordHead:
    """What a reader must know of a block's record before it can be decoded."""

    parent: bytes
    form: str
    record_bytes: int
    record_checksum: int
    """xxh3-64 of the whole record."""
    payload_bytes: int
    payload_checksum: int
    """Of the payload that was coded; a lossy form gives another one back."""
    shape: PayloadShape | None
    meta: BlockMeta


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the record of the key at `index`, or the end of all."""

    index: int
    offset: int
    data: bytes | memoryview
    checksum: int
    """xxh3-64 of `data`."""
    head: RecordHead | None
    """With the first piece that a stream sends of a record."""
    end: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of a peer. The last three go on with the first key's record where another stream broke."""

    keys: tuple[bytes, ...]
    layout: bytes
    exact: bool
    codec: str
    link_bytes_per_s: float
    offset: int = 0
    record_checksum: int = 0
    form: str = ""


class PeerStream(Protocol):
    """One Fetch under way."""

    def pieces(self) -> AsyncGenerator[Piece, None]:
        """In order; ends after the piece with `end`. Raises PeerFailed when the stream is over before that."""

    async def grant(self, size_bytes: int) -> None:
        """Lets the peer send so much more; a no-op once the stream is over."""

    def cancel(self) -> None:
        """Gives up; what is under way is dropped. Idempotent."""
