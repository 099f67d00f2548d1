"""A whole fleet: workers spread over cells, requests spread over cells as gateways do, the cells run one after another."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_scheduler.moves.offer import ROLES
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellResult, CellRun
from octavo_scheduler.simulate.hardware import BadPlan, Hardware
from octavo_scheduler.simulate.workload import Row, spread_key

MAX_WORKERS = 4000
CELL_WORKERS = 128
SAMPLES = 200


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate, besides the requests."""

    hardware: Hardware
    policy: Policy
    workers: int
    cell_workers: int = CELL_WORKERS
    roles: tuple[str, ...] = ()
    """One per worker, all of them in one cell; empty: every worker does both."""

    def __post_init__(self) -> None:
        if self.roles and (len(self.roles) != self.workers or self.workers > self.cell_workers):
            raise BadPlan(
                "roles", f"{len(self.roles)} roles must be one for each of {self.workers} workers of one cell"
            )
        for role in self.roles:
            if role not in ROLES:
                raise BadPlan("roles", f"{role!r} is unknown; use {', '.join(ROLES)}")
        if "prefill" in self.roles and not self.hardware.host_blocks:
            raise BadPlan("hardware.host_blocks", "0 leaves no kvstore to hand over through; give at least the pool's")
        if not 1 <= self.workers <= MAX_WORKERS:
            raise BadPlan("workers", f"{self.workers} must lie in [1, {MAX_WORKERS}]")
        if self.cell_workers < 1:
            raise BadPlan("cell_workers", f"{self.cell_workers} is too few; give at least 1")

    def cells(self) -> list[int]:
        """Workers of each cell: as few cells as the limit allows, as even as can be."""
        count = -(-self.workers // self.cell_workers)
        return [self.workers // count + (index < self.workers % count) for index in range(count)]


def run_fleet(plan: Plan, rows: Sequence[Row]) -> list[CellResult]:
    """One result per cell. Raises BadPlan when the rows are not in order of time, or name an unknown SLO class.

    A conversation, and requests with the same beginning, share a cell: only there can its index match.
    """
    sizes = plan.cells()
    shares: list[list[tuple[int, Row]]] = [[] for _ in sizes]
    cell_of: list[int] = []
    last_us = 0
    for number, row in enumerate(rows):
        if row.slo_class and row.slo_class not in plan.policy.slo_classes:
            known = ", ".join(sorted(plan.policy.slo_classes))
            raise BadPlan(
                f"requests[{number}].slo_class", f"{row.slo_class!r} is unknown; scheduler.slo_classes has {known}"
            )
        if row.after >= 0:
            cell_of.append(cell_of[row.after])
        else:
            if row.at_us < last_us:
                raise BadPlan(f"requests[{number}].at_us", f"{row.at_us} is before its predecessor; sort by time")
            last_us = row.at_us
            cell_of.append(spread_key(row) % len(sizes))
        shares[cell_of[-1]].append((number, row))
    sample_us = max(10_000, last_us // SAMPLES)
    results: list[CellResult] = []
    for workers, share in zip(sizes, shares, strict=True):
        if results:
            gc.collect()  # a core refers to itself; with its pools it is too large to wait for the collector
        results.append(CellRun(plan.policy, plan.hardware, workers, share, sample_us, roles=plan.roles).run())
    return results
