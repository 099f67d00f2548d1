"""Whether a technique is used for a class of requests: off while it loses, on again when its trials win.

The latest entries decide, each by the share of what was at stake that it won or lost: one long stall must not outweigh
a hundred gains. Only write-behind is judged by its sum (POOLED): its entries are expectations (bets.py), and copies of any size. A trial's entry weighs more while the technique is off, since only one request of a hundred tells of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_scheduler.books.book import length_name
from octavo_scheduler.books.trial import Trial
from octavo_scheduler.history import length_class
from octavo_scheduler.request import Request

SWITCHED = ("tier_load", "swap", "join", "handoff", "pause", "chunking", "routing", "offload")
"""Techniques that cost something each time, and whose worth is known with the request that they are used for."""
POOLED = ("offload",)
"""Of these the sum of what the latest entries won and lost decides, not each one's share."""
_MEMORY = 0.15
_MEMORY_POOLED = 0.1
_MEMORY_OFF = 0.35
ENOUGH = 6
"""Entries before the first decision."""
LOSS_SHARE = 0.1
"""It must have lost more than this share of what it spent: an even game is no loss."""


@dataclass(slots=True)
class Switch:
    """One technique for one class."""

    trial: Trial = field(default_factory=Trial)
    edge: float = 0.0  # (saved - spent) / the larger of both, of an entry, the latest weigh more
    net_ms: float = 0.0
    spent_ms: float = 0.0
    pooled: bool = False
    entries: int = 0
    off: bool = False
    changes: int = 0
    why: str = ""
    """The figures that it was switched off for, or on again."""

    def observe(self, saved_ms: float, spent_ms: float) -> bool:
        """One entry. True when that turned the switch."""
        self.entries += 1
        memory = _MEMORY_POOLED if self.pooled else _MEMORY
        weight = _MEMORY_OFF if self.off else max(memory, 1 / self.entries)
        net_ms, most_ms = saved_ms - spent_ms, max(saved_ms, spent_ms)
        self.net_ms += weight * (net_ms - self.net_ms)
        self.spent_ms += weight * (spent_ms - self.spent_ms)
        if self.pooled:
            most_ms = max(self.net_ms + self.spent_ms, self.spent_ms)
            self.edge = self.net_ms / most_ms if most_ms > 0 else 0.0
        else:
            self.edge += weight * ((net_ms / most_ms if most_ms > 0 else 0.0) - self.edge)
        if self.off and self.edge > 0:
            return self._turn(off=False)
        if not self.off and self.edge < -LOSS_SHARE and self.entries >= ENOUGH:
            return self._turn(off=True)
        return False

    def _turn(self, off: bool) -> bool:
        self.off = off
        self.changes += 1
        said = "loses" if off else "wins again"
        self.why = f"{said}: net {self.net_ms:.1f} ms an entry, {self.spent_ms:.1f} ms of it spent, after {self.entries} entries"
        return True


class Switches:
    """By technique and length class, over all tenants."""

    __slots__ = ("by_class", "off")

    def __init__(self) -> None:
        self.by_class: dict[tuple[str, int], Switch] = {}
        self.off = 0
        """How many are."""

    def of(self, technique: str, length: int) -> Switch:
        """The switch of a class; it begins on."""
        found = self.by_class.get((technique, length))
        if found is None:
            found = self.by_class[technique, length] = Switch(pooled=technique in POOLED)
        return found

    def observe(self, technique: str, request: Request, saved_ms: float, spent_ms: float) -> None:
        """An entry of one of SWITCHED."""
        self.observe_class(technique, length_class(len(request.prompt)), saved_ms, spent_ms)

    def observe_class(self, technique: str, length: int, saved_ms: float, spent_ms: float) -> None:
        """The same for a length class: of what is no request's own any more."""
        switch = self.of(technique, length)
        if switch.observe(saved_ms, spent_ms):
            self.off += 1 if switch.off else -1

    def classes_off(self, technique: str) -> frozenset[int]:
        """The length classes for which it is switched off."""
        if not self.off:
            return frozenset()
        return frozenset(length for (name, length), switch in self.by_class.items() if name == technique and switch.off)

    @property
    def any_off(self) -> bool:
        """Something is switched off for somebody."""
        return self.off > 0

    def is_off(self, technique: str, request: Request) -> bool:
        """Whether the technique is switched off for requests like this one."""
        if not self.off:
            return False
        found = self.by_class.get((technique, length_class(len(request.prompt))))
        return found is not None and found.off

    def uses(self, technique: str, request: Request) -> bool:
        """Whether a request goes with the technique: as the switch says, a sampled one the other way."""
        return self.is_off(technique, request) == (technique in request.sampled)

    def reasons(self) -> list[tuple[str, str, str]]:
        """(technique, prompt tokens, why) of every class that is switched off."""
        return [
            (technique, length_name(length), switch.why)
            for (technique, length), switch in sorted(self.by_class.items())
            if switch.off
        ]
