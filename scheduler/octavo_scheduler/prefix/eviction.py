"""Which cached blocks go first: the leaf with the least value = predicted recompute time saved x hit rate / bytes.

A hit rate is a count of uses that halves every HALF_LIFE_US. All counts halve alike, so their order changes only with a
new use: kept as log2 of uses weighted by 2 ** (time / half-life), a value stays comparable for ever and a heap needs no
re-sorting (forward decay: Cormode, Shkapenyuk, Srivastava, Xu, ICDE 2009). With one use each this is least recently used;
n uses outlive one by log2(n) half-lives.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import log2

from octavo_scheduler.prefix.node import Node

HALF_LIFE_US = 60_000_000
"""A prompt of 64 uses that stop outlives one of a single use by six minutes."""
_SPARE_ENTRIES = 64


def use_at(now_us: int) -> float:
    """The heat of one use now."""
    return now_us / HALF_LIFE_US


def add_use(heat: float, now_us: int) -> float:
    """One more use: log2(2 ** heat + 2 ** use_at(now_us)), without overflow."""
    use = now_us / HALF_LIFE_US
    low, high = (heat, use) if heat < use else (use, heat)
    return high + log2(1.0 + 2.0 ** max(low - high, -100.0))


def keep_score(heat: float, saved_us: float, block_bytes: int, priority: int = 0) -> float:
    """log2 of a block's value; each step of `priority` doubles it. `saved_us` is what computing it again would take."""
    return heat + log2(max(saved_us, 1e-6) / max(1, block_bytes)) + priority


class Victims:
    """Leaves by score, the least first; O(log n). `evictable(node)` says whether its last block may go now.

    Entries are never removed when a leaf changes: one that does not hold any more is passed over when it comes up.
    """

    __slots__ = ("_evictable", "_heap", "_number")

    def __init__(self, evictable: Callable[[Node], bool]) -> None:
        self._evictable = evictable
        self._heap: list[tuple[float, int, Node]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def offer(self, node: Node, score: float) -> None:
        """`node` may go, at `score`; an older offer of it is void."""
        self._number = node.offer = self._number + 1
        heapq.heappush(self._heap, (score, self._number, node))

    def pop(self) -> Node | None:
        """The cheapest to lose; None when no leaf may go."""
        while self._heap:
            _score, number, node = heapq.heappop(self._heap)
            if number == node.offer and self._evictable(node):
                return node
        return None

    def tidy(self, nodes: int) -> None:
        """Drops void entries once they outnumber what can be valid."""
        if len(self._heap) > 2 * nodes + _SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].offer and self._evictable(entry[2])]
            heapq.heapify(self._heap)
