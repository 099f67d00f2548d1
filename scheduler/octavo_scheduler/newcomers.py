"""A request that comes while nobody waits and nothing else has happened: it starts at once, without a look at any line.

That is most requests of a cell that is not overloaded. What could be in its way is asked where the general way (core.py) asks it
too (placement.start); where it cannot start, it goes that way after all.
"""

from __future__ import annotations

from octavo_scheduler import placement, seating
from octavo_scheduler.cell import Cell


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
    plan, hindrance = placement.start(cell, request, cell.fleet.open_to(request.pool, cell.now_us))
    if plan is None or hindrance:
        cell.queue.stay(request)
        cell.admission_due = True
    else:
        seating.admit(cell, plan)
        cell.queue.leave(request)
