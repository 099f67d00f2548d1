"""The cell and its requests as people see them: GetLive and GetTimeline. Never a token, never a word of a prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from typing import TypeVar

from octavo.v1 import kvstore_pb2
from octavo.v1 import scheduler_pb2 as pb

from octavo_scheduler.books.ledger_wire import ledger_row, totals, trial_rows
from octavo_scheduler.cell import Cell
from octavo_scheduler.connections import TierFill
from octavo_scheduler.costing import cost_now
from octavo_scheduler.driver import Driver
from octavo_scheduler.fleet import Worker
from octavo_scheduler.journal import Journal
from octavo_scheduler.limits.shown import tenant_rows
from octavo_scheduler.orders import Fact
from octavo_scheduler.request import Cost, Phase, Request, Sequence
from octavo_scheduler.status import counters
from octavo_scheduler.update_wire import write_cost

Owned = TypeVar("Owned", Request, Fact)

DEFAULT_REQUESTS = 200
LOOKED_AT_PER_LISTED = 64
LOOKED_AT_WAITING = 1024
"""Of those that wait, in their order; fair policies let the tenants take turns in it already."""
"""How far down a long list the requests of tenants that come late in it are looked for."""
MAP_CELLS = 512
"""A larger pool is shown with several blocks to a cell."""
HIDDEN_ATTRIBUTES = ("octavo.request_id", "tenant")


def read_tiers(message: pb.StoreTiers) -> list[TierFill]:
    """What a kvstore says of its tiers."""
    return [
        TierFill(item.name, item.capacity_bytes, item.used_bytes, item.keys, item.hits, item.misses)
        for item in message.tiers
    ]


def live(driver: Driver, max_requests: int) -> pb.GetLiveResponse:
    """One moment of the cell."""
    cell = driver.core.cell
    most = max_requests or DEFAULT_REQUESTS
    now_us = driver.clock_us()
    running = _running(cell)
    ready = bool(cell.fleet.accepting()) and not cell.draining
    return pb.GetLiveResponse(
        scheduler_boot_id=driver.boot_id,
        ready=ready,
        why_not_ready="" if ready else "draining" if cell.draining else "no worker is ready",
        workers=[_worker(worker) for worker in cell.fleet.workers.values()],
        stores=[
            pb.LiveStore(
                store_id=store.store_id,
                state="synced" if store.synced else "joining",
                keys=len(store),
                tiers=_tiers(driver, store.store_id),
            )
            for store in cell.fleet.stores.values()
        ],
        waiting=[
            _request(cell, request, now_us)
            for request in of_each_tenant(cell.queue.first(LOOKED_AT_WAITING, cell.now_us), most)
        ],
        running=[_request(cell, request, now_us) for request in of_each_tenant(running, most)],
        recent=[
            _ended(driver.journal, end, now_us)
            for end in of_each_tenant(driver.journal.ended(LOOKED_AT_PER_LISTED * most), most)
        ],
        requests_waiting=len(cell.queue),
        requests_running=len(running),
        ledger=[ledger_row(name, book) for name, book in totals(cell).items()],
        trials=trial_rows(cell),
        slo_classes=[
            pb.SloTarget(name=item.name, ttft_ms=item.ttft_ms, itl_p99_ms=item.itl_p99_ms)
            for item in cell.classes.values()
        ],
        waiting_prompt_tokens=cell.queue.prompt_tokens,
        gateways=sorted(gateway.gateway_id for gateway in cell.fleet.gateways.values()),
        counters=counters(cell),
        tenants=[pb.TenantStatus(**asdict(row)) for row in tenant_rows(cell)],
    )


def of_each_tenant(items: Iterable[Owned], most: int) -> list[Owned]:
    """The first `most` of every tenant, in order: one with thousands hides nobody's. Bounded by what is looked at."""
    listed: list[Owned] = []
    of_tenant: Counter[str] = Counter()
    for item in islice(items, LOOKED_AT_PER_LISTED * most):
        tenant = item.tenant if isinstance(item, Request) else str(item.attributes.get("tenant", ""))
        if of_tenant[tenant] < most:
            of_tenant[tenant] += 1
            listed.append(item)
    return listed


def _running(cell: Cell) -> list[Request]:
    """Requests with a residency, the oldest first."""
    found = {
        id(sequence.choice.request): sequence.choice.request
        for worker in cell.fleet.workers.values()
        for sequence in worker.sequences.values()
    }
    return sorted(found.values(), key=lambda request: request.submitted_us)


def _worker(worker: Worker) -> pb.LiveWorker:
    states = worker.pool.states()
    per_cell = max(1, -(-len(states) // MAP_CELLS))
    return pb.LiveWorker(
        worker_id=worker.worker_id,
        state="draining" if worker.draining else "serving",
        running=len(worker.sequences),
        max_seqs=worker.max_seqs,
        blocks_total=worker.pool.usable_blocks,
        blocks_free=worker.pool.free_blocks,
        blocks_cached=worker.pool.cached_blocks,
        block_bytes=worker.block_bytes,
        steps=worker.steps,
        step_us=worker.costs.step_us,
        block_map=states
        if per_cell == 1
        else bytes(_busiest(states[at : at + per_cell]) for at in _starts(states, per_cell)),
        blocks_per_cell=per_cell,
    )


def _starts(states: bytes, per_cell: int) -> range:
    return range(0, len(states), per_cell)


def _busiest(states: bytes) -> int:
    """The most frequent state of a cell; of equals the busier one."""
    return max(range(5), key=lambda state: (states.count(state), state))


def _tiers(driver: Driver, store_id: str) -> Iterable[kvstore_pb2.TierStats]:
    connection = driver.stores.get(store_id)
    for tier in connection.tiers if connection is not None else ():
        yield kvstore_pb2.TierStats(
            name=tier.name,
            capacity_bytes=tier.capacity_bytes,
            used_bytes=tier.used_bytes,
            keys=tier.keys,
            hits=tier.hits,
            misses=tier.misses,
        )


def _phase(request: Request, sequences: list[Sequence]) -> str:
    if request.outcome is not None:
        return "stopping"
    if not sequences:
        if request.handoff is not None:
            return "handoff"
        return "waiting" if request.admitted_us < 0 else "preempted"
    if all(sequence.stopping for sequence in sequences):
        return "stopping"
    if any(sequence.wait_xfer for sequence in sequences):
        return "loading"
    return "prefill" if any(sequence.first_token_us < 0 for sequence in sequences) else "decode"


def _request(cell: Cell, request: Request, now_us: int) -> pb.LiveRequest:
    """A request that waits or runs."""
    sequences = [choice.sequence for choice in request.choices if choice.sequence is not None]
    workers = {cell.fleet.workers[item.epoch].worker_id for item in sequences if item.epoch in cell.fleet.workers}
    computed = sequences[0].computed_len if sequences else 0
    return pb.LiveRequest(
        request_id=request.request_id,
        tenant=request.tenant,
        trace_id=trace_id_of(request.traceparent),
        phase=_phase(request, sequences),
        prompt_tokens=len(request.prompt),
        cached_tokens=max(0, request.cached_tokens),
        computed_tokens=computed,
        output_tokens=sum(len(choice.output) for choice in request.choices),
        max_tokens=request.max_tokens * len(request.choices),
        choices=len(request.choices),
        workers=sorted(workers),
        blocks=sum(len(item.blocks) - item.unpaid_blocks for item in sequences),
        age_us=max(0, now_us - request.submitted_us),
        priority=request.priority,
        slo_class=request.slo_class,
        attempts=request.attempts,
        preemptions=request.preemptions,
        degraded=request.degraded,
        cost=write_cost(cost_now(request, cell.fleet.workers, now_us)),
        outcome=request.outcome.outcome if request.outcome is not None else "",
        first_token_us=max(0, request.first_token_us - request.submitted_us) if request.first_token_us >= 0 else 0,
    )


def _ended(journal: Journal, end: Fact, now_us: int) -> pb.LiveRequest:
    """A request that is over, from its last fact."""
    said = end.attributes
    return pb.LiveRequest(
        request_id=str(said["octavo.request_id"]),
        tenant=str(said["tenant"]),
        trace_id=trace_id_of(end.traceparent),
        phase="ended",
        prompt_tokens=int(said["prompt_tokens"]),
        cached_tokens=int(said["cached_tokens"]),
        output_tokens=int(said["tokens"]),
        age_us=end.end_us - end.start_us,
        attempts=int(said["attempts"]),
        preemptions=int(said["preemptions"]),
        cost=pb.RequestCost(**{name: int(said[name]) for name in Cost().figures()}),
        outcome=str(said["outcome"]),
        reason=str(said["reason"]),
        degraded=str(said["degraded"]),
        first_token_us=max(0, int(said["first_token_us"])),
        slo_class=str(said["slo_class"]),
        choices=int(said["choices"]),
        ended_us_ago=max(0, now_us - end.end_us),
    )


def trace_id_of(traceparent: str) -> str:
    """The 32 hex digits of a W3C traceparent, or nothing."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else ""


# -- one request's intervals ---------------------------------------------------------------------------------------


def timeline(driver: Driver, request_id: str, tenant: str) -> pb.GetTimelineResponse:
    """A request's intervals so far; not found when it is unknown here or another tenant's."""
    cell, journal = driver.core.cell, driver.journal
    now_us = driver.clock_us()
    request = cell.registry.find(tenant, request_id)
    end = journal.end_of(request_id)
    answer = pb.GetTimelineResponse()
    if request is not None and request.live:
        start_us = request.submitted_us
        answer.request.CopyFrom(_request(cell, request, now_us))
        spans = [span for fact in journal.facts(request_id) for span in _spans(fact, start_us)]
        spans += _running_spans(cell, request, start_us, now_us)
    elif end is not None and end.attributes["tenant"] == tenant:
        start_us = end.start_us
        answer.request.CopyFrom(_ended(journal, end, now_us))
        spans = [span for fact in journal.facts(request_id) for span in _spans(fact, start_us)]
    else:
        return answer
    answer.found = True
    answer.spans.extend(sorted(spans, key=lambda span: (span.start_us, span.end_us)))
    return answer


def _span(name: str, service: str, start_us: int, end_us: int, zero_us: int, **said: object) -> pb.TimelineSpan:
    return pb.TimelineSpan(
        name=name,
        service=service,
        start_us=max(0, start_us - zero_us),
        end_us=max(0, end_us - zero_us),
        attributes={key.removeprefix("octavo."): str(value) for key, value in said.items()},
    )


def _spans(fact: Fact, zero_us: int) -> list[pb.TimelineSpan]:
    """The intervals that a fact tells of."""
    if fact.name == "request_end":
        return []
    said = {key: value for key, value in fact.attributes.items() if key not in HIDDEN_ATTRIBUTES}
    if fact.name != "residency":
        return [_span(fact.name, "scheduler", fact.start_us, fact.end_us, zero_us, **said)]
    first_us = int(said["first_token_us"])
    return _residency(
        fact.start_us, int(said["wait_us"]), first_us, fact.end_us, zero_us, int(said["computed_tokens"]),
        worker=said["worker"], choice=said["choice"], blocks=said["blocks"], cached_tokens=said["cached_tokens"],
        end=said["end"],
    )  # fmt: skip


def _residency(
    admitted_us: int, wait_us: int, first_us: int, end_us: int, zero_us: int, computed: int, **said: object
) -> list[pb.TimelineSpan]:
    """Wait at the worker, prefill and decode of one stay on a worker."""
    spans = []
    begin_us = min(admitted_us + wait_us, end_us)
    if wait_us:
        spans.append(_span("worker wait", "gpuworker", admitted_us, begin_us, zero_us))
    prefill_end_us = first_us if first_us >= 0 else end_us
    spans.append(_span("prefill", "gpuworker", min(begin_us, prefill_end_us), prefill_end_us, zero_us, **said))
    if first_us >= 0:
        spans.append(_span("decode", "gpuworker", first_us, end_us, zero_us, positions=computed, **said))
    return spans


def _running_spans(cell: Cell, request: Request, zero_us: int, now_us: int) -> list[pb.TimelineSpan]:
    """What is not over yet."""
    spans: list[pb.TimelineSpan] = []
    for choice in request.choices:
        sequence = choice.sequence
        worker = cell.fleet.workers.get(sequence.epoch) if sequence is not None else None
        if sequence is None or worker is None:
            continue
        stay = _residency(
            sequence.admitted_us, sequence.worker_wait_us, sequence.first_token_us, now_us, zero_us,
            sequence.computed_len, worker=worker.worker_id, choice=choice.index, blocks=len(sequence.blocks),
            cached_tokens=sequence.cached_len,
        )  # fmt: skip
        stay[-1].running = True
        spans += stay
    if any(choice.phase is Phase.WAITING for choice in request.choices):
        name = "queue" if request.admitted_us < 0 else "preempted" if request.handoff is None else "handoff"
        waiting = _span(name, "scheduler", request.waiting_since_us, now_us, zero_us)
        waiting.running = True
        spans.append(waiting)
    return spans
