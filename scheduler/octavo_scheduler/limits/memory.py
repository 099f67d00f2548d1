"""A worker that could not allocate: its admission closes for a while, its pool shrinks, the least urgent make room.

What is retired from the pool comes back bit by bit while nothing fails. A worker that cannot have its whole pool's memory says so
before anything fails, and what it lacks is retired until it says otherwise. The pool never shrinks below what the largest
request under way needs to its end, so that nobody who was taken on is turned away for it.
"""

from __future__ import annotations

from octavo_scheduler.admission import blocks_for, least_blocks
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.policy import SECOND_US
from octavo_scheduler.request import Request

SHRINK_SHARE = 0.05
"""Of the pool, per failure."""
CLOSED_US = 500_000
RECOVER_US = 10 * SECOND_US
"""Without a failure for so long, one share comes back, and again after as long."""


def failed(cell: Cell, worker: Worker, failures: int) -> None:
    """The worker reports `failures` failed allocations since its last report."""
    cell.counters["failed_allocations"] += failures
    close(cell, worker)
    share = max(1, int(worker.pool.usable_blocks * SHRINK_SHARE))
    shrink_to(cell, worker, worker.pool.usable_blocks - share)


def close(cell: Cell, worker: Worker) -> None:
    """Admits nothing there for a while."""
    worker.closed_until_us = cell.now_us + CLOSED_US
    worker.recovers_us = cell.now_us + RECOVER_US
    cell.timers.at(worker.closed_until_us, "wake")
    cell.timers.at(worker.recovers_us, "recover")


def shrink_to(cell: Cell, worker: Worker, blocks: int) -> None:
    """Retires blocks down to `blocks` usable ones: free ones now, others as they come back."""
    floor = max((_need(worker, request) for request in _bound_to(cell, worker)), default=1)
    target = max(blocks, min(floor, worker.pool.usable_blocks), 1)
    if target < worker.pool.usable_blocks:
        worker.pool.retire(worker.pool.usable_blocks - target)
        cell.fleet.changed()
        cell.rates.changed()
        cell.effects.limits_changed = True


def backed(cell: Cell, worker: Worker, blocks: int) -> None:
    """The worker says that memory backs so many blocks of its pool, the null block included; 0: all of them."""
    most = min(blocks or worker.pool.num_blocks, worker.pool.num_blocks) - 1
    worker.backed_blocks = most = max(1, most)
    if worker.pool.usable_blocks > most:
        shrink_to(cell, worker, most)
    elif cell.now_us >= worker.recovers_us:  # else the timer brings back what failures took
        _restore(cell, worker, most - worker.pool.usable_blocks)


def recover(cell: Cell) -> None:
    """The timer is due: workers that had no failure for a while get a share of their pool back."""
    for worker in cell.fleet.workers.values():
        if worker.pool.retired_blocks and cell.now_us >= worker.recovers_us:
            most = worker.backed_blocks
            share = max(1, int(most * SHRINK_SHARE))
            _restore(cell, worker, min(share, most - worker.pool.usable_blocks))
            if worker.pool.usable_blocks < most:
                worker.recovers_us = cell.now_us + RECOVER_US
                cell.timers.at(worker.recovers_us, "recover")


def _restore(cell: Cell, worker: Worker, blocks: int) -> None:
    if blocks > 0 and worker.pool.restore(blocks):
        cell.fleet.changed()
        cell.rates.changed()
        cell.effects.limits_changed = True
        cell.admission_due = True


def _bound_to(cell: Cell, worker: Worker) -> list[Request]:
    """Requests that run there, and those that wait and would fit no other worker."""
    others = [other.pool.usable_blocks for other in cell.fleet.accepting() if other is not worker]
    largest = max(others, default=0)
    waiting = [request for request in cell.queue if _need(worker, request) > largest]
    return [sequence.choice.request for sequence in worker.sequences.values()] + waiting


def _need(worker: Worker, request: Request) -> int:
    size = worker.block_tokens
    start = blocks_for(len(request.prompt) + 1, size)
    beams = request.beams is not None  # which run to their end together, where choices may take turns
    choices = len(request.choices) if beams else 1
    return max(start, least_blocks(len(request.prompt), request.max_tokens, choices, size, beams))
