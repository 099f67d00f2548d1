"""The contract of a tier: KV blocks by content key, each with its layout fingerprint and checksum.

`tests/contracts/test_tier_contract.py` runs one suite over every implementation.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import xxhash

KEY_BYTES = 32
LAYOUT_BYTES = 32

IsPinned = Callable[[bytes], bool]
"""Asked before a key is evicted; must not call back into the tier."""


@dataclass(frozen=True, slots=True)
class Block:
    """One KV block: all layers of kv_block_tokens tokens, contiguous."""

    key: bytes
    """32 bytes."""
    parent: bytes
    """32 bytes, or empty for the head of a chain."""
    layout: bytes
    """32-byte layout fingerprint; a reader that expects another one gets a miss."""
    checksum: int
    """xxh3-64 of the payload, from the worker that computed it."""
    payload: bytes

    def is_intact(self) -> bool:
        """Whether the payload still has its checksum."""
        return xxhash.xxh3_64_intdigest(self.payload) == self.checksum


class Put(Enum):
    """What became of a block that was put."""

    STORED = "stored"
    KNOWN = "known"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class TierStats:
    """Sizes in bytes; counters since the tier was opened."""

    name: str
    capacity_bytes: int
    used_bytes: int
    keys: int
    hits: int
    misses: int
    corrupt: int
    evicted: int
    refused: int


class Tier(abc.ABC):
    """A bounded place for blocks. Every method may be called from any thread.

    A tier never raises for the state of its medium (full, corrupt, gone): that is a miss, or a refusal. It raises
    ValueError only for a key or layout of a wrong length, which is a caller's bug.
    """

    name: str
    on_lost: Callable[[list[bytes]], None] = staticmethod(lambda keys: None)
    """Hears, from any thread, the keys that a failed medium took along; set once by the owner."""

    @abc.abstractmethod
    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        """Stores blocks, all in one commit where the medium has commits.

        Returns the outcome of each block, and the keys that were evicted for them. A key that is held under the same
        layout is KNOWN and left as it is; under another layout it is replaced. REFUSED leaves the tier without the
        block: too large, nothing left that may be evicted, or the medium failed. Payloads are kept, not copied, by
        tiers in memory: do not mutate them.
        """

    def put(self, block: Block) -> tuple[Put, list[bytes]]:
        """`put_many` of one block."""
        outcomes, evicted = self.put_many([block])
        return outcomes[0], evicted

    @abc.abstractmethod
    def get(self, key: bytes, layout: bytes) -> Block | None:
        """The block, checked against its checksum, or None. A hit counts as a use for the order of eviction.

        A record that fails its check is forgotten at once and counted in `corrupt`; it is never returned.
        """

    @abc.abstractmethod
    def contains(self, key: bytes, layout: bytes | None = None) -> bool:
        """Whether `key` is held, under `layout` unless that is None. Mutates nothing, reads no payload."""

    @abc.abstractmethod
    def touch(self, key: bytes) -> None:
        """Counts a use for the order of eviction; an unknown key is a no-op. Reads no payload."""

    @abc.abstractmethod
    def delete(self, key: bytes) -> bool:
        """Forgets a key, pinned or not, before it returns; True when it was held."""

    @abc.abstractmethod
    def keys(self) -> list[bytes]:
        """Every key held, in no particular order; a snapshot."""

    @abc.abstractmethod
    def stats(self) -> TierStats:
        """A snapshot."""

    @abc.abstractmethod
    def close(self) -> None:
        """Makes durable what the medium can keep; afterwards gets miss and puts are refused. Idempotent."""


def check_key(key: bytes) -> None:
    """Raises ValueError unless `key` has 32 bytes."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"key: {len(key)} bytes, must be {KEY_BYTES}")


def check_block(block: Block) -> None:
    """Raises ValueError naming the field of a wrong length."""
    check_key(block.key)
    if len(block.parent) not in (0, KEY_BYTES):
        raise ValueError(f"parent: {len(block.parent)} bytes, must be 0 or {KEY_BYTES}")
    if len(block.layout) != LAYOUT_BYTES:
        raise ValueError(f"layout: {len(block.layout)} bytes, must be {LAYOUT_BYTES}")
