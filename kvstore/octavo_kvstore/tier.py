"""The contract of a tier: KV blocks by content key, each with its layout fingerprint and checksum.

`tests/contracts/test_tier_contract.py` runs one suite over every implementation.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic

from octavo_kvstore.block import Block, BlockMeta, check_key
from octavo_kvstore.index import Place, TierIndex


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
    expired: int = 0


class Lane(abc.ABC):
    """One reader's place on a medium that gives what lies in order faster. Close it; reads with it may come from any one thread."""

    @abc.abstractmethod
    def close(self) -> None:
        """Idempotent."""


class Tier(abc.ABC):
    """A bounded place for blocks. Every method may be called from any thread.

    A tier never raises for the state of its medium (full, corrupt, gone): that is a miss, or a refusal. It raises
    ValueError only for a key or layout of a wrong length, which is a caller's bug.
    """

    name: str
    on_lost: Callable[[list[bytes]], None] = staticmethod(lambda keys: None)
    """Hears, from any thread, the keys that a failed medium took along or that others put into it; set once by the owner."""

    @abc.abstractmethod
    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        """Stores blocks, all in one commit where the medium has commits.

        Returns the outcome of each block, and the keys that were evicted for them. A key that is held under the same
        layout is KNOWN, and only its meta data is merged; under another layout it is replaced. REFUSED leaves the tier without the
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

    def in_a_row(self, keys: Sequence[bytes], layout: bytes) -> int:
        """How many leading keys lie one behind the other on the medium, for a lane to read; 0: it has no such order."""
        return 0

    def lane(self) -> Lane | None:
        """For `read_into` of what `in_a_row` counted; None: the medium has no such order."""
        return None

    def read_into(self, key: bytes, layout: bytes, room: memoryview, lane: Lane | None = None) -> Block | None:
        """`get` whose payload lies in `room` (of at least its length) when it is a hit; whole pages of `room` may be written."""
        block = self.get(key, layout)
        if block is None or len(block.payload) > len(room):
            return None
        payload = room[: len(block.payload)]
        payload[:] = block.payload
        return Block(key, block.parent, block.layout, block.checksum, payload, block.meta)

    @abc.abstractmethod
    def contains(self, key: bytes, layout: bytes | None = None) -> bool:
        """Whether `key` is held, under `layout` unless that is None. Mutates nothing, reads no payload."""

    @abc.abstractmethod
    def touch(self, key: bytes) -> None:
        """Counts a use for the order of eviction; an unknown key is a no-op. Reads no payload."""

    @abc.abstractmethod
    def refresh(self, key: bytes, meta: BlockMeta) -> None:
        """Merges the meta data of a second put (BlockMeta.merged) without its payload; an unknown key is a no-op."""

    @abc.abstractmethod
    def sweep(self) -> list[bytes]:
        """Deletes what is unreadable for its age and gives its room back; returns those keys. May write to the medium."""

    @abc.abstractmethod
    def of_namespace(self, namespace: bytes) -> list[bytes]:
        """Every key of a namespace, unreadable ones too; a snapshot."""

    def erase(self, namespace: bytes) -> bool:
        """Destroys the key of a namespace's records before it returns; False where nothing is encrypted, or there is none."""
        return False

    @abc.abstractmethod
    def layout_of(self, key: bytes) -> bytes:
        """The layout fingerprint of a held key; empty: not held."""

    @abc.abstractmethod
    def parent_of(self, key: bytes) -> bytes:
        """The parent of a held key; empty: none, or the key is not held."""

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


class IndexedTier(Tier, Generic[Place]):
    """What the tiers with an index in memory share. A subclass keeps the payload, and takes `_lock` around the index."""

    def __init__(self, index: TierIndex[Place]) -> None:
        self._index = index
        self._lock = threading.Lock()

    def contains(self, key: bytes, layout: bytes | None = None) -> bool:
        check_key(key)
        return self._index.find(key, layout) is not None

    def touch(self, key: bytes) -> None:
        with self._lock:
            self._index.touch(key)

    def refresh(self, key: bytes, meta: BlockMeta) -> None:
        with self._lock:
            self._index.refresh(key, meta)

    def keys(self) -> list[bytes]:
        with self._lock:
            return self._index.keys()

    def of_namespace(self, namespace: bytes) -> list[bytes]:
        with self._lock:
            return self._index.of_namespace(namespace)

    def sweep(self) -> list[bytes]:
        with self._lock:
            over = list(self._index.over())
        gone = [key for key in over if self._forget_over(key)]
        with self._lock:
            self._index.expired += len(gone)
        return gone

    def _forget_over(self, key: bytes) -> bool:
        """Deletes a key whose time was over a moment ago, unless it was put anew since."""
        with self._lock:
            if self._index.find(key) is not None:
                return False
        return self.delete(key)

    def parent_of(self, key: bytes) -> bytes:
        entry = self._index.raw(key)
        return entry.parent if entry is not None else b""

    def layout_of(self, key: bytes) -> bytes:
        entry = self._index.find(key)
        return entry.layout if entry is not None else b""

    def stats(self) -> TierStats:
        with self._lock:
            index = self._index
            return TierStats(
                name=self.name,
                capacity_bytes=index.capacity_bytes,
                used_bytes=index.used_bytes,
                keys=len(index),
                hits=index.hits,
                misses=index.misses,
                corrupt=index.corrupt,
                evicted=index.evicted,
                refused=index.refused,
                expired=index.expired,
            )
