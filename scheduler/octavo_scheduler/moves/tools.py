"""How long clients pause, and whether they return, learned per tenant and tool.

The mean starts at what the client expects, which counts like two observations, and forgets slowly. A pause is taken
for exponential with that mean, so the time still to wait does not depend on the time waited; the chance of a return
does: after t it is p e^(-t/m) / (p e^(-t/m) + 1 - p), with p the share of pauses that ended in a return.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

GIVEN_WEIGHT = 2.0
"""Observations that the client's own word is worth."""
MOST_WEIGHT = 20.0
"""Observations that the past is worth at most: a tool may change."""
FIRST_RETURN, FIRST_WEIGHT = 0.9, 5.0
"""Share of returns of a tool that nobody knows, and how many pauses it takes to doubt it."""
LEAST_WEIGHT = 0.05
"""A past that is worth less is none: what is left of both sums says nothing of their ratio."""
DEFAULT_US = 2_000_000
"""A pause about which nobody said anything."""
MAX_TOOLS = 4096


@dataclass(slots=True)
class Tool:
    """Decayed sums over the pauses of one tool."""

    weight: float = 0.0
    pause_us: float = 0.0
    ended: float = 0.0
    returned: float = 0.0

    def expected_us(self, given_us: int) -> float:
        """Mean pause, from what was seen and what the client says (0: nothing)."""
        said = GIVEN_WEIGHT if given_us or self.weight < LEAST_WEIGHT else 0.0
        return (self.pause_us + said * (given_us or DEFAULT_US)) / (self.weight + said)

    def return_chance(self, waited_us: float, mean_us: float) -> float:
        """That a client which has paused for `waited_us` comes back."""
        share = (self.returned + FIRST_RETURN * FIRST_WEIGHT) / (self.ended + FIRST_WEIGHT)
        still = share * math.exp(-waited_us / max(1.0, mean_us))
        return still / max(1e-12, still + 1 - share)

    def returned_after(self, pause_us: int) -> None:
        """A client came back."""
        self._forget()
        self.weight += 1
        self.pause_us += pause_us
        self.ended += 1
        self.returned += 1

    def gone(self) -> None:
        """A client did not."""
        self._forget()
        self.ended += 1

    def _forget(self) -> None:
        keep = 1 - 1 / MOST_WEIGHT
        self.weight, self.pause_us = self.weight * keep, self.pause_us * keep
        self.ended, self.returned = self.ended * keep, self.returned * keep


class Tools:
    """The tools of all tenants, the longest unused forgotten first."""

    __slots__ = ("_tools",)

    def __init__(self) -> None:
        self._tools: OrderedDict[tuple[str, str], Tool] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tools)

    def of(self, tenant: str, tool: str) -> Tool:
        """What is known about a tool; begins with nothing."""
        known = self._tools.setdefault((tenant, tool), Tool())
        self._tools.move_to_end((tenant, tool))
        if len(self._tools) > MAX_TOOLS:
            self._tools.popitem(last=False)
        return known
