"""A request's cache rule at work: times to live as its blocks are indexed and used, pins and priorities at its end."""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.preloads.leaving import Leaving, tier_bits
from octavo_scheduler.preloads.quota import over_quota
from octavo_scheduler.preloads.state import RequestPin
from octavo_scheduler.request import Choice, Request, Sequence


def until_us(request: Request) -> int:
    """When its blocks end; 0: never."""
    return request.submitted_us + request.cache.ttl_us if request.cache.ttl_us else 0


def indexed(cell: Cell, worker: Worker, request: Request, keys: list[bytes], parent: bytes | None) -> bool:
    """A run of its chain was indexed. False when the worker must not bring it back in a Hello: that says no time."""
    caching = cell.caching
    if parent is None:
        caching.note_head(keys[0], request.tenant, worker.index.nodes)
    end_us = until_us(request)
    if end_us:
        for key in keys:
            caching.lifetimes.begin(key, end_us)
            if caching.lifetimes.next_us() == end_us:
                cell.timers.at(end_us, "ttl")
    elif len(caching.lifetimes):
        for key in keys:
            caching.lifetimes.forget(key)  # of a block that was evicted before its time
    return not end_us


def shared(cell: Cell, choice: Choice, blocks: int, block_tokens: int) -> None:
    """It uses leading blocks that others left: the longer wish counts."""
    if blocks and len(cell.caching.lifetimes):
        keys = [key for at in range(blocks) if (key := choice.key(at, block_tokens)) is not None]
        cell.caching.lifetimes.extend(keys, until_us(choice.request))


def leave(cell: Cell, worker: Worker, sequence: Sequence) -> None:
    """It is about to let its blocks go: pins and priorities of a request that finished."""
    request = sequence.choice.request
    rule, end_us = request.cache, until_us(request)
    finished = request.outcome is not None and request.outcome.outcome == "finished"
    if rule.plain or not finished or 0 < end_us <= cell.now_us:
        return
    full = min(sequence.computed_len // worker.block_tokens, len(sequence.blocks))
    keys = [key for at in range(full) if (key := sequence.choice.key(at, worker.block_tokens)) is not None]
    if rule.priority:
        worker.index.prioritize(keys, rule.priority, end_us)
    # asked again: others that were taken on beside it may have used up the quota since
    if rule.pin and not over_quota(cell, request.tenant, len(keys)):
        cell.counters["pinned_requests"] += 1
        pin = worker.index.pin(keys, end_us, rule.priority)
        cell.caching.pins.append(RequestPin(request.tenant, worker.epoch, pin, tuple(keys)))


def leaving(worker: Worker, request: Request, key: bytes, parent: bytes, depth: int) -> Leaving:
    """What a store is told of block `depth` of its chain."""
    rule = request.cache
    cost_us = min(2**32 - 1, int(worker.block_cost_us(depth)))
    return Leaving(key, parent, request.namespace_tag, until_us(request), rule.priority, cost_us, tier_bits(rule))
