"""Copies that belong to a request: it holds on until they have ended, and they are abandoned when it needs them no more.

An abandoned copy ends as soon as the worker can fence it, and its blocks come back then instead of with its last byte.
"""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.orders import Abort
from octavo_scheduler.request import Request
from octavo_scheduler.tiers import Transfer


def begin(worker: Worker, transfer: Transfer, request: Request) -> None:
    """The copy is about to be ordered."""
    worker.transfers[transfer.xfer_id] = transfer
    request.holds += 1
    request.copies[transfer.xfer_id] = worker.epoch


def ended(transfer: Transfer) -> Request | None:
    """The copy has ended, or its worker is lost: whose hold ends with it."""
    owner = transfer.owner
    if owner is not None:
        owner.copies.pop(transfer.xfer_id, None)
    return owner


def abandon(cell: Cell, worker: Worker, xfer_id: int) -> None:
    """Orders the end of one copy, once."""
    transfer = worker.transfers.get(xfer_id)
    if transfer is None or transfer.abandoned:
        return
    transfer.abandoned = True
    worker.order(Abort(xfer_id))
    cell.touched[worker] = None
    cell.counters["abandoned_copies"] += 1


def abandon_all(cell: Cell, request: Request) -> None:
    """The request has ended without an answer: nobody waits for any of its copies."""
    for xfer_id, epoch in request.copies.items():
        worker = cell.fleet.workers.get(epoch)
        if worker is not None:
            abandon(cell, worker, xfer_id)
