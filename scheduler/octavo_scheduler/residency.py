"""How choices come to run on workers and leave them: admit, stop, release, preempt, and the loss of a worker."""

from __future__ import annotations

from octavo.packing import pack_u32

from octavo_scheduler.admission import Plan, max_positions
from octavo_scheduler.batching import adjust_budget
from octavo_scheduler.books import chunks, entries
from octavo_scheduler.books.book import who_is
from octavo_scheduler.books.path import NOTHING_TO_LOAD
from octavo_scheduler.cell import Cell
from octavo_scheduler.costing import accrue, note_untold, pass_on_shared
from octavo_scheduler.fleet import CancelAnswer, Worker
from octavo_scheduler.limits import hopeless, learn
from octavo_scheduler.moves import copies, handoff, pauses, pieces
from octavo_scheduler.moves.exports import answering
from octavo_scheduler.moves.swap import swap_out
from octavo_scheduler.orders import Admit, Load, SiblingAdmit, Stop
from octavo_scheduler.policies.joining import beside
from octavo_scheduler.policies.turns import prefill_turn
from octavo_scheduler.preemption import Prices, cheapest_displacement, choose_victims
from octavo_scheduler.preloads import blend, drop, wishes
from octavo_scheduler.request import NO_PARENT, Choice, LoadRecord, Phase, Request, Sequence
from octavo_scheduler.tiers import Purpose, Transfer


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
    forecast_us = 0.0
    if not plan.load_keys and plan.target is None:
        forecast_us = learn.start_forecast_us(cell, worker, plan.uncached_tokens(), turn)
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
    if plan.target is None and not plan.load_keys:
        chunks.begin(cell, worker, leader)
    siblings: list[Sequence] = []
    for choice in plan.choices[1:]:
        fork = worker.fork(table, plan.shared_blocks, plan.sibling_blocks, "admission")
        siblings.append(_seat(cell, worker, choice, fork, rank, 0))
    if siblings:
        group = (leader, *siblings)
        for member in group:
            member.group = group
            member.walked = plan.shared_blocks  # the leader's walk indexes what they share
            member.unpaid_blocks = plan.shared_blocks
        leader.walked, leader.unpaid_blocks = len(plan.matched), 0
    wait_xfer = _order_load(cell, plan, leader) if plan.load_keys else 0
    # a head is computed here and now; blocks of a load are there, or missing, for everybody alike
    _note_computing(worker, leader, len(plan.matched) + (0 if plan.head_blocks else len(plan.load_keys)))
    number = worker.order(
        Admit(
            seq=leader.seq,
            slot=leader.slot,
            tokens=pack_u32(leader_choice.tokens()),
            prompt_len=len(request.prompt),
            cached_len=start_len,
            block_ids=list(table),
            sampling=request.sampling,
            seed=leader_choice.seed,
            deadline_us=max(1, request.deadline_us - cell.now_us) if request.deadline_us else 0,
            rank=turn,
            max_len=request.max_len,
            request_id=request.request_id,
            traceparent=request.traceparent,
            wait_xfer=wait_xfer,
            wait_base=cached_len + plan.head_blocks * worker.block_tokens,
            stop_after=1 if plan.target is not None else 0,
            siblings=[SiblingAdmit(item.seq, item.slot, item.choice.seed, list(item.blocks)) for item in siblings],
            blend_parts=plan.blend.parts if plan.blend is not None else [],
            blend_share=plan.blend.share if plan.blend is not None else 0.0,
        )
    )
    for sequence in (leader, *siblings):
        sequence.order_number = number
    _book_admission(cell, plan, leader, cached_len, uncached, prefill_us)
    if plan.target is not None:
        handoff.begin(cell, worker, plan.target, leader)
    else:
        worker.promised.pop(request, None)


def _seat(cell: Cell, worker: Worker, choice: Choice, table: list[int], rank: int, cached_len: int) -> Sequence:
    sequence = Sequence(
        seq=cell.number(),
        slot=worker.free_slots.pop(),
        rank=rank,
        epoch=worker.epoch,
        choice=choice,
        blocks=table,
        length=choice.length,
        computed_len=cached_len,
        cached_len=cached_len,
        max_positions=max_positions(choice.request),
        admitted_us=cell.now_us,
        accrued_us=cell.now_us,
        walked=cached_len // worker.block_tokens,
    )
    if not worker.sequences:
        worker.last_progress_us = cell.now_us  # an idle worker was not stuck
        worker.batch_since_us, worker.batch_due_us = cell.now_us, -1
    worker.slots[sequence.slot] = sequence
    worker.sequences[sequence.seq] = sequence
    sequence.itl_target_us = cell.itl_target_us(choice.request.slo_class)
    if worker.pace.join(sequence.itl_target_us):  # before its first step beside a prefill, not after
        adjust_budget(cell, worker, len(worker.sequences), 0)
    cell.running_priorities[choice.request.priority] += 1
    worker.of_tenant[choice.request.tenant] += 1
    worker.hungry[sequence] = None
    worker.note_behind(sequence)
    worker.ungranted += sequence.ungranted(worker.block_tokens)
    choice.sequence = sequence
    choice.phase = Phase.RUNNING
    choice.residencies += 1
    choice.request.holds += 1
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
    leader.load = LoadRecord(path, cell.now_us, len(blocks))
    leader.join_base = base * worker.block_tokens if plan.head_blocks else 0
    leader.join_tokens = len(blocks) * worker.block_tokens
    worker.note_behind(leader)
    load = Load(transfer.xfer_id, plan.load_keys, blocks, cell.policy.load_limit_us, plan.sources)
    transfer.order_number = worker.order(load)
    return transfer.xfer_id


def _note_computing(worker: Worker, leader: Sequence, start_block: int) -> None:
    """Others with the same prompt may wait for these blocks instead of computing them twice."""
    computing, block_of = worker.computing, worker.index.block_of
    for key in leader.choice.request.prompt_keys[start_block : leader.length // worker.block_tokens]:
        if key not in computing and key not in block_of:
            computing[key] = leader
            leader.pending_keys.append(key)


def forget_computing(worker: Worker, sequence: Sequence) -> None:
    """The sequence computes no prompt block any more."""
    for key in sequence.pending_keys:
        worker.computing.pop(key, None)
    sequence.pending_keys = []


def _book_admission(
    cell: Cell, plan: Plan, leader: Sequence, cached_len: int, uncached: int, prefill_us: float
) -> None:
    """`uncached` tokens are to be prefilled, in `prefill_us` as predicted."""
    request = leader.choice.request
    first = request.admitted_us < 0
    if request.first_token_us < 0:
        request.seated_us = cell.now_us
    since_us = request.submitted_us if first else request.waiting_since_us
    if request.handoff is not None:
        since_us = request.handoff.prefilled_us
    cell.pool_waits_us[plan.worker.role] = cell.pool_waits_us.get(plan.worker.role, 0) + cell.now_us - since_us
    if first:
        if request.resumes is not None:
            pauses.admitted(cell, request, plan.worker, cached_len, len(plan.load_keys) * plan.worker.block_tokens)
        request.admitted_us = cell.now_us
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
            cell.now_us,
            outcome="admitted",
            worker_id=plan.worker.worker_id,
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
    cell.counters["prefix_hit_tokens"] += cached_len
    cell.counters["prefix_spreads"] += plan.spreads
    plan.worker.note_reuse(cached_len / plan.choices[0].length)
    request.cost.saved_prefix_tokens += cached_len
    request.cost.saved_sibling_tokens += (len(plan.choices) - 1) * len(request.prompt)
    entries.admitted(cell, plan, leader, first)


def stop(cell: Cell, sequence: Sequence, reason: str) -> None:
    """Orders a Stop, once; a preemption that is under way needs no second one."""
    if sequence.stopping:
        return
    sequence.stopping = reason
    worker = cell.fleet.workers[sequence.epoch]
    worker.note_behind(sequence)
    cell.touched[worker] = None
    worker.hungry.pop(sequence, None)
    forget_computing(worker, sequence)
    worker.orders.append(Stop(sequence.seq, reason))
    if sequence.wait_xfer:
        copies.abandon(cell, worker, sequence.wait_xfer)
    cell.admission_due = True


def preempt_if_short(cell: Cell, worker: Worker, unmet: list[Sequence]) -> None:
    """One preemption round, unless one is still in flight."""
    if not worker.preempting and (unmet or worker.pool.debt):
        shortage = len(unmet) + worker.pool.debt - worker.pool.free_blocks - worker.pending_release()
        if worker.kept and shortage > 0:
            pauses.give_way(cell, worker, shortage)
            return  # what that frees is granted at the next report, or with the end of a copy
        prices = _prices(cell)
        victims = choose_victims(worker, unmet, prices)
        if not victims:
            # nobody may be stopped and nothing is on its way back: the last that can go is what only a pin keeps
            need = len(unmet) + worker.pool.debt - worker.pending_release()
            cell.counters["yielded_pin_blocks"] += yield_pins(worker, need)
        _preempt(cell, worker, victims, prices)


def _prices(cell: Cell) -> Prices:
    """Of one decision; a request that is to go without swaps is priced as a recompute."""
    return Prices(cell.policy, lambda worker, request: answering(cell, worker) if cell.uses("swap", request) else None)


def displace_lower(cell: Cell, request: Request, plans: list[Plan]) -> None:
    """Priority inversion: `request` waits while others of lower priority hold what it needs, on any plan's worker.

    Stops the ones that are cheapest to bring back; the request starts once they have let go.
    """
    prices = _prices(cell)
    worker, victims = cheapest_displacement(request, plans, cell.policy, cell.history, prices)
    if worker is not None:
        cell.counters["priority_preemptions"] += len(victims)
        _preempt(cell, worker, victims, prices)


def _preempt(cell: Cell, worker: Worker, victims: list[Sequence], prices: Prices) -> None:
    """Stops the victims. Each promises the blocks that it alone holds, and is held to it at its release."""
    for victim in victims:
        worker.preempting.add(victim.seq)
        price = prices.of(worker, victim)
        if price.how == "swap":
            victim.swap = victim.choice.request.swapped = True
            cell.counters["swaps"] += 1
        cell.counters["preemptions"] += 1
        cell.counters["bring_back_predicted_us"] += price.us
        victim.promised_blocks = worker.exclusive_blocks(victim)
        victim.choice.preemptions += 1
        request = victim.choice.request
        request.preemptions += 1
        request.waiting_since_us = cell.now_us
        stop(cell, victim, "preempt")


def yield_pins(worker: Worker, blocks: int) -> int:
    """Ends the worker's weakest pins until `blocks` are free; how many blocks came back."""
    short = blocks - worker.pool.free_blocks
    return worker.index.yield_pins(short) if short > 0 else 0


def release(cell: Cell, worker: Worker, sequence: Sequence, step: int) -> None:
    """The worker let go: blocks back (tail first, so that the cache evicts leaves first), the choice waits or is done."""
    request = sequence.choice.request
    pool, index = worker.pool, worker.index
    wishes.leave(cell, worker, sequence)
    if sequence.swap and request.live:
        swap_out(cell, worker, sequence)
    elif sequence.handoff is not None and _goes_on(sequence):
        handoff.prefilled(cell, worker, sequence)
    offload = cell.fleet.directory_of(worker) if not sequence.swap else None
    if offload is not None and not cell.uses("offload", request):
        keys = (index.key_of(block) for block in sequence.blocks)
        cell.withheld.add(key for key in keys if key is not None and key not in offload)
        offload = None
    for at, block in enumerate(sequence.blocks if offload is not None and request.cache.goes_below else ()):
        key = index.key_of(block)
        if offload is not None and key is not None and key not in offload:
            parent = sequence.choice.key(at - 1, worker.block_tokens) if at else None
            cell.withheld.discard(key)
            worker.offload_candidates[block] = wishes.leaving(worker, request, key, parent or NO_PARENT, at)
    index.rest(sequence.blocks, cell.now_us)
    entries.rested(cell, worker, sequence)
    freed = pool.drop_all(reversed(sequence.blocks))
    pool.drop_all(reversed(sequence.sources))
    request.blocks_freed += freed
    if sequence.promised_blocks:  # an offload that has begun meanwhile gives its blocks back when it has ended
        left = sum(not pool.sequences_of(block) for block in sequence.blocks)
        cell.counters["promised_blocks"] += sequence.promised_blocks
        cell.counters["unkept_blocks"] += max(0, sequence.promised_blocks - left)
    request.last_step = max(request.last_step, step)
    forget_computing(worker, sequence)
    worker.hungry.pop(sequence, None)
    worker.note_behind(sequence, gone=True)
    worker.ungranted -= sequence.ungranted(worker.block_tokens)
    worker.preempting.discard(sequence.seq)
    worker.pace.leave(sequence.itl_target_us)
    del worker.sequences[sequence.seq]
    worker.slots[sequence.slot] = None
    worker.free_slots.append(sequence.slot)
    if sequence.handoff is not None:
        pieces.ended(cell, worker)
    if request.handoff is not None and request not in cell.arriving:
        handoff.end(cell, request, "preempted")
    _unseat(cell, worker, sequence, "preempted")
    if request.pause is not None:
        pauses.begin(cell, request)


def _goes_on(sequence: Sequence) -> bool:
    """A prefill for another worker has come to its first token, with which it has not ended, or not all of its choices."""
    request = sequence.choice.request
    others = sequence.stopping == "finished" and bool(request.waiting_choices())
    return request.live and (sequence.stopping == "handoff" or others)


def _unseat(cell: Cell, worker: Worker, sequence: Sequence, why: str) -> None:
    """The residency is over: the choice waits again unless it has ended."""
    choice = sequence.choice
    request = choice.request
    worker.of_tenant[request.tenant] -= 1
    if not worker.of_tenant[request.tenant]:
        del worker.of_tenant[request.tenant]
    cell.running_priorities[request.priority] -= 1
    if not cell.running_priorities[request.priority]:
        del cell.running_priorities[request.priority]
    entries.unseated(cell, sequence)
    chunks.end(cell, worker, sequence)
    accrue(sequence, worker.block_bytes, cell.now_us)
    pass_on_shared(sequence, worker.block_bytes, cell.now_us)
    cell.fact(
        "residency",
        request,
        sequence.admitted_us,
        cell.now_us,
        worker=worker.worker_id,
        choice=choice.index,
        wait_us=sequence.worker_wait_us,
        first_token_us=sequence.first_token_us,
        cached_tokens=sequence.cached_len,
        computed_tokens=sequence.computed_len,
        blocks=len(sequence.blocks),
        end=sequence.stopping or "lost",
    )
    choice.sequence = None
    for member in sequence.group:
        member.group = ()
    if choice.phase is Phase.RUNNING:
        choice.phase = Phase.WAITING
        if not request.queued:
            request.waiting_since_us = cell.now_us
        cell.queue.push(request)
        hopeless.watch(cell, request)
        if request.handoff is None:
            cell.fact(
                "attempt",
                request,
                sequence.admitted_us,
                cell.now_us,
                reason=why,
                worker_id=worker.worker_id,
                seq=sequence.seq,
                attempt=request.attempts,
                tokens=len(choice.output),
            )
    cell.admission_due = True
    end_hold(cell, request)


def end_hold(cell: Cell, request: Request) -> None:
    """One hold less; with the last one a pending cancel is answered."""
    request.holds -= 1
    settle(cell, request)


def settle(cell: Cell, request: Request) -> None:
    """Closes the books of a request that holds nothing any more, and answers its cancel."""
    if request.holds or request.outcome is None:
        return
    note_untold(cell, request)
    cancel = request.cancel
    if cancel is not None:
        request.cancel = None
        latency_us = cell.now_us - cancel.started_us
        cell.counters["cancel_latency_us_last"] = latency_us
        answer = CancelAnswer(
            True, request.outcome.outcome, request.last_step, request.blocks_freed, latency_us, request.cost
        )
        for connection, label in cancel.waiters:
            gateway = cell.fleet.gateways.get(connection)
            if gateway is not None:
                gateway.cancel_results.append((label, answer))
                cell.effects.dirty_gateways.add(connection)
        cell.fact(
            "cancel",
            request,
            cancel.started_us,
            cell.now_us,
            reason=cancel.reason,
            latency_us=latency_us,
            blocks_freed=request.blocks_freed,
            last_step=request.last_step,
            **request.cost.figures(),
        )
    request.retire_if_done()


def lose_worker(cell: Cell, worker: Worker, why: str) -> list[Request]:
    """A preemption with nothing resident: every hold there ends. Returns requests that lost too many workers."""
    if cell.fleet.workers.pop(worker.epoch, None) is None:
        return []
    cell.counters["evicted_blocks"] += worker.take_evicted()
    for reason, count in worker.all_evictions().items():
        cell.lost_evictions[reason] += count
    cell.counters["workers_drained" if worker.draining and worker.idle() else "worker_losses"] += 1
    touched: dict[Request, None] = {}
    for transfer in worker.transfers.values():
        drop.arrived(cell, transfer)
        handoff.lost(transfer)
        if (owner := copies.ended(transfer)) is not None:
            end_hold(cell, owner)
    for sequence in list(worker.sequences.values()):
        request = sequence.choice.request
        if sequence.choice.phase is Phase.RUNNING:
            touched[request] = None
        request.blocks_freed += len(sequence.blocks)
        handoff.end(cell, request, "prefill-lost" if sequence.handoff is not None else "decode-lost")
        _unseat(cell, worker, sequence, "worker-lost")
    exhausted = []
    for request in touched:
        request.attempts += 1
        request.losses += 1
        for choice in request.choices:
            if choice.sequence is not None:
                choice.sequence.calm = False  # its next token ends the count
        if request.losses >= cell.policy.max_losses:
            exhausted.append(request)
    handoff.retarget(cell, worker)
    pauses.worker_lost(cell, worker)
    worker.sequences.clear()
    worker.transfers.clear()
    worker.computing.clear()
    worker.hungry.clear()
    cell.touched.pop(worker, None)
    cell.fleet.changed()
    cell.effects.limits_changed = True
    if not cell.fleet.workers:
        cell.timers.at(cell.now_us + cell.policy.no_worker_timeout_us, "no_worker")
    return exhausted
