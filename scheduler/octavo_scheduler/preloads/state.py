"""Caching: everything of this package that a cell remembers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from octavo_scheduler.orders import Forget
from octavo_scheduler.prefix.pins import Pin
from octavo_scheduler.preloads.book import PreloadBook
from octavo_scheduler.preloads.cache_events import CacheResult
from octavo_scheduler.preloads.lifetimes import Lifetimes

SPARE_HEADS = 1024
REMEMBERED = 1024
"""Orders to forget that a store is told when it comes back."""


@dataclass(frozen=True, slots=True)
class RequestPin:
    """Blocks of one request that are pinned for a time."""

    tenant: str
    epoch: int
    pin: Pin
    keys: tuple[bytes, ...]


class Caching:
    """Preloads, pins of requests, times to live, generations, and whose the chains in the indexes are."""

    __slots__ = ("_heads", "book", "doomed", "forgets", "generations", "lifetimes", "pins", "result")

    def __init__(self) -> None:
        self.book = PreloadBook()
        self.lifetimes = Lifetimes()
        self.pins: list[RequestPin] = []
        self.generations: dict[str, int] = {}
        self.result = CacheResult()
        self.doomed: set[bytes] = set()  # thrown out while they were on their way to a store
        self.forgets: deque[Forget] = deque(maxlen=REMEMBERED)
        self._heads: dict[bytes, str] = {}  # key of a chain's first block -> tenant; may hold some that are gone

    def note_head(self, key: bytes, tenant: str, live: int) -> None:
        """A chain begins here; `live` chains are about how many there are now. The oldest notes go first."""
        self._heads.pop(key, None)
        self._heads[key] = tenant
        while len(self._heads) > 4 * live + SPARE_HEADS:
            del self._heads[next(iter(self._heads))]

    def owner(self, head: bytes) -> str | None:
        """Whose chain this is; None: it was taken over from a worker that knew it before, or the note was dropped."""
        return self._heads.get(head)

    def pinned_blocks(self, tenant: str, besides: str = "") -> int:
        """Blocks that this tenant pins; those of the preload named `besides` are left out."""
        preloads = (item for item in self.book if item.tenant == tenant and item.name != besides)
        requests = (len(item.pin.blocks) for item in self.pins if item.tenant == tenant)
        return sum(item.held_blocks for item in preloads) + sum(requests)

    def drop_ended_pins(self) -> None:
        """Forgets the pins of requests that ran out or yielded."""
        self.pins = [item for item in self.pins if item.pin.live]
