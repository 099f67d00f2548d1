"""What a tier holds, in memory: the entry of every key, bytes in use, the order of eviction, quotas, ages, counters.

No lock: the tier that owns it serializes calls. No I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo_kvstore.block import Block, BlockMeta
from octavo_kvstore.limits import NO_LIMITS, TierLimits
from octavo_kvstore.policy import ValueOrder

IsPinned = Callable[[bytes], bool]
"""Asked before a key is evicted; must not call back into the tier."""
Clock = Callable[[], float]
"""Unix seconds: life times survive restarts, so they cannot be told by a monotonic clock."""
Place = TypeVar("Place")
OVERHEAD_BYTES = 512
"""What a block in memory costs beside its payload: objects, key, parent, dict and heap entries (measured with sys.getsizeof)."""


@dataclass(slots=True, eq=False)
class Entry(Generic[Place]):
    """One held block, without its payload."""

    parent: bytes
    layout: bytes
    checksum: int
    length: int
    """Bytes of payload."""
    size_bytes: int
    """What it takes of the tier."""
    meta: BlockMeta
    place: Place
    """Where the tier keeps the payload."""


class TierIndex(Generic[Place]):
    """Entries by key, bounded by `capacity_bytes` and by each namespace's quota."""

    def __init__(
        self, capacity_bytes: int, is_pinned: IsPinned, limits: TierLimits = NO_LIMITS, clock_s: Clock = time.time
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.allowed_bytes = capacity_bytes
        """Less than the capacity while the medium gives less."""
        self.used_bytes = 0
        self.hits = self.misses = self.corrupt = self.evicted = self.refused = self.expired = 0
        self._is_pinned = is_pinned
        self._limits = limits
        self._clock_s = clock_s
        self._entries: dict[bytes, Entry[Place]] = {}
        self._order = ValueOrder(limits.has_quota)
        self._used_by: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def keys(self) -> list[bytes]:
        """Every key that can be read now."""
        now_s = self._clock_s()
        return [key for key, entry in self._entries.items() if not self._is_over(entry, now_s)]

    def entries(self) -> list[tuple[bytes, Entry[Place]]]:
        """Everything that takes room, expired or not."""
        return list(self._entries.items())

    def raw(self, key: bytes) -> Entry[Place] | None:
        """The entry, expired or not."""
        return self._entries.get(key)

    def find(self, key: bytes, layout: bytes | None = None) -> Entry[Place] | None:
        """The entry of a key that can be read now, under `layout` unless that is None."""
        entry = self._entries.get(key)
        if entry is None or (layout is not None and entry.layout != layout):
            return None
        return None if self._is_over(entry, self._clock_s()) else entry

    def known(self, block: Block) -> bool:
        """Whether a put of the block changes nothing but a use and its meta data; both are noted."""
        entry = self.find(block.key, block.layout)
        if entry is None:
            return False
        self.refresh(block.key, block.meta)
        self.touch(block.key)
        return True

    def refresh(self, key: bytes, meta: BlockMeta) -> None:
        """Merges the meta data of a second put; an unknown key is a no-op."""
        entry = self._entries.get(key)
        if entry is not None and meta != entry.meta:
            entry.meta = entry.meta.merged(meta)
            self._order.prioritize(key, entry.meta.priority)

    def touch(self, key: bytes) -> None:
        """Counts a use; an unknown key is a no-op."""
        self._order.touch(key)

    def enter(self, key: bytes, entry: Entry[Place]) -> None:
        """Adds a key that is not there; its bytes are counted, wherever they came from."""
        self._entries[key] = entry
        meta = entry.meta
        gain = meta.recompute_us / max(1, entry.size_bytes)
        self._order.add(key, entry.parent, gain=gain, priority=meta.priority, namespace=meta.namespace)
        self.used_bytes += entry.size_bytes
        if meta.namespace:
            self._used_by[meta.namespace] = self._used_by.get(meta.namespace, 0) + entry.size_bytes

    def leave(self, key: bytes) -> Entry[Place]:
        """Takes a key out and gives its bytes back. Raises KeyError."""
        entry = self._entries.pop(key)
        self._order.remove(key)
        self.used_bytes -= entry.size_bytes
        namespace = entry.meta.namespace
        if namespace:
            left = self._used_by[namespace] - entry.size_bytes
            if left:
                self._used_by[namespace] = left
            else:
                del self._used_by[namespace]
        return entry

    def make_room(self, needs: Mapping[bytes, int], evicted: list[tuple[bytes, Entry[Place]]]) -> bool:
        """Evicts until `needs` (bytes by namespace) fit, appending to `evicted`; False when that cannot be.

        A namespace above its quota loses its own blocks, never another's.
        """
        total = sum(needs.values())
        if total > self.capacity_bytes:
            return False
        for namespace, need in needs.items():
            quota = self._limits.quota(namespace)
            while quota is not None and self._used_by.get(namespace, 0) + need > quota:
                if need > quota or not self._evict_one(namespace, evicted):
                    return False
        while self.used_bytes + total > self.allowed_bytes:
            if not self._evict_one(None, evicted):
                # what fits beside all that is pinned may use what the medium still gives, up to the capacity
                return self.used_bytes + total <= self.capacity_bytes
        return True

    def _evict_one(self, namespace: bytes | None, evicted: list[tuple[bytes, Entry[Place]]]) -> bool:
        victim = self._order.pop_victim(self._holds, namespace)
        if victim is None:
            return False
        self.evicted += 1
        evicted.append((victim, self.leave(victim)))
        return True

    def _holds(self, key: bytes) -> bool:
        entry = self._entries[key]
        return (entry.meta.pinned and not self._is_over(entry, self._clock_s())) or self._is_pinned(key)

    def over(self) -> Iterator[bytes]:
        """Keys whose time is over and that still take room."""
        now_s = self._clock_s()
        return iter([key for key, entry in self._entries.items() if self._is_over(entry, now_s)])

    def of_namespace(self, namespace: bytes) -> list[bytes]:
        """Keys of one namespace, expired ones too."""
        return [key for key, entry in self._entries.items() if entry.meta.namespace == namespace]

    def _is_over(self, entry: Entry[Place], now_s: float) -> bool:
        return entry.meta.is_over(now_s, self._limits.max_age(entry.meta.namespace))

    def clear(self) -> list[bytes]:
        """Forgets everything; returns the keys that could be read."""
        lost = self.keys()
        self._entries.clear()
        self._order = ValueOrder(self._limits.has_quota)
        self._used_by.clear()
        self.used_bytes = 0
        return lost
