"""A worker leaves in order: nothing new, what runs ends, what is left at the deadline goes to others, then its stream ends.

Asked by an operator (DrainRequested, which the worker is told with Leave) or by the worker itself (SIGTERM: its reports say
so). It is over when nothing runs there, nothing is copied from there, and the worker has said that it leaves: a process
that had not heard of it would dial in again.
"""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.events import DrainRequested
from octavo_scheduler.fleet import Worker
from octavo_scheduler.orders import Leave
from octavo_scheduler.policy import SECOND_US
from octavo_scheduler.request import Phase
from octavo_scheduler.residency import stop

RELEASE_US = 5 * SECOND_US
"""After the deadline a worker has so long to let go of what was taken from it; its silence is watched besides."""


def begin(cell: Cell, event: DrainRequested) -> None:
    """An operator's order; a repeat may only bring the deadline forward. Unknown workers: nothing."""
    worker = cell.fleet.by_name(event.worker_id)
    if worker is None:
        return
    until_us = cell.now_us + event.deadline_us
    if worker.drain_until_us < 0 or until_us < worker.drain_until_us:
        worker.drain_until_us = until_us
        cell.timers.at(until_us, "drain")
    if not worker.leave_ordered:
        worker.leave_ordered = True
        worker.order(Leave())
        cell.touched[worker] = None
    close(cell, worker)


def close(cell: Cell, worker: Worker) -> None:
    """Admits nothing there from now on."""
    if worker.draining:
        return
    worker.draining = True
    cell.fleet.changed()
    cell.rates.changed()
    cell.effects.limits_changed = True
    cell.admission_due = True  # who waited for this worker's prefix or room looks elsewhere


def hand_over(cell: Cell) -> list[Worker]:
    """The timer is due: sequences of workers past their deadline go back to the queue, with what they have said so far.

    Returns workers that have not let go in RELEASE_US more; they are to be given up.
    """
    overdue: list[Worker] = []
    for worker in list(cell.fleet.workers.values()):
        if worker.drain_until_us < 0 or cell.now_us < worker.drain_until_us:
            continue
        if cell.now_us >= worker.drain_until_us + RELEASE_US:
            overdue.append(worker)
            continue
        cell.timers.at(worker.drain_until_us + RELEASE_US, "drain")
        worker.offload_candidates.clear()  # what is not under way by now stays behind
        for sequence in list(worker.sequences.values()):
            if not sequence.stopping and sequence.choice.phase is Phase.RUNNING:
                worker.handed_over += 1
                cell.counters["handed_over"] += 1
                sequence.choice.request.waiting_since_us = cell.now_us
                stop(cell, sequence, "preempt")
    return overdue


def is_over(worker: Worker) -> bool:
    """Nothing holds it any more, and its process knows that it is to end."""
    return worker.says_leaving and worker.idle()
