"""Who cannot start in this round of admissions, and whom that holds back.

A request that lacks room keeps for itself every worker that it may run on (its pool's, those that are large enough): whoever comes
behind it may start on the others. So it starts when it would have started without them. One that any worker could serve holds back
everybody. One whose tenant has its share of slots or of the KV pool holds back nobody but its tenant.
"""

from __future__ import annotations

from octavo_scheduler.admission import can_ever_hold, next_group, size_of
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.request import Request

MOST_LOOKED_AT = 32
"""Behind one that waits for certain workers, so many are looked at that turn out to need the same ones: a round costs as much
however many wait. Whole pools and tenants are passed over without counting."""


class Jam:
    """State of one round."""

    __slots__ = ("_cell", "_kept", "_left", "_pools", "_tenants", "total")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._kept: set[Worker] = set()
        self._pools: set[str] = set()  # all workers of these are kept
        self._tenants: set[str] = set()
        self._left = MOST_LOOKED_AT
        self.total = False
        """Nobody who waits can start: the round is over."""

    @property
    def passes(self) -> bool:
        """Who starts now passes somebody who waits for other workers."""
        return bool(self._kept)

    def holds(self, request: Request) -> bool:
        """Whether somebody before `request` holds it back."""
        if not (self._kept or self._tenants):
            return False
        if request.pool in self._pools or request.tenant in self._tenants:
            return True
        if not self._kept or not self._kept.issuperset(self._able(request)):
            return False
        self._looked_at()
        return True

    def open_to(self, request: Request) -> list[Worker]:
        """Where it may start now: healthy workers of its pool that are kept for nobody before it."""
        workers = self._cell.fleet.open_to(request.pool, self._cell.now_us)
        return [worker for worker in workers if worker not in self._kept] if self._kept else workers

    def hold(self, request: Request) -> None:
        """`request` lacks room wherever it may run."""
        accepting, able = self._cell.fleet.accepting(request.pool), self._able(request)
        if not request.pool and len(able) == len(accepting):
            self.total = True
            return
        if self._kept:
            self._looked_at()
        self._kept.update(able)
        if self._kept.issuperset(accepting):
            self._pools.add(request.pool)
        self.total = self.total or self._all_held()

    def holds_tenant(self, request: Request) -> bool:
        """Whether everyone of its tenant is held back."""
        return request.tenant in self._tenants

    def hold_tenant(self, request: Request) -> None:
        """Nobody of its tenant can start; others may."""
        self._tenants.add(request.tenant)
        self.total = self.total or self._all_held()

    def _able(self, request: Request) -> list[Worker]:
        """Workers of its pool that can hold it to its end. Where prefill and decode are apart each has a part in it."""
        fleet, workers = self._cell.fleet, self._cell.fleet.accepting(request.pool)
        shapes = fleet.shapes(request.pool)
        if len(shapes) < 2 or fleet.splits:
            return workers
        size = size_of(request, len(next_group(request.waiting_choices())))
        roomy = {shape for shape in shapes if can_ever_hold(shape, *size)}
        return workers if len(roomy) == len(shapes) else [item for item in workers if item.shape() in roomy]

    def _looked_at(self) -> None:
        self._left -= 1
        self.total = self.total or not self._left

    def _all_held(self) -> bool:
        if self._kept and self._kept.issuperset(self._cell.fleet.accepting()):
            return True
        load = self._cell.queue.load
        return load.requests_in(self._pools, self._tenants) == load.total.requests
