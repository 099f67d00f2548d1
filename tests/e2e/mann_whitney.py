"""The Mann-Whitney U test (Mann and Whitney, 1947): do two samples come from one distribution? Normal approximation with ties."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the samples' ranks; for samples of 20 and more."""
    ordered = sorted([(value, 0) for value in a] + [(value, 1) for value in b])
    ranks_of_a, ties, at = 0.0, 0.0, 0
    while at < len(ordered):
        end = at
        while end < len(ordered) and ordered[end][0] == ordered[at][0]:
            end += 1
        rank, tied = (at + 1 + end) / 2, end - at
        ranks_of_a += rank * sum(side == 0 for _value, side in ordered[at:end])
        ties += tied**3 - tied
        at = end
    n, m = len(a), len(b)
    u = ranks_of_a - n * (n + 1) / 2
    spread = math.sqrt(n * m / 12 * ((n + m + 1) - ties / ((n + m) * (n + m - 1))))
    return math.erfc(abs(u - n * m / 2) / spread / math.sqrt(2)) if spread else 1.0
