"""How fast the queue drains, as observed: requests and KV tokens that leave it for a worker per second.

It tells a refused client when to come back. Exponential means over the gaps between admissions, so that no window is
kept; a cell that has admitted nothing yet has no rate, and a queue that stands is expected to stand as long again.
"""

from __future__ import annotations

from octavo_scheduler.policy import SECOND_US

_SPAN_US = 10 * SECOND_US
"""Time constant of the means."""
LEAST_RETRY_US = 100_000
MOST_RETRY_US = 60 * SECOND_US


class DrainRate:
    """Rates per second over about the last ten seconds."""

    __slots__ = ("_at_us", "_began_us", "_kv_tokens", "_last_us", "_prompt_tokens", "_requests")

    def __init__(self) -> None:
        self._at_us = self._began_us = self._last_us = -1
        self._requests = self._prompt_tokens = self._kv_tokens = 0.0  # leaky sums

    def admitted(self, prompt_tokens: int, kv_tokens: int, now_us: int) -> None:
        """A request left the queue for a worker."""
        if now_us != self._at_us:
            self._leak(now_us)
        self._began_us = now_us if self._began_us < 0 else self._began_us
        self._last_us = now_us
        self._requests += 1
        self._prompt_tokens += prompt_tokens
        self._kv_tokens += kv_tokens

    def _leak(self, now_us: int) -> None:
        if self._at_us >= 0:
            kept = max(0.0, 1 - (now_us - self._at_us) / _SPAN_US)
            self._requests *= kept
            self._prompt_tokens *= kept
            self._kv_tokens *= kept
        self._at_us = now_us

    def requests_per_us(self, now_us: int) -> float:
        """Requests that leave the queue, per microsecond; 0 without any yet."""
        self._leak(now_us)
        return self._requests / max(SECOND_US, min(_SPAN_US, now_us - self._began_us)) if self._began_us >= 0 else 0.0

    def retry_us(self, unit: str, excess: float, now_us: int) -> int:
        """When so much of `unit` (requests, prompt_tokens, kv_tokens) will have left the queue; a second without a rate."""
        self._leak(now_us)
        held: float = getattr(self, f"_{unit}")
        if held <= 0:
            return SECOND_US
        return bounded(max(now_us - self._last_us, excess / held * min(_SPAN_US, now_us - self._began_us)))


def bounded(retry_us: float) -> int:
    """A time to come back after that is worth telling."""
    return int(max(LEAST_RETRY_US, min(MOST_RETRY_US, retry_us)))
