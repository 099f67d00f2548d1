"""What waits, in the queue's units: requests, prompt tokens, KV tokens, worker time; by pool, tenant and priority.

The queue adds a request when it begins to wait and takes the same amounts out when it no longer does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo_scheduler.policy import FAIR
from octavo_scheduler.request import Request

Part = tuple[str, str, int]  # pool, tenant, priority


@dataclass(slots=True)
class Amount:
    """Sums over waiting requests. Time is worker time in microseconds, as predicted when each was taken on."""

    requests: int = 0
    prompt_tokens: int = 0
    kv_tokens: int = 0
    gpu_us: float = 0.0


class QueueLoad:
    """The sums of one queue. `total` is over all parts."""

    __slots__ = ("_parts", "total")

    def __init__(self) -> None:
        self.total = Amount()
        self._parts: dict[Part, Amount] = {}

    def add(self, request: Request) -> None:
        """It begins to wait."""
        part = self._parts.setdefault(_part(request), Amount())
        for amount in (self.total, part):
            amount.requests += 1
            amount.prompt_tokens += len(request.prompt)
            amount.kv_tokens += request.claimed_kv_tokens
            amount.gpu_us += request.claimed_gpu_us

    def take(self, request: Request) -> None:
        """It waits no longer. Its claims must be those with which it was added."""
        key = _part(request)
        part = self._parts[key]
        for amount in (self.total, part):
            amount.requests -= 1
            amount.prompt_tokens -= len(request.prompt)
            amount.kv_tokens -= request.claimed_kv_tokens
            amount.gpu_us -= request.claimed_gpu_us
        if not part.requests:
            del self._parts[key]
        if not self.total.requests:
            self.total.gpu_us = 0.0  # what rounding has left

    def requests_in(self, pools: set[str], tenants: set[str]) -> int:
        """Requests that wait in one of the pools or for one of the tenants."""
        return sum(
            amount.requests
            for (pool, tenant, _priority), amount in self._parts.items()
            if pool in pools or tenant in tenants
        )

    def ahead_us(
        self, order: str, pool: str, tenant: str, priority: int, own_us: float, weights: Mapping[str, float]
    ) -> float:
        """Worker time that is served before a newcomer whose own work is `own_us`.

        By arrival everything that waits is ahead; by priority what is as urgent or more. Under a fair order the others are
        ahead as far as generalized processor sharing (Parekh and Gallager 1993) serves them until the newcomer is done.
        """
        fair = order in FAIR
        others: dict[str, float] = {}
        mine = 0.0
        for (part_pool, part_tenant, part_priority), amount in self._parts.items():
            if part_pool and pool and part_pool != pool:
                continue
            if order == "priority" and part_priority < priority:
                continue
            if not fair or part_tenant == tenant:
                mine += amount.gpu_us
            else:
                others[part_tenant] = others.get(part_tenant, 0.0) + amount.gpu_us
        until_us = mine + own_us
        share = weights.get(tenant, 1.0)
        return mine + sum(min(work, until_us * weights.get(name, 1.0) / share) for name, work in others.items())


def _part(request: Request) -> Part:
    return request.pool, request.tenant, request.priority
