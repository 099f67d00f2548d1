"""The counterfactual: a small share of the requests goes without a technique, so that what it is said to save can be checked.

Which ones is a hash of the request id: no randomness, and a resubmit is the same. Where a technique is switched off
for a class of requests (switches.py) the same share goes with it, so that it can return.
"""

from __future__ import annotations

from hashlib import blake2b

TRIED = ("prefix_cache", "tier_load", "join", "routing", "swap", "handoff", "pause", "chunking", "offload")
"""Techniques that a single request can go without."""
_RANGE = 1 << 16


def sampled_for(request_id: str, share: float) -> tuple[str, ...]:
    """The techniques whose trial this request is in; mostly none."""
    if share <= 0:
        return ()
    digest = blake2b(request_id.encode(), digest_size=2 * len(TRIED)).digest()
    limit = share * _RANGE
    return tuple(name for at, name in enumerate(TRIED) if int.from_bytes(digest[2 * at : 2 * at + 2], "little") < limit)


class Arm:
    """One side of a trial: how long a start took, over how long it was predicted to take without the technique."""

    __slots__ = ("mean", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.mean = 0.0

    def observe(self, ratio: float) -> None:
        """One request; the latest ones count more."""
        self.seen += 1
        self.mean += max(0.05, 1 / self.seen) * (ratio - self.mean)


class Trial:
    """Both sides of one technique and class of requests, and what was said to be saved."""

    __slots__ = ("_predicted_us", "_said_us", "with_it", "without")

    def __init__(self) -> None:
        self.with_it, self.without = Arm(), Arm()
        self._predicted_us = 0.0
        self._said_us = 0.0

    def observe(self, used: bool, took_us: float, predicted_us: float, said_us: float) -> None:
        """A first token came `took_us` after the admission.

        predicted_us: what it would have taken without the technique; said_us: what the technique was said to save of that.
        """
        if predicted_us <= 0:
            return
        (self.with_it if used else self.without).observe(took_us / predicted_us)
        if used:
            self._predicted_us += predicted_us
            self._said_us += said_us

    @property
    def calibration(self) -> float | None:
        """Saved as measured over saved as said; None while one of the sides is empty, or nothing was said."""
        if not (self.with_it.seen and self.without.seen) or self._said_us <= 0:
            return None
        return (self.without.mean - self.with_it.mean) * self._predicted_us / self._said_us
