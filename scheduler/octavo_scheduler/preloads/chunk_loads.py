"""Chunks of a prompt that its worker's pool lacks and a store holds: loaded ahead of the blend where that is sooner than computing them.

The request waits in the queue for them, no longer than the load saves; they enter the pool's index under the preload's own keys, so
the next request finds them there.
"""

from __future__ import annotations

from octavo_scheduler.admission import Plan, load_path
from octavo_scheduler.books.book import who_is
from octavo_scheduler.cell import Cell
from octavo_scheduler.events import TransferDone
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves import copies
from octavo_scheduler.moves.credit import room
from octavo_scheduler.orders import Label, Load
from octavo_scheduler.preloads.blend_parts import CAPABILITY, preload_of
from octavo_scheduler.preloads.book import Preload
from octavo_scheduler.reach import Reach
from octavo_scheduler.request import NO_PARENT, Request
from octavo_scheduler.tiers import Transfer


def waits(cell: Cell, request: Request, plan: Plan) -> bool:
    """Whether chunks of it are on their way into the worker's pool; orders them when it is looked at first."""
    worker = plan.worker
    if not request.blended or CAPABILITY not in worker.hello.capabilities or request.handoff is not None:
        return False
    if request.chunks_until_us < 0:
        saved_us = _order_all(cell, request, plan)
        request.chunks_until_us = cell.now_us + int(saved_us)
        if saved_us:
            cell.timers.at(request.chunks_until_us, "join", request)
    return cell.now_us < request.chunks_until_us and bool(request.copies)


def _order_all(cell: Cell, request: Request, plan: Plan) -> float:
    """Orders what pays; the prefill that this spares, in microseconds."""
    worker, reach = plan.worker, cell.fleet.reach_of(plan.worker, cell.now_us)
    if reach is None:
        return 0.0
    saved_us, left = 0.0, room(cell, worker, request) - plan.free_needed
    ordered: set[bytes] = set()
    for chunk in request.cache.chunks:
        preload = preload_of(cell.caching.book, request, chunk)
        if preload is None:
            continue
        keys = preload.keys[: -(-(chunk.skip + chunk.tokens) // worker.block_tokens)]
        have = worker.index.match_len(keys, len(keys))
        path = load_path(worker, keys, have, cell.policy, reach, now_us=cell.now_us)
        spared_us = (1 - cell.policy.blending_share) * path.run * worker.block_tokens * worker.costs.prefill_token_us
        pays = path.way == "load" and (cell.policy.load_path == "load" or path.load_us < spared_us)
        if not pays or path.run > left or keys[have] in ordered:
            continue
        _order(cell, request, worker, preload, have, path.run, reach)
        ordered.add(keys[have])
        left -= path.run
        saved_us += max(spared_us, path.load_us)
    return saved_us


def _order(cell: Cell, request: Request, worker: Worker, preload: Preload, have: int, run: int, reach: Reach) -> None:
    keys = preload.keys[have : have + run]
    blocks = worker.take(run, "admission")
    for block in blocks:
        worker.pool.hold_transfer(block)
        worker.pool.drop(block)
    transfer = Transfer(cell.number(), "load", blocks, keys, cell.now_us, purpose="chunk", request=request)
    transfer.base_blocks, transfer.preload = have, preload.name
    transfer.sources = reach.sources(keys) if reach.peers else []
    copies.begin(worker, transfer, request)
    load = Load(transfer.xfer_id, keys, blocks, cell.policy.load_limit_us, transfer.sources)
    transfer.order_number = worker.order(load)
    cell.touched[worker] = None
    cell.counters["loads_started"] += 1


def arrived(cell: Cell, worker: Worker, transfer: Transfer, done: TransferDone, ok: int, labels: Label) -> None:
    """The transfer still holds the blocks: they are the preload's, unless it was replaced, removed or renamed meanwhile."""
    request = transfer.request
    assert request is not None
    cell.counters["loaded_blocks"] += ok
    cell.counters["chunks_loaded"] += ok
    cell.ledger.book("blending", who_is(request), cost_ms=done.transfer_us / 1000, cost_bytes=done.bytes)
    preload = cell.caching.book.active.get((request.tenant, transfer.preload))
    base = transfer.base_blocks
    if preload is None or preload.keys[base : base + len(transfer.keys)] != transfer.keys:
        return
    parent = preload.keys[base - 1] if base else None
    for block, key in zip(transfer.blocks[:ok], transfer.keys[:ok], strict=True):
        if not worker.index.add(key, block, parent, cell.now_us):
            if key not in worker.index:
                break  # what it stands on was evicted meanwhile
        else:
            if parent is None:
                cell.caching.note_head(key, request.tenant, worker.index.nodes)
            cell.caching.lifetimes.forget(key)
            labels.block_ids.append(block)
            labels.keys.append(key)
            labels.parents.append(parent or NO_PARENT)
        parent = key
