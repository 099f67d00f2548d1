"""When a call may be made again, and after how long."""

from __future__ import annotations

import random
from dataclasses import dataclass

from octavo.errors import OctavoError, Overloaded, Unavailable

RESUMABLE_REASONS = frozenset({"unreachable", "shutdown", "not-ready", "rejected-not-ready", "rejected-draining"})
"""Reasons of an UNAVAILABLE that say the gateway is away. Every other one is the request's own end: it failed."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries happen before the first token only; a stream that broke later is resumed instead."""

    max_attempts: int = 5
    """Calls in all, the first one included."""
    first_backoff_s: float = 0.1
    """Before the second call; doubled each time."""
    max_backoff_s: float = 2.0
    """Longest pause of our own; the server's RetryInfo may ask for more."""
    resume_window_s: float = 30.0
    """How long a broken stream is tried to be resumed without progress; 0: never."""
    jitter: float = 0.2
    """Share by which a pause may differ."""

    def backoff_s(self, failures: int) -> float:
        """The pause after this many failures in a row (>= 1)."""
        pause_s = min(self.first_backoff_s * 2.0 ** min(failures - 1, 30), self.max_backoff_s)
        return pause_s * random.uniform(1.0 - self.jitter, 1.0 + self.jitter)

    def pause_s(self, error: OctavoError, failures: int, remaining_s: float) -> float | None:
        """How long to wait before calling again; None when the error must be raised.

        UNAVAILABLE is always safe before the first token; RESOURCE_EXHAUSTED only with the server's RetryInfo; neither
        when the pause would outlast the deadline.
        """
        if failures >= self.max_attempts:
            return None
        if isinstance(error, Overloaded):
            if error.retry_after_s <= 0:
                return None
            pause_s = error.retry_after_s * random.uniform(1.0, 1.0 + self.jitter)
        elif isinstance(error, Unavailable):
            pause_s = max(self.backoff_s(failures), error.retry_after_s)
        else:
            return None
        return pause_s if pause_s < remaining_s else None
