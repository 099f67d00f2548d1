"""Blocks that go to the host's kvstore because somebody is to go on with them: of a swap, a handoff or a pause.

Unlike write-behind, which copies what is cached when there is nothing better to do, an export is ordered at once. Its
blocks stay held until the copy has ended, and so does its request: a cancel waits for both.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves import copies
from octavo_scheduler.preloads import wishes
from octavo_scheduler.preloads.leaving import Leaving, offload_order
from octavo_scheduler.request import NO_PARENT, Choice, Request
from octavo_scheduler.tiers import Directory, Purpose, Transfer

Item = tuple[int, Leaving]
"""A block, and what its store is told of it."""


def answering(cell: Cell, worker: Worker) -> Directory | None:
    """The directory of the worker's kvstore, when that is known whole and worth asking."""
    directory = cell.fleet.directory_of(worker)
    return directory if directory is not None and directory.synced and directory.answers(cell.now_us) else None


def items_of(worker: Worker, choice: Choice, blocks: list[int], start: int, end: int) -> list[Item]:
    """Blocks `start` to `end` of a table; none when they have no keys (cache off) or must stay in the pool."""
    request, size = choice.request, worker.block_tokens
    if not request.cache.goes_below:
        return []
    items: list[Item] = []
    parent = (choice.key(start - 1, size) if start else NO_PARENT) or NO_PARENT
    for at in range(start, end):
        key = choice.key(at, size)
        if key is None:
            return []
        items.append((blocks[at], wishes.leaving(worker, request, key, parent, at)))
        parent = key
    return items


def order_exports(
    cell: Cell, worker: Worker, request: Request, items: Iterable[Item], purpose: Purpose
) -> list[Transfer]:
    """Orders the copies, in transfers as small as write-behind's. The blocks must be computed whole, and held or indexed."""
    waiting = list(items)
    ordered: list[Transfer] = []
    most = max(1, cell.policy.max_offload_blocks)
    for start in range(0, len(waiting), most):
        blocks = [block for block, _leaving in waiting[start : start + most]]
        leaving = [item for _block, item in waiting[start : start + most]]
        for block in blocks:
            worker.pool.hold_transfer(block)
        transfer = Transfer(cell.number(), "offload", blocks, [item.key for item in leaving], cell.now_us)
        transfer.purpose, transfer.request = purpose, request
        copies.begin(worker, transfer, request)
        transfer.order_number = worker.order(offload_order(transfer.xfer_id, blocks, leaving, cell.now_us))
        ordered.append(transfer)
    if ordered:
        cell.touched[worker] = None
        cell.counters["exported_blocks"] += len(waiting)
    return ordered
