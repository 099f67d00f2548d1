"""What is booked when: at an admission, at the end of a load, at a first token, when blocks are left in the cache.

Savings are estimates of the cost model; trial.py holds them against requests that go without. Matching costs what the
core is measured to take per block, which no event tells.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo_scheduler.admission import Plan, usable_keys
from octavo_scheduler.books.book import who_is
from octavo_scheduler.cell import Cell
from octavo_scheduler.events import TransferDone
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits.starting import start_us
from octavo_scheduler.moves.pause_costs import scarcity
from octavo_scheduler.request import LoadRecord, Request, Sequence, Tried

MATCH_BLOCK_MS = 0.001
ROUTE_WORKER_MS = 0.002
"""Core time per block that is matched and granted, per worker that is rated: bench/core.py."""
TRUSTED_TRIALS = 3
WATCHED_SHARE = 4
"""Of the admissions that are in no trial, one of so many is the other side of them."""


def price(cell: Cell, worker: Worker) -> None:
    """Brings the price of a block of this worker up to now."""
    worker.holding.advance(cell.now_us, scarcity(cell, worker), worker.pool.usable_blocks)


def settle(cell: Cell, worker: Worker) -> None:
    """Books what blocks have cost that are cached no more."""
    for (technique, who), cost_ms in worker.holding.take_due().items():
        cell.ledger.book(technique, who, held_ms=cost_ms, entries=0)


def rested(cell: Cell, worker: Worker, sequence: Sequence) -> None:
    """Its indexed blocks stay in the cache when it leaves."""
    index, request = worker.index, sequence.choice.request
    price(cell, worker)
    worker.holding.rest(index.indexed(sequence.blocks), (_cache_of(request), who_is(request)))


def _cache_of(request: Request) -> str:
    return "preload" if request.cache.preload else "prefix_cache"


def admitted(cell: Cell, plan: Plan, leader: Sequence, first: bool) -> None:
    """A sequence was seated: what the cache, a join and the choice of the worker gave it."""
    worker, request = plan.worker, leader.choice.request
    who, costs, blocks = who_is(request), worker.costs, len(plan.matched)
    if worker.holding.at_us != cell.now_us:
        price(cell, worker)
    if blocks:
        worker.holding.leave(plan.matched)
    if worker.holding.due_ms:
        settle(cell, worker)
    cached = blocks * worker.block_tokens
    if blocks:
        cell.ledger.book(
            _cache_of(request),
            who,
            saved_ms=cached * costs.prefill_token_us / 1000,
            cost_ms=blocks * MATCH_BLOCK_MS,
            saved_bytes=blocks * worker.block_bytes,
            hit_tokens=cached,
            asked_tokens=leader.length,
        )
    else:
        cell.ledger.asked("preload" if request.cache.preload else "prefix_cache", who, leader.length)
    if not first:
        return
    if (path := plan.path) is not None and path.way == "recompute" and path.whole_us:
        best_us = min(path.whole_us, path.overlap_us or path.whole_us)
        _came(cell, plan.keys[blocks:], (path.recompute_us - best_us) / 1000)
    if request.join_since_us >= 0:
        joined = max(0, blocks - request.join_matched) * worker.block_tokens
        saved_ms, waited_ms = joined * costs.prefill_token_us / 1000, (cell.now_us - request.join_since_us) / 1000
        cell.ledger.book("join", who, saved_ms=saved_ms, cost_ms=waited_ms, hit_tokens=joined)
        cell.switches.observe("join", request, saved_ms, waited_ms)
    if plan.routed_us:
        rated_ms = len(cell.fleet.workers) * ROUTE_WORKER_MS
        cell.ledger.book("routing", who, saved_ms=plan.routed_us / 1000, cost_ms=rated_ms, hit_tokens=cached)
    if plan.spreads:
        again_ms = plan.spread_tokens * costs.prefill_token_us / 1000
        cell.ledger.book("replication", who, saved_ms=plan.spread_us / 1000 + again_ms, cost_ms=again_ms)
    if not cell.rates.mix.seen % WATCHED_SHARE or request.sampled or len(cell.withheld):
        _try(cell, plan, leader)


def _try(cell: Cell, plan: Plan, leader: Sequence) -> None:
    """Notes which techniques had something to give here, and whether they did."""
    worker, request, path = plan.worker, leader.choice.request, plan.path
    saved_us = len(plan.matched) * worker.block_tokens * worker.costs.prefill_token_us
    withheld = "prefix_cache" in request.sampled
    if withheld:
        keys = usable_keys(leader.choice, worker.block_tokens, cell.policy)
        saved_us = worker.index.match_len(keys, len(keys)) * worker.block_tokens * worker.costs.prefill_token_us
    if saved_us and not plan.load_keys:
        without_us = start_us(worker, leader.length, cell.policy, cell.now_us, leader.turn, own=leader)
        leader.tried.append(Tried("prefix_cache", not withheld, without_us, saved_us))
    if path is not None and path.whole_us:
        said_us = path.recompute_us - path.first_token_us
        leader.tried.append(Tried("offload", True, path.recompute_us, max(0.0, said_us)))
    elif len(plan.keys) > len(plan.matched) and plan.keys[len(plan.matched)] in cell.withheld:
        without_us = start_us(
            worker, leader.length - leader.cached_len, cell.policy, cell.now_us, leader.turn, own=leader
        )
        leader.tried.append(Tried("offload", False, without_us, 0.0))
    if path is not None and path.whole_us and (path.way == "recompute") == plan.other_way:
        said_us = path.recompute_us - path.first_token_us
        leader.tried.append(Tried("tier_load", path.way != "recompute", path.recompute_us, said_us))
    if request.join_since_us >= 0 or ("join" in request.sampled and worker.computing):
        waited_us = cell.now_us - request.join_since_us if request.join_since_us >= 0 else 0
        without_us = start_us(worker, leader.length, cell.policy, cell.now_us, leader.turn, own=leader)
        leader.tried.append(Tried("join", request.join_since_us >= 0, without_us, saved_us - waited_us))
    if plan.routed_us:
        used = cell.uses("routing", request)
        without_us = start_us(
            worker, leader.length - leader.cached_len, cell.policy, cell.now_us, leader.turn, own=leader
        )
        leader.tried.append(Tried("routing", used, without_us + max(0.0, plan.routed_us), plan.routed_us))


def written_behind(cell: Cell, keys: list[bytes], done: TransferDone) -> None:
    """Blocks that nobody needed at that time were copied out."""
    for told in cell.bets.copied(keys, done.transfer_us / 1000, cell.now_us) if keys else ():
        cell.switches.observe_class("offload", told.length, told.saved_ms, told.spent_ms)


def _came(cell: Cell, keys: Iterable[bytes], gained_ms: float) -> None:
    """A prompt found these in a store: what having them there was worth to it."""
    cell.bets.came(keys, gained_ms, cell.switches.classes_off("offload"))


def load_ended(cell: Cell, worker: Worker, sequence: Sequence, done: TransferDone, ok: int, purpose: str) -> None:
    """A load that a sequence waits for, or waited for, has ended. What it was worth is known at the first token."""
    request, load = sequence.choice.request, sequence.load
    if load is None:
        return
    load.ended_us, load.ok_blocks, load.bytes, load.tier = cell.now_us, ok, done.bytes, done.tier
    load.lookup_us, load.queue_us = done.lookup_us, done.queue_us
    load.transfer_us, load.deserialize_us = done.transfer_us, done.deserialize_us
    here = worker.sequences.get(sequence.seq) is sequence
    if purpose == "admission" and here:
        return
    tokens = ok * worker.block_tokens
    saved_ms = tokens * worker.costs.prefill_token_us / 1000 if here else 0.0
    spent_ms = (cell.now_us - load.started_us) / 1000
    technique = "tier_load" if purpose == "admission" else purpose
    cell.ledger.book(
        technique, who_is(request), saved_ms=saved_ms, cost_ms=spent_ms, cost_bytes=done.bytes, hit_tokens=tokens
    )
    if technique == "swap" and here:
        cell.switches.observe(technique, request, saved_ms, spent_ms)
    _tell(cell, request, load)
    sequence.load = None


def first_token(cell: Cell, worker: Worker, sequence: Sequence) -> None:
    """The first token of a residency: what its load was worth, and both sides of the trials."""
    request, load = sequence.choice.request, sequence.load
    took_us = cell.now_us - sequence.admitted_us
    for technique, used, without_us, said_us in sequence.tried:
        trial = cell.switches.of(technique, who_is(request).length).trial
        trial.observe(used, took_us, without_us, said_us)
        if technique == "routing" and used:
            gain_ms = (without_us - took_us) / 1000
            cell.switches.observe("routing", request, max(0.0, gain_ms), max(0.0, -gain_ms))
    sequence.tried.clear()
    if load is None or load.ended_us < 0:
        return
    path, who = load.path, who_is(request)
    without = cell.switches.of("tier_load", who.length).trial.without
    truth = without.mean if without.seen >= TRUSTED_TRIALS else 1.0
    # what follows the run is computed on either way
    saved_ms = max(0.0, path.recompute_us * truth - path.rest_us) / 1000
    spent_ms = max(0.0, took_us - path.rest_us) / 1000
    tokens = load.ok_blocks * worker.block_tokens
    cell.ledger.book(
        "tier_load", who, saved_ms=saved_ms, cost_ms=spent_ms, cost_bytes=load.bytes, hit_tokens=tokens,
        asked_tokens=load.blocks * worker.block_tokens,
    )  # fmt: skip
    cell.switches.observe("tier_load", request, saved_ms, spent_ms)
    _came(cell, load.keys[: load.ok_blocks], saved_ms - spent_ms)
    _tell(cell, request, load, suffix_us=cell.now_us - load.ended_us, took_us=took_us)
    sequence.load = None


def unseated(cell: Cell, sequence: Sequence) -> None:
    """A residency ended; a load that brought it no token has only cost."""
    request, load = sequence.choice.request, sequence.load
    if load is None or load.ended_us < 0:
        return
    spent_ms = (load.ended_us - load.started_us) / 1000
    cell.ledger.book("tier_load", who_is(request), cost_ms=spent_ms, cost_bytes=load.bytes)
    _tell(cell, request, load)
    sequence.load = None


def _tell(cell: Cell, request: Request, load: LoadRecord, suffix_us: int = -1, took_us: int = -1) -> None:
    """The kv.load span: the decision, what was predicted for each way, and what came of it."""
    path = load.path
    attributes: dict[str, str | int | float] = {
        "tier": load.tier or "none",
        "decision": path.way,
        "blocks": load.ok_blocks,
        "blocks_asked": load.blocks,
        "head_blocks": path.head,
        "bytes": load.bytes,
        "predicted_load_ms": round(path.load_us / 1000, 3),
        "lookup_ms": load.lookup_us / 1000,
        "queue_ms": load.queue_us / 1000,
        "transfer_ms": load.transfer_us / 1000,
        "deserialize_ms": load.deserialize_us / 1000,
    }
    if path.whole_us:
        attributes["predicted_recompute_ms"] = round(path.recompute_us / 1000, 3)
        attributes["predicted_whole_load_ms"] = round(path.whole_us / 1000, 3)
        attributes["predicted_overlap_ms"] = round(path.overlap_us / 1000, 3)
        attributes["predicted_first_token_ms"] = round(path.first_token_us / 1000, 3)
    if took_us >= 0:
        attributes["suffix_prefill_ms"] = suffix_us / 1000
        attributes["first_token_ms"] = took_us / 1000
    cell.fact("kv.load", request, load.started_us, load.ended_us, **attributes)
