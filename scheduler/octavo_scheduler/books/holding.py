"""What it costs to keep cached blocks: block-seconds times the price of a block-second when they were held.

The price is the worker's time that a block of the pool stands for while it is wanted, as for pauses
(moves/pause_costs.py): scarcity / blocks of the pool, so that a full pool costs one second per second. It changes all
the time, so its integral is kept, and a block that rests notes where the integral stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo_scheduler.books.book import Who

Owner = tuple[str, Who]
"""Technique and whose."""


class Rest:
    """Blocks that one request left in the cache, as far as nobody has taken them since."""

    __slots__ = ("blocks", "owner", "since")

    def __init__(self, owner: Owner, since: float) -> None:
        self.owner = owner
        self.since = since
        self.blocks = 0


class Holding:
    """The cached blocks of one worker's pool. Milliseconds of worker time."""

    __slots__ = ("_integral_ms", "_of_block", "_open", "at_us", "due_ms")

    def __init__(self, now_us: int) -> None:
        self.at_us = now_us
        """Up to when the price is known."""
        self._integral_ms = 0.0  # of the price of one block
        self._of_block: dict[int, Rest] = {}
        self._open: dict[Rest, None] = {}
        self.due_ms: dict[Owner, float] = {}
        """What `take_due` would give."""

    def advance(self, now_us: int, scarcity: float, pool_blocks: int) -> None:
        """Time passes; since the last call the pool's blocks were wanted this much."""
        self._integral_ms += (now_us - self.at_us) / 1000 * scarcity / max(1, pool_blocks)
        self.at_us = now_us

    def rest(self, blocks: Iterable[int], owner: Owner) -> None:
        """These stay in the cache now that `owner` leaves them. What was noted of them before is due."""
        rest, of_block = Rest(owner, self._integral_ms), self._of_block
        left = list(blocks)
        if not of_block.keys().isdisjoint(left):
            self.leave(left)
        of_block.update(dict.fromkeys(left, rest))
        rest.blocks = len(left)
        if left:
            self._open[rest] = None

    def leave(self, blocks: Sequence[int]) -> None:
        """These are cached no more: somebody uses them, or they were evicted."""
        for block in blocks:
            self._take(block)

    def _take(self, block: int) -> None:
        rest = self._of_block.pop(block, None)
        if rest is None:
            return
        rest.blocks -= 1
        if not rest.blocks:
            del self._open[rest]
        owner = rest.owner
        self.due_ms[owner] = self.due_ms.get(owner, 0.0) + self._integral_ms - rest.since

    def take_due(self) -> dict[Owner, float]:
        """What blocks that are cached no more have cost, since the last call."""
        due = self.due_ms
        if due:
            self.due_ms = {}
        return due

    def still_open(self) -> dict[Owner, float]:
        """What blocks that are still cached have cost so far. O(requests that left them)."""
        total: dict[Owner, float] = {}
        for rest in self._open:
            cost_ms = rest.blocks * (self._integral_ms - rest.since)
            total[rest.owner] = total.get(rest.owner, 0.0) + cost_ms
        return total
