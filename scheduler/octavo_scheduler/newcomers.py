"""A request that comes while nobody waits and nothing else has happened: it starts at once, without a look at any line.

That is most requests of a cell that is not overloaded. Whatever such a request could meet on the general way (core.py) is
the same here, in the same order; where it cannot start, it goes that way after all.
"""

from __future__ import annotations

from octavo_scheduler import placement, seating
from octavo_scheduler.admission import Plan, fits
from octavo_scheduler.cell import Cell
from octavo_scheduler.policies.joining import has_its_share
from octavo_scheduler.request import Request


def comes_alone(cell: Cell, next_audit_us: int) -> bool:
    """Whether nothing but the newcomer asks for an admission in this event; else it now waits in its line for its turn."""
    request, timer_us = cell.newcomer, cell.timers.next_us
    if request is None:
        return False
    if (
        len(cell.queue)
        or cell.arriving
        or cell.touched
        or cell.admission_due
        or cell.fleet.splits
        or 0 < timer_us <= cell.now_us
        or cell.now_us >= next_audit_us
        or len(request.choices) > 1
        or request.resubmitted
        or request.blended
        or request.sized_for != cell.fleet.version
        or cell.policy.batching != "continuous"
    ):
        cell.newcomer = None
        cell.queue.push(request)
        cell.admission_due = True
        return False
    return True


def admit(cell: Cell) -> None:
    """Seats the newcomer that came alone when it can start at once; else it goes the way of all that wait."""
    request, cell.newcomer = cell.newcomer, None
    if request is None:
        return
    cell.queue.enter(request, cell.now_us)
    plan = _plan(cell, request)
    if plan is None:
        cell.queue.stay(request)
        cell.admission_due = True
    else:
        seating.admit(cell, plan)
        cell.queue.leave(request)


def _plan(cell: Cell, request: Request) -> Plan | None:
    """How it starts in this very event; None: it does not."""
    if len(cell.tenants_about) > 1 and has_its_share(cell, request):
        return None
    plan = placement.best_plan(cell, request)
    if plan is None or plan.waits or (plan.worker.computing and placement.waits_for_join(cell, request, plan)):
        return None
    if cell.tenants.limited and cell.tenants.over_share(plan.worker, request.tenant, plan.free_needed + plan.growth):
        return None
    return plan if plan.fits or fits(plan, cell.policy, cell.history) else None
