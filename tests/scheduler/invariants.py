"""What must be true of a cell after every event (design section 3), cheap enough to be checked after each of 200,000."""

from __future__ import annotations

from collections import Counter

from octavo_scheduler.admission import MAX_PREEMPTIONS
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.request import Delivery, Phase, Request


def check_cell(cell: Cell) -> None:
    """Workers, requests, queue and what is counted of them agree."""
    priorities: Counter[int] = Counter()
    holds: Counter[Request] = Counter()
    for worker in cell.fleet.workers.values():
        check_worker(worker)
        for sequence in worker.sequences.values():
            request = sequence.choice.request
            priorities[request.priority] += 1
            holds[request] += 1
        for transfer in worker.transfers.values():
            if transfer.owner is not None:
                holds[transfer.owner] += 1
    assert cell.running_priorities == priorities
    for request, count in holds.items():
        assert request.holds == count, f"{request.request_id} counts {request.holds} holds, has {count}"
    check_queue(cell)
    check_moves(cell)
    check_shortcuts(cell)
    live = cell.registry.live()
    for request in live:
        check_request(cell, request)
    counts = Counter(request.tenant for request in live)
    assert all(cell.tenants.accounts[tenant].live >= count for tenant, count in counts.items())
    assert cell.counters["unkept_blocks"] == 0, "a preemption freed less than it promised"


def check_worker(worker: Worker) -> None:
    """Blocks have exactly the holders that tables and transfers say; slots, budgets and rounds agree."""
    assert (wrong := worker.audit()) == [], wrong
    assert worker.pool.free_blocks >= 0
    targets: Counter[int] = Counter()
    assert worker.of_tenant == Counter(item.choice.request.tenant for item in worker.sequences.values())
    for sequence in worker.sequences.values():
        assert 0 not in sequence.blocks, "the null block was allocated"
        if sequence.itl_target_us:
            targets[sequence.itl_target_us] += 1
    assert worker.pace.target_us() == min(targets, default=0)
    assert worker.preempting <= worker.sequences.keys(), "a preemption round outlives its victims"
    assert len(worker.free_slots) + len(worker.sequences) == worker.max_seqs
    assert not worker.orders_due(), "orders of one event wait for the next"
    assert not worker.orders or worker.sequences, "names wait although nothing runs"


def check_queue(cell: Cell) -> None:
    """Who waits is live and wants a residency; the sums fit."""
    tokens = kv_tokens = 0
    for request in cell.queue:
        tokens += len(request.prompt)
        kv_tokens += request.claimed_kv_tokens
        assert request.queued and request.live and request.waiting_choices(), f"{request.request_id} waits for nothing"
    load = cell.queue.load.total
    assert (load.requests, load.prompt_tokens, load.kv_tokens) == (len(cell.queue), tokens, kv_tokens)
    assert len(cell.queue) == 0 or cell.queue.peek(cell.now_us) is not None, "those that wait are out of sight"


def check_moves(cell: Cell) -> None:
    """Room is promised to handoffs that live, kept blocks belong to pauses that are open, arrivals wait in the queue."""
    for worker in cell.fleet.workers.values():
        assert all(request.live and request.handoff is not None for request in worker.promised), "an orphan promise"
        kept = [pause for pause in cell.pauses.values() if pause.worker is worker and pause.kept]
        assert set(worker.kept) == set(kept), "blocks are kept for nobody"
    for request in cell.arriving:
        assert request.live and request.handoff is not None and request.queued


def check_shortcuts(cell: Cell) -> None:
    """What is kept so that nobody need look for it agrees with what one would find."""
    assert cell.newcomer is None, "an event has left a newcomer behind"
    timers = cell.timers
    assert timers.next_us == (min(entry[0] for entry in timers._heap) if len(timers) else 0)
    for pool, loads in cell.loads.items():
        assert loads.workers is not cell.fleet.accepting(pool) or not loads.wrong(), (
            "an event has touched a worker unseen"
        )
    for gateway in cell.fleet.gateways.values():
        for delivery in (*gateway.deliveries.values(), *gateway.dirty):
            check_plain(delivery)
    for worker in cell.fleet.workers.values():
        assert cell.fleet.heads.issuperset(worker.index.heads()), "a worker holds a head that the fleet does not know"
        for sequence in worker.sequences.values():
            if len(cell.fleet.gateways) == 1 and sequence.owed_at is cell.fleet.collected:
                (gateway,) = cell.fleet.gateways.values()
                assert gateway.dirty.keys() >= set(sequence.choice.request.deliveries), (
                    "its next tokens would be told late"
                )
            first = sequence.choice.request.prompt_keys[:1]
            assert not (first and first[0] in sequence.pending_keys) or first[0] in cell.fleet.heads
            if sequence.calm_until > sequence.computed_len:
                covered, ends = len(sequence.blocks) * worker.block_tokens, sequence.calm_until
                ahead = sequence.length - sequence.computed_len + worker.calm_water
                assert ends <= covered and (covered >= sequence.max_positions or ends + ahead <= covered), (
                    "hunger unseen"
                )
                assert sequence.first_token_us >= 0 and sequence.choice.phase is Phase.RUNNING
                assert sequence.calm_until < (sequence.walked + 1) * worker.block_tokens, "a full block would be missed"


def check_plain(delivery: Delivery) -> None:
    """Whoever is taken for one that owes nothing but tokens is one."""
    request = delivery.request
    if delivery.plain is None:
        return
    assert request is not None and request.outcome is None and delivery.own_outcome is None, "an end would be told late"
    assert delivery.accepted_sent and request.logprobs < 0 and request.beams is None
    (choice,) = request.choices
    assert choice.phase is not Phase.DONE and choice.output is delivery.plain and delivery.handle
    assert 0 < delivery.sent[0] <= len(choice.output)


def check_beams(request: Request) -> None:
    """Beams run on one worker, as long as each other but for an order under way, and leave together."""
    running = [choice.sequence for choice in request.choices if choice.sequence is not None]
    assert len({sequence.epoch for sequence in running}) <= 1
    assert len({len(choice.output) for choice in request.choices if choice.phase is not Phase.DONE}) <= 1
    assert len({bool(sequence.stopping) for sequence in running}) <= 1, "some of its beams go on without the others"
    paid: set[int] = set()
    for sequence in running:
        first = sequence.unpaid_blocks
        assert sequence.length == len(request.prompt) + len(sequence.choice.output) or sequence.stopping
        assert paid.issuperset(sequence.blocks[:first]) or sequence.stopping, "a block is nobody's to pay for"
        assert paid.isdisjoint(sequence.blocks[first:]) or sequence.stopping, "a block is paid for twice"
        paid.update(sequence.blocks)


def check_request(cell: Cell, request: Request) -> None:
    """A choice runs on a worker that knows it, waits in the queue, or is done."""
    if request.beams is not None:
        check_beams(request)
    for choice in request.choices:
        sequence = choice.sequence
        assert choice.preemptions <= MAX_PREEMPTIONS, f"{request.request_id} was preempted {choice.preemptions} times"
        if choice.phase is Phase.RUNNING:
            assert sequence is not None, f"{request.request_id} runs nowhere"
        if choice.phase is Phase.WAITING:
            leaving = request.beams is not None and any(other.phase is Phase.RUNNING for other in request.choices)
            assert (request.queued or leaving) and sequence is None, f"{request.request_id} is lost"
        if sequence is not None:
            worker = cell.fleet.workers[sequence.epoch]
            assert worker.sequences[sequence.seq] is sequence and worker.slots[sequence.slot] is sequence
            assert choice.phase is not Phase.DONE or sequence.stopping, "what has ended still runs"
