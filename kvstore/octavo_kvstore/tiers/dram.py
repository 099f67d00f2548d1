"""The DRAM tier: payloads as Python bytes, bounded in bytes, evicted leaf-first by last use."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from octavo_kvstore.policy import LeafFirstLru
from octavo_kvstore.tier import Block, IsPinned, Put, Tier, TierStats, check_block, check_key

OVERHEAD_BYTES = 512
"""What a block costs beside its payload: objects, key, parent, dict and heap entries (measured with sys.getsizeof)."""


class DramTier(Tier):
    """Bounded by payload bytes plus a fixed overhead per block; what is put is shared, not copied."""

    name = "dram"

    def __init__(self, capacity_bytes: int, is_pinned: IsPinned = lambda key: False) -> None:
        self._capacity_bytes = capacity_bytes
        self._is_pinned = is_pinned
        self._lock = threading.Lock()
        self._blocks: dict[bytes, Block] = {}
        self._order = LeafFirstLru()
        self._used_bytes = 0
        self._hits = self._misses = self._corrupt = self._evicted = self._refused = 0
        self._closed = False

    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        for block in blocks:
            check_block(block)
        evicted: list[bytes] = []
        with self._lock:
            outcomes = [self._put_locked(block, evicted) for block in blocks]
            return outcomes, [key for key in evicted if key not in self._blocks]

    def _put_locked(self, block: Block, evicted: list[bytes]) -> Put:
        known = self._blocks.get(block.key)
        if known is not None:
            if known.layout == block.layout:
                self._order.touch(block.key)
                return Put.KNOWN
            self._forget_locked(block.key)
        size = _size_bytes(block)
        if self._closed or size > self._capacity_bytes:
            self._refused += 1
            return Put.REFUSED
        while self._used_bytes + size > self._capacity_bytes:
            victim = self._order.pop_victim(self._is_pinned)
            if victim is None:
                self._refused += 1
                return Put.REFUSED
            self._used_bytes -= _size_bytes(self._blocks.pop(victim))
            self._evicted += 1
            evicted.append(victim)
        self._blocks[block.key] = block
        self._order.add(block.key, block.parent)
        self._used_bytes += size
        return Put.STORED

    def get(self, key: bytes, layout: bytes) -> Block | None:
        check_key(key)
        with self._lock:
            block = self._blocks.get(key)
            if block is None or block.layout != layout:
                self._misses += 1
                return None
            self._order.touch(key)
        intact = block.is_intact()  # outside the lock: a pass over the whole payload
        with self._lock:
            if intact:
                self._hits += 1
                return block
            self._corrupt += 1
            self._misses += 1
            if self._blocks.get(key) is block:
                self._forget_locked(key)
            return None

    def contains(self, key: bytes, layout: bytes | None = None) -> bool:
        check_key(key)
        block = self._blocks.get(key)
        return block is not None and layout in (None, block.layout)

    def touch(self, key: bytes) -> None:
        with self._lock:
            self._order.touch(key)

    def delete(self, key: bytes) -> bool:
        check_key(key)
        with self._lock:
            if key not in self._blocks:
                return False
            self._forget_locked(key)
            return True

    def keys(self) -> list[bytes]:
        with self._lock:
            return list(self._blocks)

    def stats(self) -> TierStats:
        with self._lock:
            return TierStats(
                name=self.name,
                capacity_bytes=self._capacity_bytes,
                used_bytes=self._used_bytes,
                keys=len(self._blocks),
                hits=self._hits,
                misses=self._misses,
                corrupt=self._corrupt,
                evicted=self._evicted,
                refused=self._refused,
            )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._blocks.clear()
            self._order = LeafFirstLru()
            self._used_bytes = 0

    def _forget_locked(self, key: bytes) -> None:
        self._used_bytes -= _size_bytes(self._blocks.pop(key))
        self._order.remove(key)


def _size_bytes(block: Block) -> int:
    return len(block.payload) + OVERHEAD_BYTES
