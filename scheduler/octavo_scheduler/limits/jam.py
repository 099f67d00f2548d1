"""Who cannot start in this round of admissions, and whom that holds back.

A request that lacks room holds back everyone behind it who could take that room: all, or, where it may run on some workers
only, those of the same pool. One whose tenant has its share of the KV pool holds back nobody but its tenant.
"""

from __future__ import annotations

from octavo_scheduler.admission import Plan
from octavo_scheduler.cell import Cell
from octavo_scheduler.request import Request


class Jam:
    """State of one round."""

    __slots__ = ("_cell", "_pools", "_tenants", "total")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._pools: set[str] = set()
        self._tenants: set[str] = set()
        self.total = False
        """Nobody who waits can start: the round is over."""

    def holds(self, request: Request) -> bool:
        """Whether somebody before `request` holds it back."""
        return bool(self._pools or self._tenants) and (request.pool in self._pools or request.tenant in self._tenants)

    def pool(self, request: Request) -> None:
        """`request` lacks room where it may run."""
        self._pools.add(request.pool)
        self.total = not request.pool or self._all_held()

    def holds_tenant(self, request: Request) -> bool:
        """Whether everyone of its tenant is held back."""
        return request.tenant in self._tenants

    def hold_tenant(self, request: Request) -> None:
        """Nobody of its tenant can start; others may."""
        self._tenants.add(request.tenant)
        self.total = self._all_held()

    def over_share(self, request: Request, plan: Plan) -> bool:
        """Whether the plan would give its tenant too much of the worker's pool; then the tenant has to wait."""
        more = plan.free_needed + plan.growth
        return self._cell.tenants.over_share(plan.worker, request.tenant, more)

    def _all_held(self) -> bool:
        load = self._cell.queue.load
        return load.requests_in(self._pools, self._tenants) == load.total.requests
