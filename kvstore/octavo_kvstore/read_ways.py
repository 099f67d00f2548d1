"""ReadWays: which of two ways of reading a run of blocks is the faster one on this disk, learned from the reads themselves."""

from __future__ import annotations

import threading
from typing import Final

RECENT: Final = 0.25
"""Weight of the newest rate."""
TRY_EVERY: Final = 32
"""Runs after which the slower way is tried once more: a disk that others use is another disk."""


class ReadWays:
    """`lane`: one thread, in order, the kernel reads ahead. Otherwise several at once, past the page cache. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rates: dict[bool, float] = {}
        self._runs = 0

    def lane_next(self) -> bool:
        """Whether the next run is to be read in a lane: the faster way, the other one now and then."""
        with self._lock:
            self._runs += 1
            if len(self._rates) < 2:
                return True not in self._rates
            return (self._rates[True] >= self._rates[False]) != (self._runs % TRY_EVERY == 0)

    def note(self, lane: bool, size_bytes: int, took_s: float) -> None:
        """What a run that was read so came to; one of no bytes says nothing."""
        if size_bytes <= 0 or took_s <= 0:
            return
        rate = size_bytes / took_s
        with self._lock:
            before = self._rates.get(lane, rate)
            self._rates[lane] = before + RECENT * (rate - before)

    def figures(self) -> dict[str, float]:
        """Bytes a second of each way, 0 before its first run; named as in instruments.py."""
        with self._lock:
            return {
                "read_lane_bytes_per_s": self._rates.get(True, 0.0),
                "read_spread_bytes_per_s": self._rates.get(False, 0.0),
            }
