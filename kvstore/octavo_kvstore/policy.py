"""Which block goes first: the one that is worth least per byte among those that no held block continues.

Worth = predicted recompute time saved per byte x probability of another use. The probability is a hit count that halves every
`H` uses of the tier (H follows the number of blocks held), so a block used once and never again sinks below one used often: plain
recency would let one long scan push out what every request shares. A chain of prefix blocks is useful from its head on, so a
parent outlives its children (the leaf-first order of radix caches, Zheng et al., SGLang, 2024). A larger priority outranks any worth.

Decayed counts need no clock and no aging pass: with count s at use t0, s * 2^((t0 - t) / H) is ranked by log2(s) + t0 / H at any t.
Pure: no lock, no clock; the owner serializes calls.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MIN_HALF_LIFE = 16
HALF_LIFE_PER_KEY = 2
Rank = tuple[int, float, int]
"""Priority, log2 of the worth, number of the last use."""


@dataclass(slots=True)
class _Item:
    parent: bytes
    namespace: bytes
    priority: int
    log_gain: float
    hits: float
    used: int


class ValueOrder:
    """The eviction order of a tier. `add`, `touch` and `remove` are O(log n); `pop_victim` amortized O(log n).

    `has_own_heap(namespace)` says for which namespaces `pop_victim` may be asked separately.
    """

    def __init__(self, has_own_heap: Callable[[bytes], bool] = lambda namespace: False) -> None:
        self._has_own_heap = has_own_heap
        self._items: dict[bytes, _Item] = {}
        self._children: dict[bytes, int] = {}
        # lazy heaps: an entry counts only if it still has its key's last use
        self._heaps: dict[bytes | None, list[tuple[Rank, bytes]]] = {None: []}
        self._uses = 0
        self._half_life = MIN_HALF_LIFE
        self._mean_gain = 1.0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, key: bytes, parent: bytes, *, gain: float = 0.0, priority: int = 0, namespace: bytes = b"") -> None:
        """Adds a key as just used; an empty parent begins a chain. The key must not be there.

        `gain`: microseconds saved per byte by a use; 0: unknown, which counts as the mean of the known ones.
        """
        if key in self._items:
            raise ValueError("key is already in the order")
        if gain > 0:
            self._mean_gain += (gain - self._mean_gain) / min(len(self._items) + 1, 256)
        self._items[key] = _Item(parent, namespace, priority, math.log2(gain if gain > 0 else self._mean_gain), 0.0, 0)
        if parent:
            self._children[parent] = self._children.get(parent, 0) + 1
        if len(self._items) * HALF_LIFE_PER_KEY > 2 * self._half_life:
            self._half_life = len(self._items) * HALF_LIFE_PER_KEY
            self._rebuild()
        self.touch(key)

    def touch(self, key: bytes) -> None:
        """Counts a use; an unknown key is a no-op."""
        item = self._items.get(key)
        if item is None:
            return
        self._uses += 1
        item.hits = 1.0 + item.hits * 2.0 ** ((item.used - self._uses) / self._half_life)
        item.used = self._uses
        self._push(key, item)

    def prioritize(self, key: bytes, priority: int) -> None:
        """Changes a key's priority; an unknown key is a no-op."""
        item = self._items.get(key)
        if item is not None and item.priority != priority:
            item.priority = priority
            self.touch(key)

    def remove(self, key: bytes) -> None:
        """Takes a key out; an unknown key is a no-op."""
        item = self._items.pop(key, None)
        if item is None or not item.parent:
            return
        self._children[item.parent] -= 1
        if not self._children[item.parent]:
            del self._children[item.parent]
            if (parent := self._items.get(item.parent)) is not None:
                self._push(item.parent, parent)

    def pop_victim(self, is_pinned: Callable[[bytes], bool], namespace: bytes | None = None) -> bytes | None:
        """Takes out and returns the next key to evict, of one namespace unless that is None.

        None when every candidate is pinned or continued by a held block, or nothing is held.
        """
        heap = self._heaps.get(namespace, [])
        passed: list[tuple[Rank, bytes]] = []
        victim = None
        while heap and victim is None:
            entry = heapq.heappop(heap)
            rank, key = entry
            item = self._items.get(key)
            if item is None or item.used != rank[2] or key in self._children:
                continue
            if is_pinned(key):
                passed.append(entry)
            else:
                victim = key
        for entry in passed:
            heapq.heappush(heap, entry)
        if victim is not None:
            self.remove(victim)
        return victim

    def _rank(self, item: _Item) -> Rank:
        return item.priority, item.log_gain + math.log2(item.hits) + item.used / self._half_life, item.used

    def _push(self, key: bytes, item: _Item) -> None:
        if key in self._children:
            return
        entry = (self._rank(item), key)
        for name in self._heaps_of(item):
            heap = self._heaps.setdefault(name, [])
            heapq.heappush(heap, entry)
            if len(heap) > 64 + 4 * len(self._items):  # stale entries of keys used again and again
                self._rebuild()
                return

    def _heaps_of(self, item: _Item) -> Iterator[bytes | None]:
        yield None
        if self._has_own_heap(item.namespace):
            yield item.namespace

    def _rebuild(self) -> None:
        self._heaps = {None: []}
        for key, item in self._items.items():
            if key not in self._children and item.used:
                entry = (self._rank(item), key)
                for name in self._heaps_of(item):
                    self._heaps.setdefault(name, []).append(entry)
        for heap in self._heaps.values():
            heapq.heapify(heap)
