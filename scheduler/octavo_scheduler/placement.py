"""Which of several workers: the one that is predicted to give the first token soonest without slowing the others most.

Times in microseconds; smaller is better. Cached prefix tokens and load meet in one unit because both are time: what is
cached need not be prefilled, what is queued must be prefilled first.
"""

from __future__ import annotations

import heapq

from octavo_scheduler import lifecycle
from octavo_scheduler.admission import Plan, fits, load_run, make_plan, next_group, usable_keys
from octavo_scheduler.cell import Cell
from octavo_scheduler.costs import StepCosts
from octavo_scheduler.fleet import Worker
from octavo_scheduler.policies.joining import joinable
from octavo_scheduler.request import Choice, Outcome, Request
from octavo_scheduler.tiers import Directory


def score_us(
    uncached_tokens: int, backlog_tokens: int, running: int, load_us: float, costs: StepCosts, budget: int
) -> float:
    """Predicted time to first token: tier load + own prefill + prefill ahead of it, each chunk beside the decodes.

    `load_us` is the predicted time of the tier load; `running` counts sequences.
    """
    tokens = uncached_tokens + backlog_tokens
    chunks = -(-tokens // max(1, budget))
    return load_us + chunks * (costs.fixed_us + running * costs.decode_seq_us) + tokens * costs.prefill_token_us


def best_plan(cell: Cell, request: Request) -> Plan | None:
    """The cheapest plan over all workers with room, or the cheapest of all when none has; refuses what never fits.

    None: it was refused, or every worker's slots are taken.
    """
    group = next_group(request.waiting_choices())
    never = lifecycle.never_fits(cell, len(request.prompt), request.max_tokens, len(group))
    if never:
        lifecycle.decide(cell, request, Outcome("rejected", "rejected-never-fits", never))
        return None
    accepting = joinable(cell, cell.fleet.open_to(request.pool, cell.now_us), request)
    if not any(worker.free_slots for worker in accepting):
        return None
    keys = usable_keys(group[0], accepting[0].block_tokens, cell.policy)  # all of a cell have one block size
    if len(accepting) == 1:
        return _plan(cell, accepting[0], group, keys)
    rated = _rated(cell, accepting, keys, group[0].length)
    best: Plan | None = None
    # a worker is costly to plan for and cheap to rate, and the cheapest one mostly has room
    heapq.heapify(rated)
    while rated:
        plan = _plan(cell, accepting[heapq.heappop(rated)[1]], group, keys)
        if fits(plan, cell.policy, cell.history):
            return plan
        best = best or plan
    return best


def plans(cell: Cell, request: Request) -> list[Plan]:
    """What starting `request` would take on each worker, whether it fits or not."""
    group = next_group(request.waiting_choices())
    workers = joinable(cell, cell.fleet.open_to(request.pool, cell.now_us), request)
    keys = usable_keys(group[0], workers[0].block_tokens, cell.policy) if workers else []
    return [_plan(cell, worker, group, keys) for worker in workers]


def _plan(cell: Cell, worker: Worker, group: list[Choice], keys: list[bytes]) -> Plan:
    return make_plan(worker, group, keys, cell.policy, cell.history, _answering(cell, worker))


def _answering(cell: Cell, worker: Worker) -> Directory | None:
    directory = cell.fleet.directory_of(worker)
    return directory if directory is not None and directory.answers(cell.now_us) else None


def _rated(cell: Cell, workers: list[Worker], keys: list[bytes], length: int) -> list[tuple[float, int]]:
    """(cost in microseconds, place in `workers`) of each. Most hold nothing of the prompt: those are quick to rate."""
    first = keys[0] if keys else b""
    budget = cell.policy.max_num_batched_tokens
    rated: list[tuple[float, int]] = []
    for at, worker in enumerate(workers):
        if first in worker.index.block_of or first in worker.computing or worker.store_id:
            cost_us = _cost_us(cell, worker, keys, length)
        else:
            backlog = worker.backlog_tokens() if worker.prefilling else 0
            cost_us = score_us(length, backlog, len(worker.sequences), 0.0, worker.costs, budget)
        rated.append((cost_us, at))
    return rated


def _cost_us(cell: Cell, worker: Worker, keys: list[bytes], length: int) -> float:
    """What the first token is predicted to take there (score_us)."""
    policy = cell.policy
    cached = worker.index.match_len(keys, len(keys))
    load_us = 0.0
    directory = _answering(cell, worker) if worker.store_id else None
    if directory is not None and (loads := load_run(worker, keys, cached, policy, directory)):
        load_us = worker.link.predict_us(loads * worker.block_bytes)
        cached += loads
    if worker.computing:
        cached += _join_run(worker, keys, cached)
    uncached = length - cached * worker.block_tokens
    backlog = worker.backlog_tokens() if worker.prefilling else 0
    running = len(worker.sequences)
    return score_us(uncached, backlog, running, load_us, worker.costs, policy.max_num_batched_tokens)


def _join_run(worker: Worker, keys: list[bytes], start: int) -> int:
    """Blocks from `start` on that a running sequence is computing right now."""
    end = start
    while end < len(keys) and keys[end] in worker.computing:
        end += 1
    return end - start


def waits_for_join(cell: Cell, request: Request, plan: Plan) -> bool:
    """Another sequence computes this prefix now: wait for it, but no longer than one's own prefill would take."""
    if not cell.policy.join_prefill or not plan.worker.computing:
        return False
    keys = usable_keys(plan.choices[0], plan.worker.block_tokens, cell.policy)
    if not _join_run(plan.worker, keys, len(plan.matched) + len(plan.load_keys)):
        return False
    if request.join_until_us < 0:
        own_us = plan.worker.costs.predict_prefill_us(plan.uncached_tokens(), cell.policy.max_num_batched_tokens)
        request.join_until_us = cell.now_us + max(1, int(own_us))
        cell.timers.at(request.join_until_us, "join", request)
    return cell.now_us < request.join_until_us
