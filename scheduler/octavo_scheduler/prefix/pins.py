"""Pins: blocks that stay indexed until they are unpinned, their time is up, or a request could never run beside them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Pin:
    """A hold of the index's owner on the leading blocks of a chain. It ends once, and is then empty."""

    blocks: list[int]
    priority: int
    until_us: int  # 0: until unpinned
    number: int

    @property
    def live(self) -> bool:
        """It still holds its blocks."""
        return bool(self.blocks)


class Pins:
    """The live pins of one index, in the order in which they end or yield."""

    __slots__ = ("_due", "_live", "_number")

    def __init__(self) -> None:
        self._live: dict[Pin, None] = {}
        self._due: list[tuple[int, int, Pin]] = []  # may hold some that have ended
        self._number = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._live)

    def add(self, blocks: list[int], priority: int, until_us: int) -> Pin:
        """A new pin; one without blocks is never live."""
        self._number += 1
        pin = Pin(blocks, priority, until_us, self._number)
        if blocks:
            self._live[pin] = None
            if until_us:
                heapq.heappush(self._due, (until_us, pin.number, pin))
        return pin

    def end(self, pin: Pin) -> list[int]:
        """The blocks that it held; none when it has ended before."""
        self._live.pop(pin, None)
        blocks, pin.blocks = pin.blocks, []
        return blocks

    def due(self, now_us: int) -> list[Pin]:
        """Live pins whose time is up."""
        ended: list[Pin] = []
        while self._due and self._due[0][0] <= now_us:
            pin = heapq.heappop(self._due)[2]
            if pin.live:
                ended.append(pin)
        return ended

    def weakest(self) -> Pin | None:
        """The one that yields first: least priority, then the oldest."""
        return min(self._live, key=lambda pin: (pin.priority, pin.number), default=None)
