"""How far predictions were off: recent relative errors, and a correction that is learned from them."""

from __future__ import annotations

import math
from collections import deque

from octavo.figures import quantile

KEPT = 512
REREAD = 16
CONFIDENCE = 0.9
ENOUGH = 16
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


class CorrectionByLength:
    """A correction per length of the prefill, in steps of a factor of 2^(1/3): where shorter prompts go first, the long ones
    are overtaken by what comes later. Lengths that were seen seldom take the correction of all."""

    __slots__ = ("_all", "_of", "_seen")

    def __init__(self) -> None:
        self._all = Correction()
        self._of: dict[int, Correction] = {}
        self._seen: dict[int, int] = {}

    def factor(self, tokens: int) -> float:
        """What a raw prediction for a prefill of `tokens` is multiplied by."""
        step = _step(tokens)
        return (self._of[step] if self._seen.get(step, 0) >= ENOUGH else self._all).factor

    def observe(self, tokens: int, raw: float, observed: float) -> None:
        """Learns from an uncorrected prediction; both above 0."""
        step = _step(tokens)
        self._all.observe(raw, observed)
        self._of.setdefault(step, Correction()).observe(raw, observed)
        self._seen[step] = self._seen.get(step, 0) + 1


def _step(tokens: int) -> int:
    return round(3 * math.log2(max(1, tokens)))
