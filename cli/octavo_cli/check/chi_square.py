"""The chi-square test of observed counts against expected shares (Pearson 1900), without a statistics package."""

from __future__ import annotations

import math
from collections.abc import Sequence


def chi_square(observed: Sequence[int], shares: Sequence[float]) -> tuple[float, float]:
    """(statistic, p-value) of counts that should fall as `shares`, which sum to 1.

    Classes with fewer than 5 expected are pooled, as the approximation wants (Cochran 1954).
    """
    total = sum(observed)
    pooled: list[tuple[float, float]] = []
    rest_expected = rest_observed = 0.0
    for share, count in sorted(zip(shares, observed, strict=True), reverse=True):
        if share * total >= 5:
            pooled.append((share * total, count))
        else:
            rest_expected, rest_observed = rest_expected + share * total, rest_observed + count
    if rest_expected >= 5 or (rest_expected > 0 and not pooled):
        pooled.append((rest_expected, rest_observed))
    elif rest_expected > 0:
        expected, seen = pooled.pop()
        pooled.append((expected + rest_expected, seen + rest_observed))
    elif rest_observed:
        return math.inf, 0.0  # something came that cannot come
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in pooled)
    return statistic, survival(statistic, len(pooled) - 1)


def survival(statistic: float, degrees: int) -> float:
    """P(X >= statistic) of the chi-square distribution: the regularised upper incomplete gamma function Q(degrees/2, x/2).

    By its series below degrees/2 + 1 and its continued fraction above (Abramowitz & Stegun 6.5.29 and 6.5.31).
    """
    if statistic <= 0 or degrees < 1:
        return 1.0
    a, x = degrees / 2.0, statistic / 2.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        term = total = 1.0 / a
        n = a
        while abs(term) > abs(total) * 1e-15:
            n += 1.0
            term *= x / n
            total += term
        return 1.0 - total * scale
    tiny = 1e-300
    b = x + 1.0 - a
    c, d = 1.0 / tiny, 1.0 / b
    h = d
    for i in range(1, 1000):
        an = -i * (i - a)
        b += 2.0
        d = 1.0 / (an * d + b or tiny)
        c = b + an / c or tiny
        h *= d * c
        if abs(d * c - 1.0) < 1e-14:
            break
    return scale * h
