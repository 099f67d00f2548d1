"""Whether handing a request over pays: a prefill worker and a pool to decode in, against one worker for both.

Compared is the delay that each way costs in all, microseconds: the request's own time to its first token, what its
prefill takes from the sequences that decode beside it, what other prefills are expected to take from its own decode, and, handed
over, what of the transfer nothing hides. Workers of one host may share its cores: then a prefill elsewhere is no free one (neighbours.py).
A worker of role `decode` computes a prompt only where no other can, or where it holds most of it and that is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo_scheduler.admission import Plan, blocks_for
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves.credit import find_target
from octavo_scheduler.moves.exports import answering
from octavo_scheduler.request import Choice

PREFILL, DECODE, BOTH = "prefill", "decode", "both"
MOST_LACKING = 4
"""A decode worker that lacks at most one part in so many of a prompt may compute it, if that is cheaper: a next turn."""
MAX_FAILED = 2
"""A request whose handoffs failed this often is served by one worker."""
MOST_PREFILL = 0.9
ROLES = (PREFILL, DECODE, BOTH)


def split_roles(workers: list[Worker]) -> tuple[list[Worker], list[Worker]]:
    """(workers that may decode, workers that only prefill); without the former the latter do both."""
    serving = [worker for worker in workers if worker.role != PREFILL]
    if not serving:
        return workers, []
    return serving, [worker for worker in workers if worker.role == PREFILL]


def possible(cell: Cell, group: list[Choice], keys: list[bytes]) -> bool:
    """Whether this request can be handed over at all: it has keys and decodes, and its choices, if several, begin together."""
    request = group[0].request
    decodes = request.max_len - group[0].length > 1 and request.cache.goes_below
    if request.beams is not None:
        return False  # what beams do next is decided token by token: nothing to hand over begins with the first
    together = len(request.choices) == 1 or (request.admitted_us < 0 and len(group) == len(request.choices))
    return together and bool(keys) and decodes and request.failed_handoffs < MAX_FAILED


def offer(
    cell: Cell, group: list[Choice], sources: list[Worker], serving: list[Worker], plan_on: Callable[[Worker], Plan]
) -> Plan | None:
    """The best plan of a prefill with a worker to decode after it; None when nothing can take part.

    `plan_on` plans for the first choice alone: the others fork where it decodes.
    """
    choice = group[0]
    target = find_target(cell, choice.request, serving)
    if target is None:
        return None
    best: tuple[float, Plan] | None = None
    # where nobody else may compute a prompt it waits for a slot
    free = [source for source in sources if source.free_slots]
    for source in free or (sources if target.role == DECODE else ()):
        if answering(cell, source) is None:
            continue
        plan = plan_on(source)
        table = max(len(plan.matched) + len(plan.load_keys), blocks_for(choice.length, source.block_tokens))
        need = plan.free_needed - (plan.table_blocks - table)
        plan = replace(
            plan, table_blocks=table, shared_blocks=table, free_needed=need, growth=0, worst=0, target=target
        )
        cost_us = first_token_us(cell, plan)
        if best is None or cost_us < best[0]:
            best = cost_us, plan
    return best[1] if best is not None else None


def _belongs_elsewhere(plan: Plan) -> bool:
    """A decode worker computes no prompt of which it lacks more than a part, whatever that costs now."""
    return plan.worker.role == DECODE and plan.uncached_tokens() * MOST_LACKING > plan.choices[0].length


def waits_for_credit(cell: Cell, plan: Plan | None, sources: list[Worker], serving: list[Worker]) -> bool:
    """Nobody gives credit now, and what would be computed in one place belongs on a prefill worker: room will come."""
    if plan is None or not _belongs_elsewhere(plan):
        return False
    # on an idle pool without credit there never will be any: the request fits it only just
    coming = any(worker.sequences or worker.promised for worker in serving)
    return coming and any(answering(cell, source) is not None for source in sources)


def first_token_us(cell: Cell, plan: Plan) -> float:
    """Predicted time to the first token by this plan."""
    worker, budget = plan.worker, cell.policy.max_num_batched_tokens
    tokens = plan.uncached_tokens() + worker.backlog
    load_us = worker.link.predict_us(len(plan.load_keys) * worker.block_bytes) if plan.load_keys else 0.0
    beside_us = len(worker.sequences) * worker.costs.decode_seq_us * -(-tokens // max(1, budget))
    return load_us + beside_us + worker.costs.predict_prefill_us(tokens, budget)


def exposed_us(cell: Cell, plan: Plan) -> float:
    """What of the copies nothing hides: those of the last chunk, or, on a slow link, what outlasts the prefill."""
    source, target = plan.worker, plan.target
    if target is None:
        return 0.0
    size, budget = source.block_tokens, cell.policy.max_num_batched_tokens
    blocks = plan.choices[0].length // size
    last = min(blocks, -(-min(budget, plan.uncached_tokens()) // size))
    whole_us = source.link.predict_us(blocks * source.block_bytes) + target.link.predict_us(blocks * target.block_bytes)
    last_us = source.link.predict_us(last * source.block_bytes) + target.link.predict_us(last * target.block_bytes)
    return max(last_us, whole_us - source.costs.predict_prefill_us(plan.uncached_tokens(), budget))


def boundary_us(target: Worker) -> float:
    """What the last copies, and then the decode, wait for the steps that the target makes then: half of one each."""
    if not target.running():
        return 0.0
    under_way = min(target.backlog, target.pace.budget)
    return max(target.costs.step_us, target.costs.predict_step_us(under_way, len(target.running()), 0))


def decodes_elsewhere(cell: Cell, group: list[Choice], worker: Worker) -> float:
    """What the prefills of `worker` are expected to hold the request's decode up there, microseconds."""
    request = group[0].request
    tokens = cell.history.count_on(request.tenant, request.max_tokens, len(request.prompt))
    share = min(MOST_PREFILL, worker.prefill_share)
    return tokens * worker.costs.predict_step_us(0, 1, group[0].length) * share / (1 - share)


def whole_us(cell: Cell, plan: Plan) -> float:
    """The delay in all when one worker serves it: its first token, what its prefill takes from those that run there, and what
    the prefills there take from its decode."""
    worker = plan.worker
    prefill_us = worker.costs.predict_prefill_us(plan.uncached_tokens(), cell.policy.max_num_batched_tokens)
    return (
        first_token_us(cell, plan) + prefill_us * len(worker.running()) + decodes_elsewhere(cell, plan.choices, worker)
    )


def handed_us(cell: Cell, plan: Plan) -> float:
    """The same when `plan.target` decodes: the copies that nothing hides come on top, and what a prefill beside them on the same
    host takes from its sequences."""
    target = plan.target
    if target is None:
        return whole_us(cell, plan)
    source = plan.worker
    prefill_us = source.costs.predict_prefill_us(plan.uncached_tokens(), cell.policy.max_num_batched_tokens)
    shared_us = prefill_us * cell.neighbours.taken_share(source, target) * len(target.running())
    return (
        first_token_us(cell, plan)
        + prefill_us * len(source.running())
        + exposed_us(cell, plan)
        + boundary_us(target)
        + shared_us
        + decodes_elsewhere(cell, plan.choices, target)
    )


def keeps(cell: Cell, plan: Plan | None, whole: Plan | None) -> bool:
    """Whether a prefill worker of a hybrid serves the request whole: that costs less than `plan` on a worker for both by more than a
    step, so that it stays free for prompts while it makes little difference."""
    if whole is None:
        return False
    if plan is None:
        return True
    return whole_us(cell, whole) + whole.worker.costs.step_us < whole_us(cell, plan)


def pays(cell: Cell, aggregated: Plan | None, handed: Plan) -> bool:
    """Whether the plan with a handoff costs less delay in all than serving the request in one place."""
    if aggregated is None or _belongs_elsewhere(aggregated):
        return True
    target_us = cell.itl_target_us(handed.choices[0].request.slo_class)
    if target_us and handed.target is not None and exposed_us(cell, handed) + boundary_us(handed.target) > target_us:
        return False  # the gap between its first two tokens would miss what its class asks for
    return handed_us(cell, handed) < whole_us(cell, aggregated)
