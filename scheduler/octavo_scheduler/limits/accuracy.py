"""How far predictions were off: recent relative errors, and a correction that is learned from them."""

from __future__ import annotations

import math
from collections import deque

from octavo.figures import quantile

KEPT = 512
REREAD = 16
CONFIDENCE = 0.9
_RATE = 0.05
_MOST = math.log(4.0)


class Errors:
    """|predicted - observed| / observed of the latest predictions of one kind."""

    __slots__ = ("_kept", "_over", "count", "headroom")

    def __init__(self) -> None:
        self._kept: deque[float] = deque(maxlen=KEPT)
        self._over: deque[float] = deque(maxlen=KEPT)
        self.count = 0
        self.headroom = 1.0
        """What a prediction must be multiplied by so that nine of ten turn out no later: within [1, 2], read now and then."""

    def observe(self, predicted: float, observed: float) -> float:
        """Books one prediction whose truth is known; returns its error. `observed` must be above 0."""
        error = abs(predicted - observed) / observed
        self._kept.append(error)
        self._over.append(observed / max(1.0, predicted))
        self.count += 1
        if self.count % REREAD == 0:
            self.headroom = max(1.0, min(2.0, quantile(list(self._over), CONFIDENCE)))
        return error

    def quantile(self, share: float) -> float:
        """A quantile of the latest errors; 0 without any."""
        return quantile(list(self._kept), share) if self._kept else 0.0


class Correction:
    """Factor by which predictions of one kind were too low, a geometric running mean within [1/4, 4]."""

    __slots__ = ("_log",)

    def __init__(self) -> None:
        self._log = 0.0

    @property
    def factor(self) -> float:
        """What a raw prediction is multiplied by."""
        return math.exp(self._log)

    def observe(self, raw: float, observed: float) -> None:
        """Learns from an uncorrected prediction; both above 0."""
        error = max(-_MOST, min(_MOST, math.log(observed / raw)))
        self._log += _RATE * (error - self._log)
