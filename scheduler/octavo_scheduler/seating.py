"""How choices come to run on workers: the blocks of a plan are taken, its orders given, its admission booked."""

from __future__ import annotations

from octavo.packing import pack_u32

from octavo_scheduler.admission import Plan, max_positions
from octavo_scheduler.batching import adjust_budget
from octavo_scheduler.books import chunks, entries
from octavo_scheduler.books.book import who_is
from octavo_scheduler.books.path import NOTHING_TO_LOAD
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits import learn
from octavo_scheduler.moves import copies, handoff, pauses
from octavo_scheduler.orders import Admit, Load, SiblingAdmit
from octavo_scheduler.policies import guard
from octavo_scheduler.policies.joining import beside
from octavo_scheduler.policies.turns import prefill_turn
from octavo_scheduler.preloads import blend, wishes
from octavo_scheduler.request import Choice, LoadRecord, Phase, Sequence
from octavo_scheduler.tiers import Purpose, Transfer

_RUNNING = Phase.RUNNING


def admit(cell: Cell, plan: Plan) -> None:
    """Takes the plan's references in this event, and orders the load and the admission."""
    worker, leader_choice = plan.worker, plan.choices[0]
    cell.touched[worker] = None
    request = leader_choice.request
    if plan.matched:
        worker.pool.share_all(plan.matched)
        worker.index.hit(plan.matched, cell.now_us)
        wishes.shared(cell, leader_choice, len(plan.matched), worker.block_tokens)
    if plan.blend is not None:  # before blocks are taken, which may be cached ones
        worker.pool.share_all(plan.blend.sources)
    table = plan.matched + worker.take(plan.table_blocks - len(plan.matched), "admission")
    rank = cell.number()
    uncached = plan.uncached_tokens()
    prefill_us = worker.costs.predict_prefill_us(uncached, cell.budget_alone)
    cached_len = len(plan.matched) * worker.block_tokens
    start_len = plan.blend.end if plan.blend is not None else cached_len
    others = beside(cell, worker, request.tenant)
    turn = prefill_turn(cell.order_of(request.slo_class), cell.outlook, request, prefill_us, others, cell.now_us, rank)
    plain = not plan.load_keys and plan.target is None
    forecast_us = 0.0
    if plain and learn.watches(cell):
        overtaken_us = learn.overtaken_us(cell, worker, request.slo_class, prefill_us, others)
        forecast_us = learn.start_forecast_us(cell, worker, uncached, turn, overtaken_us)
    leader = _seat(cell, worker, leader_choice, table, rank, start_len)
    if plan.blend is not None:
        blend.admitted(cell, worker, leader_choice, plan.blend)
        leader.sources = plan.blend.sources
    leader.turn = turn
    if plan.target is not None:  # the first token's KV is never written there
        worker.ungranted -= leader.ungranted(worker.block_tokens)
        leader.max_positions = leader.length
        worker.ungranted += leader.ungranted(worker.block_tokens)
    leader.forecast_start_us = forecast_us
    if plain and leader.behind >= worker.pace.budget - len(worker.sequences):
        chunks.begin(cell, worker, leader)
    guard.look(cell, worker)
    siblings = _seat_siblings(cell, plan, leader, rank) if len(plan.choices) > 1 else []
    wait_xfer = _order_load(cell, plan, leader) if plan.load_keys else 0
    # a head is computed here and now; blocks of a load are there, or missing, for everybody alike
    head = plan.head_blocks
    _note_computing(worker, leader, len(plan.matched) + (0 if head else len(plan.load_keys)))
    number = worker.order(
        Admit(  # by place: names are looked up one by one
            leader.seq,
            leader.slot,
            pack_u32(leader_choice.tokens() if leader_choice.output else request.prompt),
            len(request.prompt),
            start_len,
            table[:],
            request.sampling,
            leader_choice.seed,
            max(1, request.deadline_us - cell.now_us) if request.deadline_us else 0,
            turn,
            request.max_len,
            request.request_id,
            request.traceparent,
            wait_xfer,
            cached_len + head * worker.block_tokens,
            1 if plan.target is not None else 0,
            [_sibling_order(item) for item in siblings] if siblings else [],
            plan.blend.parts if plan.blend is not None else [],
            plan.blend.share if plan.blend is not None else 0.0,
            plan.split_len,
        )
    )
    leader.order_number = number
    for sequence in siblings:
        sequence.order_number = number
    _book_admission(cell, plan, leader, cached_len, uncached, prefill_us)
    if plan.target is not None:
        handoff.begin(cell, worker, plan.target, leader)
    elif worker.promised:
        worker.promised.pop(request, None)


def _seat_siblings(cell: Cell, plan: Plan, leader: Sequence, rank: int) -> list[Sequence]:
    """The other choices of the group: they share the leader's full prompt blocks."""
    siblings: list[Sequence] = []
    for choice in plan.choices[1:]:
        fork = plan.worker.fork(leader.blocks, plan.shared_blocks, plan.sibling_blocks, "admission")
        siblings.append(_seat(cell, plan.worker, choice, fork, rank, 0))
    group = (leader, *siblings)
    for member in group:
        member.group = group
        member.walked = plan.shared_blocks  # the leader's walk indexes what they share
        member.unpaid_blocks = plan.shared_blocks
    leader.walked, leader.unpaid_blocks = len(plan.matched), 0
    for sibling in siblings:
        sibling.split_len = plan.split_len
    return siblings


def _sibling_order(sibling: Sequence) -> SiblingAdmit:
    tokens = pack_u32(sibling.choice.tokens()) if sibling.split_len else b""
    return SiblingAdmit(sibling.seq, sibling.slot, sibling.choice.seed, list(sibling.blocks), tokens)


def _seat(cell: Cell, worker: Worker, choice: Choice, table: list[int], rank: int, cached_len: int) -> Sequence:
    request, now_us, size = choice.request, cell.now_us, worker.block_tokens
    length, most = len(request.prompt) + len(choice.output), max_positions(request)
    seq, slot = cell.number(), worker.free_slots.pop()
    sequence = Sequence(seq, slot, rank, worker.epoch, choice, table, length, cached_len, cached_len, most, now_us)
    sequence.accrued_us = now_us
    sequence.walked = cached_len // size
    if not worker.sequences:
        worker.last_progress_us = now_us  # an idle worker was not stuck
        worker.batch_since_us, worker.batch_due_us = now_us, -1
    worker.slots[slot] = sequence
    worker.sequences[seq] = sequence
    target_us = sequence.itl_target_us = cell.itl_target_us(request.slo_class)
    if target_us and worker.pace.join(target_us):  # before its first step beside a prefill, not after
        adjust_budget(cell, worker, len(worker.sequences), 0)
    cell.running_priorities[request.priority] += 1
    worker.of_tenant[request.tenant] += 1
    worker.hungry[sequence] = None
    sequence.behind = behind = max(0, length - cached_len - 1)
    worker.backlog += behind
    worker.ungranted += -(-most // size) - len(table)
    choice.sequence = sequence
    choice.phase = _RUNNING
    choice.residencies += 1
    request.holds += 1
    return sequence


def _order_load(cell: Cell, plan: Plan, leader: Sequence) -> int:
    worker, base = plan.worker, len(plan.matched) + plan.head_blocks
    blocks = leader.blocks[base : base + len(plan.load_keys)]
    request = leader.choice.request
    purpose: Purpose = "handoff" if request.handoff is not None else "swap" if request.swapped else "admission"
    transfer = Transfer(
        cell.number(), "load", blocks, plan.load_keys, cell.now_us, leader, base, plan.sources, purpose=purpose
    )
    cell.counters["loads_started"] += 1
    for block in blocks:
        worker.pool.hold_transfer(block)
    copies.begin(worker, transfer, request)
    leader.wait_xfer = transfer.xfer_id
    path = plan.path or NOTHING_TO_LOAD
    leader.load = LoadRecord(path, cell.now_us, len(blocks), plan.load_keys)
    leader.join_base = base * worker.block_tokens if plan.head_blocks else 0
    leader.join_tokens = len(blocks) * worker.block_tokens
    worker.note_behind(leader)
    load = Load(transfer.xfer_id, plan.load_keys, blocks, cell.policy.load_limit_us, plan.sources)
    transfer.order_number = worker.order(load)
    return transfer.xfer_id


def _note_computing(worker: Worker, leader: Sequence, start_block: int) -> None:
    """Others with the same prompt may wait for these blocks instead of computing them twice."""
    if not start_block and leader.choice.request.prompt_keys:
        worker.index.known_heads.add(leader.choice.request.prompt_keys[0])
    computing, block_of = worker.computing, worker.index.block_of
    keys = leader.choice.request.prompt_keys[start_block : leader.length // worker.block_tokens]
    if not (computing.keys().isdisjoint(keys) and block_of.keys().isdisjoint(keys)):
        keys = [key for key in keys if key not in computing and key not in block_of]
    computing.update(dict.fromkeys(keys, leader))
    leader.pending_keys += keys


def forget_computing(worker: Worker, sequence: Sequence) -> None:
    """The sequence computes no prompt block any more."""
    for key in sequence.pending_keys:
        worker.computing.pop(key, None)
    sequence.pending_keys = []


def _book_admission(
    cell: Cell, plan: Plan, leader: Sequence, cached_len: int, uncached: int, prefill_us: float
) -> None:
    """`uncached` tokens are to be prefilled, in `prefill_us` as predicted."""
    request, worker, now_us = leader.choice.request, plan.worker, cell.now_us
    first = request.admitted_us < 0
    if request.first_token_us < 0:
        request.seated_us = now_us
    since_us = request.submitted_us if first else request.waiting_since_us
    if request.handoff is not None:
        since_us = request.handoff.prefilled_us
    waits_us = cell.pool_waits_us
    waits_us[worker.role] = waits_us.get(worker.role, 0) + now_us - since_us
    if first:
        if request.resumes is not None:
            pauses.admitted(cell, request, worker, cached_len, len(plan.load_keys) * worker.block_tokens)
        request.admitted_us = now_us
        request.cached_tokens = min(cached_len, len(request.prompt))
        if cached_len:
            request.cached_by_tier["hbm"] = request.cached_tokens
        for account in request.accounts:  # at once, so that a burst of one tenant does not count as nothing
            account.charge(prefill_us)
        learn.from_admission(cell, request, uncached)
        cell.fact(
            "queue",
            request,
            request.submitted_us,
            now_us,
            outcome="admitted",
            worker_id=worker.worker_id,
            prompt_tokens=len(request.prompt),
            cached_tokens=cached_len,
            load_blocks=len(plan.load_keys),
            waiting=len(cell.queue),
        )
    elif request.handoff is None:
        reason = "worker-lost" if request.losses else "preempted"
        cell.counters["recomputed_tokens"] += uncached
        cell.fact(
            "preempted",
            request,
            request.waiting_since_us,
            cell.now_us,
            outcome="admitted",
            reason=reason,
            worker_id=plan.worker.worker_id,
            attempt=request.attempts,
            recomputed_tokens=uncached,
            swapped=request.swapped,
        )
        cell.ledger.book("preemption", who_is(request), cost_ms=prefill_us / 1000)
    else:
        return  # its blocks moved for a handoff, which books them
    cell.counters["prefix_spreads"] += plan.spreads
    worker.note_reuse(cached_len / leader.length)
    if cached_len:
        cell.counters["prefix_hit_tokens"] += cached_len
        request.cost.saved_prefix_tokens += cached_len
    if len(plan.choices) > 1:
        request.cost.saved_sibling_tokens += (len(plan.choices) - 1) * len(request.prompt)
    entries.admitted(cell, plan, leader, first)
