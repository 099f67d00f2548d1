"""How choices leave workers: stop, preempt, release, and the loss of a worker. They come by `seating`."""

from __future__ import annotations

from octavo_scheduler.admission import Plan
from octavo_scheduler.books import chunks, entries
from octavo_scheduler.books.book import who_is
from octavo_scheduler.cell import Cell
from octavo_scheduler.costing import accrue, note_untold, pass_on_shared
from octavo_scheduler.fleet import CancelAnswer, Worker
from octavo_scheduler.limits import hopeless
from octavo_scheduler.moves import copies, handoff, pauses, pieces
from octavo_scheduler.moves.exports import answering
from octavo_scheduler.moves.swap import swap_out
from octavo_scheduler.orders import Stop
from octavo_scheduler.preemption import Prices, cheapest_displacement, choose_victims
from octavo_scheduler.preloads import drop, wishes
from octavo_scheduler.request import NO_PARENT, Phase, Request, Sequence
from octavo_scheduler.seating import forget_computing


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
        if victim.swap:
            swap_out(cell, worker, victim)


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
            cell.bets.left(key, who_is(request).length, cell.switches.is_off("offload", request))
            worker.offload_candidates[block] = wishes.leaving(worker, request, key, parent or NO_PARENT, at)
    index.rest(sequence.blocks, cell.now_us)
    entries.rested(cell, worker, sequence)
    freed = pool.drop_all(reversed(sequence.blocks))
    if sequence.sources:
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
    if request.beams is not None:
        request.beams.rows.clear()  # the others leave too, and offer it again where they go on
    for member in sequence.group:
        member.group = ()
    if choice.phase is Phase.RUNNING:
        choice.phase = Phase.WAITING
        if not request.queued:
            request.waiting_since_us = cell.now_us
        if request.beams is None or request.waiting_choices():  # with the last of its beams
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
                choice.sequence.calm_until = 0  # its next token ends the count
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
