"""Where a waiting request starts: the worker of the best score (routing.py) that has room for it.

Only healthy workers are looked at, whatever they have cached. A request whose prefix lies on a worker without room waits
for it when that is predicted to be sooner than computing it elsewhere, and no longer than that would take; then it starts
elsewhere, and both hold the prefix: so a hot prefix spreads just when one worker is not enough.
"""

from __future__ import annotations

import heapq
from typing import Literal

from octavo_scheduler import lifecycle
from octavo_scheduler.admission import (
    Plan,
    blocks_for,
    can_ever_hold,
    fits,
    load_path,
    make_plan,
    next_group,
    size_of,
    usable_keys,
)
from octavo_scheduler.books.path import Way
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.loads import Loads
from octavo_scheduler.moves.offer import BOTH, DECODE, keeps, offer, pays, possible, split_roles, waits_for_credit
from octavo_scheduler.policies.joining import has_its_share, joinable
from octavo_scheduler.preloads import chunk_loads
from octavo_scheduler.preloads.blend_parts import blend_of
from octavo_scheduler.request import Choice, Outcome, Request
from octavo_scheduler.routing import pressure_us, room_in_us, score_us

Hindrance = Literal["", "waits", "slots", "share", "room"]

Rating = tuple[float, int, int]
"""What a request costs on a worker (routing.py), where that stands in the list, and the blocks it has there."""


def start(cell: Cell, request: Request, workers: list[Worker]) -> tuple[Plan | None, Hindrance]:
    """How its next choices start on one of `workers` in this very event, or what is in their way; with the plan, if there is one.

    `waits`: something of its own, by its own choice. `slots`: its tenant has its share of them. `share`: ... of the KV
    pool. `room`: nobody has a slot, or the plan's worker no room; or it was refused.
    """
    if len(cell.tenants_about) > 1 and has_its_share(cell, request, workers):
        return None, "slots"
    plan = best_plan(cell, request, workers)
    if plan is None:
        return None, "room"
    if plan.waits or (plan.worker.computing and waits_for_join(cell, request, plan)):
        return plan, "waits"
    if request.blended and chunk_loads.waits(cell, request, plan):
        return plan, "waits"
    tenants = cell.tenants
    if tenants.limited and tenants.over_share(plan.worker, request.tenant, plan.free_needed + plan.growth):
        return plan, "share"
    return plan, "" if plan.fits or fits(plan, cell.policy, cell.history) else "room"


def best_plan(cell: Cell, request: Request, workers: list[Worker] | None = None) -> Plan | None:
    """The cheapest plan over all `workers` (None: those of its pool) with room, or the cheapest of all when none has; refuses what never fits.

    One that does not fit is also the answer when it is worth waiting for (`plan.waits`). None: it was refused, or every
    worker's slots are taken.
    """
    group = request.waiting_choices()
    if len(group) > 1:
        group = next_group(group)
    if request.sized_for != cell.fleet.version:
        never = lifecycle.never_fits(cell, *size_of(request, len(group)), pool=request.pool)
        if never:
            lifecycle.decide(cell, request, Outcome("rejected", "rejected-never-fits", never))
            return None
        request.sized_for = cell.fleet.version
    if workers is None:
        workers = cell.fleet.open_to(request.pool, cell.now_us)
    accepting = joinable(cell, workers, request)
    if not _has_slot(accepting):
        return None
    keys = usable_keys(group[0], accepting[0].block_tokens, cell.policy)  # all of a cell have one block size
    if request.admitted_us < 0 and not cell.uses("prefix_cache", request):
        keys = []
    serving, sources = split_roles(accepting) if cell.fleet.splits else (accepting, [])
    serving = _able(cell, serving, request, len(group))
    if sources and not serving:
        serving, sources = _able(cell, sources, request, len(group)), []  # a prefill worker serves it whole
    plan = _best_on(cell, request, serving, group, keys)
    if not sources or request in cell.arriving or not possible(cell, group, keys):
        return plan
    hybrid = any(worker.role == BOTH for worker in serving)
    if hybrid and (plan is None or plan.worker.role == BOTH):
        whole = _best_on(cell, request, _able(cell, sources, request, len(group)), group, keys)
        if whole is not None and fits(whole, cell.policy, cell.history) and keeps(cell, plan, whole):
            plan = whole
    if plan is not None and plan.worker.role != DECODE and not cell.uses("handoff", request):
        return plan
    handed = offer(cell, group, sources, serving, lambda worker: _plan(cell, worker, group[:1], keys))
    if handed is None:
        return None if waits_for_credit(cell, plan, sources, serving) else plan
    return handed if pays(cell, plan, handed) else plan


def _able(cell: Cell, workers: list[Worker], request: Request, choices: int) -> list[Worker]:
    """Those of `workers` that can hold so many choices of it to their end: pools may differ, by their hosts or since one shrank."""
    shapes = cell.fleet.shapes(request.pool)
    size = size_of(request, choices)
    if len(shapes) < 2 or all(can_ever_hold(shape, *size) for shape in shapes):
        return workers  # of a single one it was asked before
    return [worker for worker in workers if can_ever_hold(worker.shape(), *size)]


def _has_slot(workers: list[Worker]) -> bool:
    return bool(workers and workers[0].free_slots) or any(worker.free_slots for worker in workers)


def _best_on(
    cell: Cell, request: Request, accepting: list[Worker], group: list[Choice], keys: list[bytes]
) -> Plan | None:
    """The cheapest plan with room on these workers, or the cheapest of all; None when no slot is free."""
    if len(accepting) == 1:
        return _plan(cell, accepting[0], group, keys) if accepting[0].free_slots else None
    if not _has_slot(accepting):
        return None
    routed = cell.uses("routing", request)
    if not (cell.fleet.has_stores or request.blended or (keys and keys[0] in cell.fleet.heads)):
        plan = _plan(cell, _cheapest(cell, accepting, group), group, keys)
        plan.fits = fits(plan, cell.policy, cell.history)
        if plan.fits:
            return plan
    rated, most = _rated(cell, accepting, keys if routed else [], group[0].length)
    if request.blended:
        rated = [_blend_rated(cell, accepting[rating[1]], group[0], rating) for rating in rated]
    elsewhere = _elsewhere(accepting, rated) if most else (0.0, 0.0)
    first: Plan | None = None
    first_us = 0.0
    # a worker is costly to plan for and cheap to rate, and the cheapest one mostly has room
    heapq.heapify(rated)
    while rated:
        cost_us, at, cached = heapq.heappop(rated)
        plan = _plan(cell, accepting[at], group, keys)
        plan.fits = fits(plan, cell.policy, cell.history)
        if plan.fits:
            if first is not None and _waits_for_room(cell, request, first, cost_us - first_us):
                first.waits = True
                return first
            plan.spreads = cached < most
            if most:
                plan.routed_us, plan.spread_us = elsewhere[0] - cost_us, elsewhere[1] - cost_us
                plan.spread_tokens = (most - cached) * plan.worker.block_tokens
            return plan
        if first is None:
            first, first_us = plan, cost_us
    return first


def _waits_for_room(cell: Cell, request: Request, plan: Plan, saved_us: float) -> bool:
    """Whether a better worker's room is worth waiting for: `saved_us` is what that worker would take less."""
    if not plan.matched or room_in_us(plan.worker, cell.history) >= saved_us:
        return False
    if request.room_until_us < 0:
        # as with buying what one may rent: waiting as long as it saves costs at most twice the best choice
        request.room_until_us = cell.now_us + max(1, int(saved_us))
        cell.timers.at(request.room_until_us, "join", request)
    return cell.now_us < request.room_until_us


def plans(cell: Cell, request: Request, workers: list[Worker]) -> list[Plan]:
    """What starting `request` would take on each of `workers`, whether it fits or not."""
    group = next_group(request.waiting_choices())
    workers = _able(cell, joinable(cell, workers, request), request, len(group))
    keys = usable_keys(group[0], workers[0].block_tokens, cell.policy) if workers else []
    return [_plan(cell, worker, group, keys) for worker in workers]


def _plan(cell: Cell, worker: Worker, group: list[Choice], keys: list[bytes]) -> Plan:
    request = group[0].request
    reach = cell.fleet.reach_of(worker, cell.now_us) if worker.store_id else None
    forced: Way | None = None
    other_way = False
    if reach is not None and cell.policy.load_path == "auto" and request.handoff is None and not request.swapped:
        sampled = "tier_load" in request.sampled
        if cell.switches.is_off("tier_load", request):
            forced, reach = "load", reach if sampled else None
        else:
            other_way = sampled
    now_us = cell.now_us
    plan = make_plan(worker, group, keys, cell.policy, cell.history, reach, now_us, forced=forced, other_way=other_way)
    if request.blended:
        plan.blend = blend_of(cell.caching.book, worker, group[0], cell.policy.blending_share)
        if plan.blend is not None:
            plan.free_needed += worker.pool.count_cached(dict.fromkeys(plan.blend.sources))
    return plan


def _elsewhere(workers: list[Worker], rated: list[Rating]) -> tuple[float, float]:
    """The cost on the least busy worker, and on the one that holds most of the prompt."""
    idle = min(range(len(workers)), key=lambda at: (workers[at].backlog, len(workers[at].sequences)))
    holder = max(rated, key=lambda rating: rating[2])
    return rated[idle][0], holder[0]


def _rated(cell: Cell, workers: list[Worker], keys: list[bytes], length: int) -> tuple[list[Rating], int]:
    """One rating per worker, and the most blocks that one has. Most hold nothing of the prompt: those are quick to rate."""
    first = keys[0] if keys else b""
    budget = max(1, cell.policy.max_num_batched_tokens)
    blocks = blocks_for(length + 1, workers[0].block_tokens)
    rated: list[Rating] = []
    most = 0
    for at, worker in enumerate(workers):
        if first in worker.index.block_of or first in worker.computing or worker.store_id:
            rating = _rate(cell, worker, at, keys, length)
            most = max(most, rating[2])
        else:
            costs, tokens = worker.costs, length + worker.backlog  # routing.score_us, in line: once per worker
            chunk_us = costs.fixed_us + len(worker.sequences) * costs.decode_seq_us
            cost_us = -(-tokens // budget) * chunk_us + tokens * costs.prefill_token_us
            if blocks > worker.pool.empty_blocks:
                cost_us += pressure_us(worker, blocks)
            rating = (cost_us, at, 0)
        rated.append(rating)
    return rated, most


def _cheapest(cell: Cell, workers: list[Worker], group: list[Choice]) -> Worker:
    """The cheapest of the workers for a prompt of which none holds anything: as `_rated`, in one pass."""
    pool, length = group[0].request.pool, group[0].length
    loads, accepting = cell.loads.get(pool), cell.fleet.accepting(pool)
    if loads is None or loads.workers is not accepting:
        loads = cell.loads[pool] = Loads(accepting)
    loads.touch(cell.touched)
    budget = max(1, cell.policy.max_num_batched_tokens)
    return loads.cheapest(workers, length, budget, blocks_for(length + 1, workers[0].block_tokens))


def _rate(cell: Cell, worker: Worker, at: int, keys: list[bytes], length: int) -> Rating:
    policy = cell.policy
    cached = worker.index.match_len(keys, len(keys))
    new_blocks = blocks_for(length + 1, worker.block_tokens) - cached
    load_us = 0.0
    if worker.store_id:
        reach = cell.fleet.reach_of(worker, cell.now_us)
        path = load_path(worker, keys, cached, policy, reach, length, now_us=cell.now_us)
        cached, load_us = cached + path.run, path.load_us
    if worker.computing:
        joins = _join_run(worker, keys, cached)
        cached += joins
        new_blocks -= joins
    uncached = length - cached * worker.block_tokens
    running = len(worker.sequences)
    cost_us = score_us(uncached, worker.backlog, running, load_us, worker.costs, policy.max_num_batched_tokens)
    return cost_us + pressure_us(worker, new_blocks), at, cached


def _blend_rated(cell: Cell, worker: Worker, choice: Choice, rating: Rating) -> Rating:
    """The same with what the worker holds of the request's chunks."""
    blend = blend_of(cell.caching.book, worker, choice, cell.policy.blending_share)
    if blend is None:
        return rating
    cost_us, at, cached = rating
    return cost_us - (choice.length - blend.computed(choice.length)) * worker.costs.prefill_token_us, at, cached


def _join_run(worker: Worker, keys: list[bytes], start: int) -> int:
    """Blocks from `start` on that a running sequence is computing right now."""
    end = start
    while end < len(keys) and keys[end] in worker.computing:
        end += 1
    return end - start


def waits_for_join(cell: Cell, request: Request, plan: Plan) -> bool:
    """Another sequence computes this prefix now: wait for it, but no longer than one's own first token would take.

    One's own prefill would stand behind what is queued there, the other's included.
    """
    start = len(plan.matched) + plan.head_blocks + len(plan.load_keys)
    if start >= len(plan.keys) or plan.keys[start] not in plan.worker.computing:
        return False
    if not cell.policy.join_prefill or not cell.uses("join", request):
        return False
    if request.join_until_us < 0:
        worker, budget = plan.worker, cell.policy.max_num_batched_tokens
        running = len(worker.sequences)
        own_us = score_us(plan.uncached_tokens(), worker.backlog, running, 0.0, worker.costs, budget)
        request.join_until_us = cell.now_us + max(1, int(own_us))
        request.join_since_us, request.join_matched = cell.now_us, len(plan.matched)
        cell.timers.at(request.join_until_us, "join", request)
    return cell.now_us < request.join_until_us
