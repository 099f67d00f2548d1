"""Which workers a waiting request may join now: `scheduler.batching`.

Continuous: any, at its next step. Static: an idle one takes what waits, up to its sequences, and then nobody until the
whole batch has ended. Dynamic: as static, but an idle worker first waits for a full batch, `batching_max_wait_us` after
its first request began to wait at most.
"""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.request import Request


def joinable(cell: Cell, workers: list[Worker], request: Request) -> list[Worker]:
    """Those of `workers` whose batch is open to the request at the head; may set a timer for when one opens."""
    if cell.policy.batching == "continuous":
        return workers
    return [worker for worker in workers if _is_open(cell, worker, request)]


def _is_open(cell: Cell, worker: Worker, request: Request) -> bool:
    if worker.sequences:
        return worker.batch_since_us == cell.now_us  # the requests of one moment fill a batch together
    if cell.policy.batching == "static" or len(cell.queue) >= worker.max_seqs:
        return True
    due_us = request.waiting_since_us + cell.policy.batching_max_wait_us
    if worker.batch_due_us < 0 or due_us < worker.batch_due_us:
        worker.batch_due_us = due_us
        cell.timers.at(due_us, "wake")
    return cell.now_us >= worker.batch_due_us
