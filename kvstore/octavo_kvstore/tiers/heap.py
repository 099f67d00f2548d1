"""The DRAM tier without shared memory: payloads as Python bytes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from octavo_kvstore.block import Block, check_block, check_key
from octavo_kvstore.index import OVERHEAD_BYTES, Clock, Entry, IsPinned, TierIndex
from octavo_kvstore.limits import NO_LIMITS, TierLimits
from octavo_kvstore.tier import IndexedTier, Put


class HeapTier(IndexedTier[Block]):
    """Bounded by payload bytes plus a fixed overhead per block; what is put is shared, not copied."""

    name = "dram"

    def __init__(
        self,
        capacity_bytes: int,
        is_pinned: IsPinned = lambda key: False,
        limits: TierLimits = NO_LIMITS,
        clock_s: Clock = time.time,
    ) -> None:
        super().__init__(TierIndex(capacity_bytes, is_pinned, limits, clock_s))
        self._closed = False

    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        for block in blocks:
            check_block(block)
        evicted: list[tuple[bytes, Entry[Block]]] = []
        with self._lock:
            outcomes = [self._put_locked(block, evicted) for block in blocks]
            return outcomes, [key for key, _ in evicted if key not in self._index]

    def _put_locked(self, block: Block, evicted: list[tuple[bytes, Entry[Block]]]) -> Put:
        if self._index.known(block):
            return Put.KNOWN
        if block.key in self._index:  # under another layout, or its time is over
            self._index.leave(block.key)
        if not isinstance(block.payload, bytes):
            block = replace(block, payload=bytes(block.payload))  # a view is of somebody else's memory
        size = len(block.payload) + OVERHEAD_BYTES
        if self._closed or not self._index.make_room({block.meta.namespace: size}, evicted):
            self._index.refused += 1
            return Put.REFUSED
        entry = Entry(block.parent, block.layout, block.checksum, len(block.payload), size, block.meta, block)
        self._index.enter(block.key, entry)
        return Put.STORED

    def get(self, key: bytes, layout: bytes) -> Block | None:
        check_key(key)
        with self._lock:
            entry = self._index.find(key, layout)
            if entry is None:
                self._index.misses += 1
                return None
            self._index.touch(key)
        block = entry.place
        intact = block.is_intact()  # outside the lock: a pass over the whole payload
        with self._lock:
            if intact:
                self._index.hits += 1
                return Block(key, block.parent, block.layout, block.checksum, block.payload, entry.meta)
            self._index.corrupt += 1
            self._index.misses += 1
            if self._index.raw(key) is entry:
                self._index.leave(key)
            return None

    def delete(self, key: bytes) -> bool:
        check_key(key)
        with self._lock:
            if key not in self._index:
                return False
            self._index.leave(key)
            return True

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._index.clear()
