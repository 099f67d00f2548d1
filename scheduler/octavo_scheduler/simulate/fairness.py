"""The largest service gap between tenants that both have work outstanding.

Service is predicted worker time. Within an interval in which both of a pair are backlogged, the gap is the difference
between the service that each received (Sheng et al., Fairness in Serving Large Language Models, arXiv 2401.00588).
"""

from __future__ import annotations

from itertools import combinations


class ServiceGaps:
    """Watches the service of each tenant at sampling times. Milliseconds."""

    __slots__ = ("_open", "max_gap_ms", "outstanding", "service_ms")

    def __init__(self) -> None:
        self.service_ms: dict[str, float] = {}
        self.outstanding: dict[str, int] = {}
        self.max_gap_ms = 0.0
        self._open: dict[tuple[str, str], tuple[float, float]] = {}  # pair -> least and largest difference

    def arrived(self, tenant: str) -> None:
        """One request more is outstanding."""
        self.outstanding[tenant] = self.outstanding.get(tenant, 0) + 1
        self.service_ms.setdefault(tenant, 0.0)

    def ended(self, tenant: str) -> None:
        """One less."""
        self.outstanding[tenant] -= 1

    def sample(self) -> None:
        """Looks at every pair of tenants with work outstanding."""
        busy = [tenant for tenant, count in self.outstanding.items() if count]
        still: dict[tuple[str, str], tuple[float, float]] = {}
        for one, other in combinations(sorted(busy), 2):
            difference = self.service_ms[one] - self.service_ms[other]
            low, high = self._open.get((one, other), (difference, difference))
            low, high = min(low, difference), max(high, difference)
            still[one, other] = (low, high)
            self.max_gap_ms = max(self.max_gap_ms, high - low)
        self._open = still
