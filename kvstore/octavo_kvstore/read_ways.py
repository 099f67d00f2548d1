"""ReadWays: which of two ways of reading a run of blocks is the faster one on this disk, learned from the reads themselves."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

TRIALS: Final = 2
"""Runs of each way before one is chosen: the very first one also pays for memory that is touched for the first time."""
RECENT: Final = 4
"""Runs of each way that count; the best of them does, since what disturbs a run only makes it slower."""
TRY_EVERY: Final = 32
"""Runs after which the slower way is tried once more: a disk that others use is another disk."""


class ReadWays:
    """`lane`: one thread, in order, the kernel reads ahead. Otherwise several at once, past the page cache. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rates: dict[bool, deque[float]] = {way: deque(maxlen=RECENT) for way in (True, False)}
        self._runs = 0

    def lane_next(self) -> bool:
        """Whether the next run is to be read in a lane: the faster way, the other one now and then."""
        with self._lock:
            self._runs += 1
            lane, spread = self._rates[True], self._rates[False]
            if min(len(lane), len(spread)) < TRIALS:
                return len(lane) <= len(spread)
            return (max(lane) >= max(spread)) != (self._runs % TRY_EVERY == 0)

    def note(self, lane: bool, size_bytes: int, took_s: float) -> None:
        """What a run that was read so came to; one of no bytes says nothing."""
        if size_bytes > 0 and took_s > 0:
            with self._lock:
                self._rates[lane].append(size_bytes / took_s)

    def figures(self) -> dict[str, float]:
        """Bytes a second of each way, 0 before its first run; named as in instruments.py."""
        with self._lock:
            return {
                "read_lane_bytes_per_s": max(self._rates[True], default=0.0),
                "read_spread_bytes_per_s": max(self._rates[False], default=0.0),
            }
