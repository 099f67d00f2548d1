"""One cell in simulated time: the real core, simulated workers, one gateway that reads what it is owed.

An event heap drives it. Whatever the driver feeds the core live (submits, reports, stores' events, ticks, collects)
it feeds here, in order of time and then of creation, so that a run is a function of its input alone.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from octavo_scheduler.core import Core
from octavo_scheduler.events import (
    Event,
    GatewayJoined,
    Reported,
    StoreChanged,
    StoreInventory,
    StoreJoined,
    Tick,
)
from octavo_scheduler.orders import Effects, Fact
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.fairness import ServiceGaps
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.store import SimulatedStore
from octavo_scheduler.simulate.tally import Speech, Tally
from octavo_scheduler.simulate.worker import SimulatedWorker
from octavo_scheduler.simulate.workload import Row, submitted

GATEWAY = 1
START_US = 1_000_000
COLLECT_US = 50_000
"""A busy gateway's stream is written this often: its backlog coalesces, and tokens are counted where they reach the core."""
TOLD = ("request_end", "rejected")
"""Facts of requests whose outcome the gateway is owed."""
UNSENT = "unsent"
"""Outcome of a conversation's turn whose predecessor did not finish."""
MOST_REPORTS = 4096
"""Of a worker, that are kept at once for those who speak in them."""
GAP_UNIT_US = 10
"""Resolution of the pooled gaps between tokens."""


class SimulationBroke(RuntimeError):
    """The core lost a simulated worker, or a request never ended: a bug of core or simulator."""


@dataclass(slots=True)
class Sample:
    """The cell at one time."""

    at_us: int
    waiting: int
    running: int
    kv_share: float


@dataclass(slots=True)
class PoolUse:
    """What the workers of one role did."""

    workers: int = 0
    busy_us: float = 0.0
    link_us: float = 0.0  # payload on the links
    link_bytes: int = 0


@dataclass(slots=True)
class CellResult:
    """What one cell did."""

    tallies: list[Tally]
    samples: list[Sample]
    gaps: Counter[int] = field(default_factory=Counter)  # gap // GAP_UNIT_US -> tokens
    counters: dict[str, float] = field(default_factory=dict)
    prediction_errors: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    """What the core predicted (Cell.errors): how often, and the 0.5 and 0.9 quantile of the relative error."""
    busy_us: float = 0.0
    worker_busy_us: list[float] = field(default_factory=list)  # the same of each worker
    ended_us: int = 0
    events: int = 0
    max_service_gap_ms: float = 0.0
    pools: dict[str, PoolUse] = field(default_factory=dict)  # by role
    handoffs: list[Fact] = field(default_factory=list)


class CellRun:
    """Runs `rows` (number, row), which are in order of `at_us`, on `workers` workers. Call `run` once."""

    def __init__(
        self,
        policy: Policy,
        hardware: Hardware,
        workers: int,
        rows: Sequence[tuple[int, Row]],
        sample_us: int,
        watch: Callable[[Event, Effects], None] | None = None,
        roles: Sequence[str] = (),
    ) -> None:
        """`roles`: one per worker; with any, all workers share one host's kvstore, and so hand over through it."""
        self.core = Core(policy, 0)
        self._hardware = hardware
        self._edge_us = hardware.front_us + hardware.back_us
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._number = 0
        self._now_us = 0
        self._tick_us = 0
        self._watch = watch
        self._rows = [(number, row) for number, row in rows if row.after < 0]
        self._followers: dict[int, list[tuple[int, Row]]] = {}
        for number, row in rows:
            if row.after >= 0:
                self._followers.setdefault(row.after, []).append((number, row))
        self._tooled = {number for number, row in rows if row.tool or row.expected_us}
        self._said: dict[int, array[int]] = {}  # prompt of a row that others follow, while it runs
        self._to_come = len(rows)
        self._sample_us = sample_us
        self._collecting = False
        self._ended = False  # somebody's outcome is owed to the gateway
        self._open: dict[str, Tally] = {}
        self._service = ServiceGaps()
        self._many_tenants = len({row.tenant for _number, row in rows}) > 1
        self.result = CellResult([], [])
        self._workers: dict[int, SimulatedWorker] = {}
        self._speeches: defaultdict[int, Speech] = defaultdict(Speech)  # by epoch
        shared = SimulatedStore("host0", 1, hardware.host_blocks * workers) if roles and hardware.host_blocks else None
        for index in range(workers):
            store = shared
            if hardware.host_blocks and not roles:
                store = SimulatedStore(f"host{index}", index + 1, hardware.host_blocks)
            role = roles[index] if roles else "both"
            self._workers[index + 1] = SimulatedWorker(f"w{index}", index + 1, hardware, store, role)
        workers_with = (worker.store for worker in self._workers.values())
        self.stores = {store.store_id: store for store in workers_with if store is not None}
        """By store id; what they are to hold from the start is given before `run`."""

    def at(self, at_us: int, change: Callable[[SimulatedWorker], None]) -> None:
        """Changes every worker at a time of the run, counted from the first arrival's zero: a link that slows down, say."""
        for worker in self._workers.values():
            self._at(START_US + at_us, change, worker)

    def run(self) -> CellResult:
        """To the end of the last request. Raises SimulationBroke."""
        self._feed(GatewayJoined(0, GATEWAY, "simulated"))
        for store in self.stores.values():
            self._feed(StoreJoined(0, store.store_id, store.connection))
        for worker in self._workers.values():
            self._feed(worker.hello(0))
            self._at(0, self._boundary, worker)
        if self._rows:
            self._at(self._arrival_us(0), self._arrive, 0)
            self._at(START_US, self._sample, None)
        heap = self._heap
        while heap and (self._open or self._to_come):
            now_us, _number, act, subject = heapq.heappop(heap)
            self._now_us = now_us
            act(subject)
        self._finish()
        return self.result

    def _at(self, at_us: int, act: Callable[[Any], None], subject: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (at_us, self._number, act, subject))

    # -- the core's shell ----------------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        effects = self.core.handle(event)
        self.result.events += 1
        if self._watch is not None:
            self._watch(event, effects)
        for fact in effects.facts:
            if fact.name in TOLD:
                self._ended = True
            elif fact.name == "handoff":
                self.result.handoffs.append(fact)
        for epoch, why in effects.close_workers:
            self._closed(epoch, why)
        arrives_us = self._now_us + self._hardware.link_us
        for epoch, orders in effects.orders:
            worker = self._workers[epoch]
            worker.inbox.append((arrives_us, orders))
            if not worker.stepping and arrives_us < worker.wake_us:
                worker.wake_us = arrives_us
                self._at(arrives_us, self._boundary, worker)
        for store_id in effects.ask_inventory:
            self._inventory(store_id)
        if effects.dirty_gateways and not self._collecting:
            self._collecting = True
            self._at(self._now_us + COLLECT_US, self._collect, None)
        if effects.next_wakeup_us and effects.next_wakeup_us != self._tick_us:
            self._tick_us = effects.next_wakeup_us
            self._at(max(self._now_us, self._tick_us), self._tick, self._tick_us)

    def _closed(self, epoch: int, why: str) -> None:
        """The core has ended a worker's epoch. Here none is lost or drained."""
        raise SimulationBroke(f"the core closed worker {self._workers[epoch].worker_id}: {why}")

    def _tick(self, due_us: int) -> None:
        if due_us == self._tick_us:  # else the core has moved its wake-up since
            self._tick_us = 0
            self._feed(Tick(self._now_us))

    def _boundary(self, worker: SimulatedWorker) -> None:
        if self._now_us != worker.wake_us:
            return  # moved since
        for report, owners in worker.boundary(self._now_us):
            self._at(self._now_us + self._hardware.link_us, self._report, (worker, report, owners))
        self._at(worker.wake_us, self._boundary, worker)

    def _report(self, arrived: tuple[SimulatedWorker, Reported, list[str]]) -> None:
        worker, report, owners = arrived
        report.now_us = now_us = self._now_us
        speech = self._speeches[worker.epoch]
        if report.steps == 1:
            if owners is not speech.owners and (owners != speech.owners or 0 in report.counts):
                self._speak(speech, owners, report.counts)
            speech.times.append(now_us)
        else:
            self._speak(speech, (), ())
            for owner, count in zip(owners, report.counts, strict=True):
                if count and (tally := self._open.get(owner)) is not None:
                    tally.times += [now_us] * count
        if self._many_tenants:
            self._serve(report, owners)
        self._feed(report)
        if worker.store is not None and worker.store.changes:
            store = worker.store
            number, changes = store.take_changes()
            self._feed(StoreChanged(now_us, store.store_id, store.connection, number, changes))

    def _speak(self, speech: Speech, owners: Sequence[str], counts: Sequence[int]) -> None:
        """From now on these speak once in each report of a worker (where `counts` has a token of them), and no others."""
        tally_of = self._open.get  # none: its end was told already, and the worker had not yet heard of it
        speech.owners = owners if all(counts) else ()
        since, here = speech.since, len(speech.times)
        speaking = dict.fromkeys(owners if all(counts) else compress(owners, counts))
        for owner in since.keys() - speaking.keys() if here < MOST_REPORTS else list(since):
            if (tally := tally_of(owner)) is not None:
                tally.pause()
            else:
                del since[owner]
        if not since:
            speech.times, here = [], 0
        for owner in speaking.keys() - since.keys():
            if (tally := tally_of(owner)) is not None:
                tally.pause()  # of another worker
                tally.speaks = speech
                since[owner] = here

    def _serve(self, report: Reported, owners: list[str]) -> None:
        """Books each sequence's share of the worker's time as its tenant's service."""
        hardware, service_ms = self._hardware, self._service.service_ms
        for owner, computed in zip(owners, report.computed_len, strict=True):
            tally = self._open.get(owner)
            if tally is None:
                continue
            advanced = max(0, computed - tally.computed)
            tally.computed = computed
            unit_us = hardware.decode_seq_us if advanced <= 1 else hardware.prefill_token_us
            context_us = hardware.context_token_us * computed
            service_ms[tally.row.tenant] += (unit_us * advanced + context_us) / 1000

    def _inventory(self, store_id: str) -> None:
        # a simulated store loses no event: no gap can be reported later
        store = self.stores[store_id]
        self._feed(StoreInventory(self._now_us, store_id, store.connection, 0, store.keys(), True))

    # -- the gateway ---------------------------------------------------------------------------------------------------

    def _arrival_us(self, index: int) -> int:
        return START_US + self._rows[index][1].at_us + self._hardware.front_us

    def _arrive(self, index: int) -> None:
        number, row = self._rows[index]
        self._submit((number, row, array("I")))
        if index + 1 < len(self._rows):
            self._at(max(self._now_us, self._arrival_us(index + 1)), self._arrive, index + 1)

    def _submit(self, arrived: tuple[int, Row, array[int]]) -> None:
        number, row, said_before = arrived
        self._to_come -= 1
        tally = Tally(number, row, self._now_us)
        self.result.tallies.append(tally)
        self._open[f"r{number}"] = tally
        self._service.arrived(row.tenant)
        resumes = f"r{row.after}" if row.after in self._tooled else ""
        event = submitted(number, row, said_before, GATEWAY, self._now_us, self._hardware.block_tokens, resumes)
        tally.prompt_tokens = len(event.prompt)
        if number in self._followers:
            self._said[number] = event.prompt
        self._feed(event)

    def _follow(self, ended: Tally) -> None:
        """The next turns of a conversation: a pause after this one, or never when it did not finish."""
        said = self._said.pop(ended.number) + array("I", bytes(4 * ended.tokens))
        for number, row in self._followers.pop(ended.number):
            if ended.outcome == "finished":
                # e2e counts from the client's call to its last token; the next call goes the same way to the core
                calls_us = ended.submitted_us + ended.e2e_us + row.at_us
                self._at(max(self._now_us, calls_us), self._submit, (number, row, said))
                continue
            self._to_come -= 1
            self.result.tallies.append(unsent := Tally(number, row, self._now_us, outcome=UNSENT))
            if number in self._followers:
                self._said[number] = said
                self._follow(unsent)

    def _collect(self, _: None) -> None:
        self._collecting = False
        if not self._ended:
            return  # tokens were counted where they reached the core: only ends are read here
        self._ended = False
        while updates := self.core.collect(GATEWAY):
            for update in updates:
                if update.finished is None:
                    continue
                tally = self._open.pop(update.request_id)
                tally.pause()
                tally.outcome, tally.reason = update.finished.outcome, update.finished.reason
                tally.cached_tokens = update.cached_tokens
                if update.times is not None:
                    tally.preemptions, tally.queue_us = update.times.preemptions, update.times.queue_us
                self._service.ended(tally.row.tenant)
                tally.close(self.result.gaps, GAP_UNIT_US, self._edge_us)
                if tally.number in self._followers:
                    self._follow(tally)

    # -- what is measured ----------------------------------------------------------------------------------------------

    def _sample(self, _: None) -> None:
        workers = self.core.cell.fleet.workers.values()
        usable = sum(worker.pool.usable_blocks for worker in workers)
        free = sum(worker.pool.free_blocks for worker in workers)
        running = sum(len(worker.sequences) for worker in workers)
        share = 1 - free / usable
        self.result.samples.append(Sample(self._now_us - START_US, len(self.core.cell.queue), running, share))
        self._service.sample()
        self._at(self._now_us + self._sample_us, self._sample, None)

    def _finish(self) -> None:
        result = self.result
        if self._open:
            raise SimulationBroke(f"{len(self._open)} requests never ended, {next(iter(self._open))} among them")
        result.counters = dict(self.core.cell.counters)
        result.prediction_errors = {
            kind: (errors.count, errors.quantile(0.5), errors.quantile(0.9))
            for kind, errors in self.core.cell.errors.items()
        }
        result.worker_busy_us = [worker.busy_us for worker in self._workers.values()]
        result.busy_us = sum(result.worker_busy_us)
        for worker in self._workers.values():
            pool = result.pools.setdefault(worker.role, PoolUse())
            pool.workers += 1
            pool.busy_us += worker.busy_us
            pool.link_us += worker.link_us
            pool.link_bytes += worker.link_bytes
        result.ended_us = max(0, self._now_us - START_US)
        result.max_service_gap_ms = self._service.max_gap_ms
