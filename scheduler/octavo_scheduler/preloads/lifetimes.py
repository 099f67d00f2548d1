"""Until when indexed keys may be found. A key that is not listed has no limit.

Of blocks that several requests share the longest wish counts: one that wants no limit takes it off.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

LEAST_COMPACTED = 1024
"""Below this many entries those that mean nothing any more may stay; above it at most as many as mean something."""


SWEEP_FIRST = 65_536
"""Keys from which on those that nobody holds are looked for, whenever they have doubled."""


class Lifetimes:
    """Key -> when it ends. Ended keys come out of `due`, which the cell then drops everywhere."""

    __slots__ = ("_due", "_sweep_at", "_until_us")

    def __init__(self) -> None:
        self._until_us: dict[bytes, int] = {}
        self._due: list[tuple[int, bytes]] = []  # may hold some that were extended, or are gone
        self._sweep_at = SWEEP_FIRST

    def __len__(self) -> int:
        return len(self._until_us)

    @property
    def entries(self) -> int:
        """Of the list of ends, those that mean nothing any more included."""
        return len(self._due)

    def __contains__(self, key: bytes) -> bool:
        return key in self._until_us

    def begin(self, key: bytes, until_us: int) -> None:
        """A block was indexed that nobody had: it lives until then."""
        self._until_us[key] = until_us
        if len(self._due) > LEAST_COMPACTED and len(self._due) > 2 * len(self._until_us):
            self._due = [(end_us, held) for held, end_us in self._until_us.items()]
            heapq.heapify(self._due)
        else:
            heapq.heappush(self._due, (until_us, key))

    def extend(self, keys: Iterable[bytes], until_us: int) -> None:
        """Somebody uses them too, and wants them until then; 0: for good."""
        for key in keys:
            known = self._until_us.get(key)
            if known is None:
                continue
            if not until_us:
                del self._until_us[key]
            elif until_us > known:
                self.begin(key, until_us)

    def forget(self, key: bytes) -> None:
        """Its block is gone."""
        self._until_us.pop(key, None)

    def due(self, now_us: int) -> list[bytes]:
        """Keys whose time is over; they are listed no more."""
        ended: list[bytes] = []
        while self._due and self._due[0][0] <= now_us:
            until_us, key = heapq.heappop(self._due)
            if self._until_us.get(key) == until_us:
                del self._until_us[key]
                ended.append(key)
        return ended

    @property
    def many(self) -> bool:
        """Twice as many as after the last `keep_only`."""
        return len(self._until_us) >= self._sweep_at

    def keep_only(self, held: Callable[[bytes], bool]) -> None:
        """Forgets whatever nobody holds any more: times to live may be weeks, and blocks go long before."""
        self._until_us = {key: until_us for key, until_us in self._until_us.items() if held(key)}
        self._due = [(end_us, key) for key, end_us in self._until_us.items()]
        heapq.heapify(self._due)
        self._sweep_at = max(SWEEP_FIRST, 2 * len(self._until_us))

    def next_us(self) -> int:
        """When the first may end; 0: never."""
        return self._due[0][0] if self._due else 0
