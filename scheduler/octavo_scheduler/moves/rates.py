"""How much of a link the KV of handed-over prefills takes, and when that is too much."""

from __future__ import annotations

import math
from collections import deque

WARN_SHARE = 0.7
"""Above this queueing on the link shows in the time between the first two tokens."""
HALF_LIFE_US = 10_000_000
KEPT = 512


def link_share(kv_bytes: float, prefills_per_s: float, link_bytes_per_s: float) -> float:
    """Share of a link that handoffs take: KV of a request, times requests per second, over what the link can move."""
    return kv_bytes * prefills_per_s / link_bytes_per_s


def link_warning(share: float, pool: str) -> str:
    """One line when the share is too large; else empty."""
    if share <= WARN_SHARE:
        return ""
    return (
        f"handoffs take {share:.0%} of the links of the {pool} pool, more than {WARN_SHARE:.0%}: "
        "add workers to it, move fewer bytes (a smaller kv_dtype), or serve short prompts in one place"
    )


class Moved:
    """Bytes per second of handoffs, forgotten with a half-life, and the latest durations. Times in microseconds."""

    __slots__ = ("_at_us", "_bytes", "_transfers_us")

    def __init__(self) -> None:
        self._bytes = 0.0
        self._at_us = 0
        self._transfers_us: deque[int] = deque(maxlen=KEPT)

    def add(self, now_us: int, size_bytes: int, took_us: int) -> None:
        """A copy has ended."""
        self._bytes = self._decayed(now_us) + size_bytes
        self._at_us = now_us
        self._transfers_us.append(took_us)

    def bytes_per_s(self, now_us: int) -> float:
        """Recent rate."""
        return self._decayed(now_us) * math.log(2) / HALF_LIFE_US * 1e6

    def quantile_us(self, share: float) -> float:
        """Of the latest copies; 0 when there was none."""
        ordered = sorted(self._transfers_us)
        return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0.0

    def _decayed(self, now_us: int) -> float:
        return self._bytes * math.exp2(-max(0, now_us - self._at_us) / HALF_LIFE_US)
