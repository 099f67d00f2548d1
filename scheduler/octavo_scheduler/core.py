"""The core: state + event -> effects. No I/O, no clock, no randomness; the same code runs live and in a simulator.

It only coordinates: handlers change the cell, then waiting requests are placed, hungry sequences topped up, dirty
blocks offloaded, and whatever that ordered is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from octavo_scheduler import draining, lifecycle, newcomers, placement, prefetching, reports, residency, seating
from octavo_scheduler.admission import Plan, fits
from octavo_scheduler.batching import grant_spare, step_policy, top_up
from octavo_scheduler.books import entries
from octavo_scheduler.cell import Cell
from octavo_scheduler.costing import accrue
from octavo_scheduler.events import (
    AttachRequested,
    Cancelled,
    ChoiceStopped,
    DrainRequested,
    Event,
    GatewayJoined,
    GatewayLost,
    Paused,
    Reported,
    StoreChanged,
    StoreCoded,
    StoreInventory,
    StoreJoined,
    StoreLost,
    Submitted,
    Tick,
    WorkerJoined,
    WorkerLost,
)
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits import hopeless, learn, memory
from octavo_scheduler.limits.jam import Jam
from octavo_scheduler.moves import handoff, pauses
from octavo_scheduler.orders import Effects
from octavo_scheduler.outbox import Update, collect
from octavo_scheduler.policy import SECOND_US, Policy
from octavo_scheduler.preloads import build, control, drop
from octavo_scheduler.preloads.cache_events import (
    CacheEvicted,
    NamespaceRotated,
    PreloadPinned,
    PreloadPut,
    PreloadRemoved,
    PreloadUsed,
)
from octavo_scheduler.preloads.leaving import Leaving, offload_order
from octavo_scheduler.request import Outcome, Request
from octavo_scheduler.tiers import Directory, Transfer
from octavo_scheduler.token_runs import TokenRuns


class Core:
    """One cell's scheduler. Feed events in time order; carry out the effects of each before the next."""

    def __init__(self, policy: Policy, now_us: int = 0) -> None:
        self.cell = cell = Cell(policy, now_us)
        self._next_audit_us = now_us + SECOND_US
        self._handlers: dict[type, Callable[[Any], None]] = {
            Submitted: partial(lifecycle.submit, cell),
            Cancelled: partial(lifecycle.cancel, cell),
            Paused: partial(lifecycle.pause, cell),
            ChoiceStopped: partial(lifecycle.stop_choice, cell),
            AttachRequested: partial(lifecycle.attach_known, cell),
            GatewayJoined: partial(lifecycle.join_gateway, cell),
            GatewayLost: partial(lifecycle.lose_gateway, cell),
            WorkerJoined: self._worker_joined,
            WorkerLost: self._worker_lost,
            DrainRequested: partial(draining.begin, cell),
            Reported: self._reported,
            StoreJoined: self._store_joined,
            StoreChanged: self._store_changed,
            StoreInventory: self._store_inventory,
            StoreCoded: self._store_coded,
            StoreLost: self._store_lost,
            PreloadPut: partial(build.put, cell),
            PreloadRemoved: partial(build.remove, cell),
            PreloadPinned: partial(build.set_pinned, cell),
            PreloadUsed: partial(build.used, cell),
            CacheEvicted: partial(control.evict, cell),
            NamespaceRotated: partial(control.rotate, cell),
            Tick: lambda event: None,
        }

    def handle(self, event: Event) -> Effects:
        """Applies one event. Time never goes back: an older `now_us` counts as the newest seen."""
        cell = self.cell
        if event.now_us > cell.now_us:
            cell.now_us = event.now_us
        now_us, touched = cell.now_us, cell.touched
        cell.effects = effects = Effects([], [], [], set(), [], False, 0, [], [])
        self._handlers[type(event)](event)
        alone = cell.newcomer is not None and newcomers.comes_alone(cell, self._next_audit_us)
        if 0 < cell.timers.next_us <= now_us:
            self._fire_timers()
        if now_us >= self._next_audit_us:
            self._audit()
        for worker in list(touched) if touched else ():
            if worker.hungry or worker.pool.debt:
                self._accrue_hungry(worker)
                lacked = worker.ungranted
                residency.preempt_if_short(cell, worker, top_up(worker, cell.policy))
                if worker.ungranted < lacked:
                    grant_spare(cell, worker)
        if alone:
            newcomers.admit(cell)
        if cell.admission_due:
            cell.admission_due = False
            self._admit_waiting()
            alone = True
        if alone:
            for worker in touched:
                if worker.hungry:
                    self._accrue_hungry(worker)
                    # a newcomer's horizon travels with its admission; shortage is seen at the next event
                    top_up(worker, cell.policy)
        if cell.fleet.stores and isinstance(event, Submitted):
            arrived = cell.registry.find(event.tenant, event.request_id)
            if arrived is not None:
                prefetching.hint(cell, arrived)
        for worker in touched:
            if worker.offload_candidates:
                self._offload(worker)
            if worker.orders_due():
                effects.orders.append((worker.epoch, worker.take_orders()))
        for loads in cell.loads.values():
            loads.touch(touched)
        touched.clear()
        timer_us, audit_us = cell.timers.next_us, self._next_audit_us
        effects.next_wakeup_us = timer_us if 0 < timer_us < audit_us else audit_us
        return effects

    def _accrue_hungry(self, worker: Worker) -> None:
        """Their tables may grow now."""
        now_us = self.cell.now_us
        for sequence in worker.hungry:
            if sequence.accrued_us != now_us:
                accrue(sequence, worker.block_bytes, now_us)
            if sequence.output and not sequence.outgrew:
                learn.from_growth(self.cell, sequence)

    def collect(self, gateway: int, runs: TokenRuns | None = None) -> list[Update]:
        """What the gateway's stream is owed now, the plain tokens in `runs`; call it when the stream is writable."""
        connection = self.cell.fleet.gateways.get(gateway)
        self.cell.fleet.collected = object()
        return collect(self.cell, connection, runs) if connection is not None else []

    def drain(self) -> None:
        """From now on new requests are refused as draining."""
        self.cell.draining = True

    # -- workers ---------------------------------------------------------------------------------------------------

    def _worker_joined(self, event: WorkerJoined) -> None:
        cell = self.cell
        for worker in list(cell.fleet.workers.values()):
            if worker.worker_id == event.worker_id:
                self._lose(worker, "joined again")
        why = self._misfit(event)
        if why:
            cell.effects.close_workers.append((event.epoch, why))
            return
        worker = Worker(event, cell.policy)
        cell.fleet.workers[worker.epoch] = worker
        if cell.policy.prefix_cache:
            held = zip(event.resident, event.resident_parents, strict=False)
            worker.index.adopt([(block, key, parent - 1) for (block, key), parent in held], cell.now_us)
        worker.orders.append(step_policy(worker, cell.policy))
        cell.touched[worker] = None
        cell.fleet.changed()
        cell.admission_due = True
        cell.effects.limits_changed = True
        build.tend(cell)

    def _misfit(self, event: WorkerJoined) -> str:
        """Why this worker cannot serve beside the others; all of a cell hold the same KV."""
        if event.num_blocks < 2 or event.block_tokens < 1 or event.max_num_seqs < 1:
            return "num_blocks, block_tokens and max_num_seqs must leave room for one sequence"
        for other in self.cell.fleet.workers.values():
            if (other.hello.root_key, other.block_tokens) != (event.root_key, event.block_tokens):
                return f"its model or KV layout differs from that of {other.worker_id}; give both the same manifest"
        return ""

    def _worker_lost(self, event: WorkerLost) -> None:
        worker = self.cell.fleet.workers.get(event.epoch)
        if worker is not None:
            self._lose(worker, event.why or "stream closed")

    def _lose(self, worker: Worker, why: str) -> None:
        self.cell.effects.close_workers.append((worker.epoch, why))
        for request in residency.lose_worker(self.cell, worker, why):
            message = f"{request.losses} workers were lost under this request without a token: {why}"
            lifecycle.decide(self.cell, request, Outcome("failed", "worker-lost", message))

    def _reported(self, event: Reported) -> None:
        worker = self.cell.fleet.workers.get(event.epoch)
        if worker is None:
            return
        self.cell.touched[worker] = None
        try:
            reports.apply(self.cell, worker, event)
        except reports.ProtocolError as error:
            self.cell.counters["protocol_errors"] += 1
            self._lose(worker, f"protocol error: {error}")
            return
        if event.draining:
            worker.says_leaving = True
            draining.close(self.cell, worker)
        if draining.is_over(worker):
            self._lose(worker, "drained")

    # -- kvstores --------------------------------------------------------------------------------------------------

    def _store_joined(self, event: StoreJoined) -> None:
        self.cell.fleet.stores[event.store_id] = Directory(
            event.store_id, event.connection, reachable=event.reachable, fetches=event.fetches
        )
        self.cell.effects.ask_inventory.append(event.store_id)
        drop.remind(self.cell, event.store_id)
        build.keep_in(self.cell, event.store_id)

    def _directory(self, store_id: str, connection: int) -> Directory | None:
        directory = self.cell.fleet.stores.get(store_id)
        return directory if directory is not None and directory.connection == connection else None

    def _store_changed(self, event: StoreChanged) -> None:
        directory = self._directory(event.store_id, event.connection)
        if directory is not None and not directory.change(event.first_number, event.changes):
            self.cell.effects.ask_inventory.append(event.store_id)

    def _store_inventory(self, event: StoreInventory) -> None:
        directory = self._directory(event.store_id, event.connection)
        if directory is not None:
            directory.inventory(event.number, event.keys, event.last)

    def _store_coded(self, event: StoreCoded) -> None:
        self.cell.ledger.book(
            "compression",
            saved_ms=event.saved_us / 1000,
            cost_ms=event.cost_us / 1000,
            saved_bytes=event.saved_bytes,
            entries=event.blocks,
        )

    def _store_lost(self, event: StoreLost) -> None:
        if self._directory(event.store_id, event.connection) is not None:
            del self.cell.fleet.stores[event.store_id]

    def _offload(self, worker: Worker) -> None:
        """Write-behind: indexed blocks that no sequence holds go to the host's kvstore while they are cached."""
        cell, policy = self.cell, self.cell.policy
        directory = cell.fleet.directory_of(worker)
        if directory is None or not directory.answers(cell.now_us):
            worker.offload_candidates.clear()
            return
        # a stuck kvstore holds what is under way for seconds: no more of a small pool than it can do without
        most = min(policy.max_offload_blocks, max(1, worker.pool.usable_blocks // 16))
        while worker.offload_candidates and worker.offloads_in_flight < policy.max_offloads_in_flight:
            blocks: list[int] = []
            leaving: list[Leaving] = []
            while worker.offload_candidates and len(blocks) < most:
                block, item = worker.offload_candidates.popitem(last=False)
                if item.key not in directory and worker.index.key_of(block) == item.key:
                    worker.pool.hold_transfer(block)
                    blocks.append(block)
                    leaving.append(item)
            if blocks:
                transfer = Transfer(cell.number(), "offload", blocks, [item.key for item in leaving], cell.now_us)
                worker.transfers[transfer.xfer_id] = transfer
                worker.offloads_in_flight += 1
                order = offload_order(transfer.xfer_id, blocks, leaving, cell.now_us)
                transfer.order_number = worker.order(order)

    # -- admission -------------------------------------------------------------------------------------------------

    def _admit_waiting(self) -> None:
        """Head first. Passed are requests that wait for something of their own, and, on workers that these could not take, those
        that lack room."""
        for request in list(self.cell.arriving):
            self._admit_arriving(request)
        if not len(self.cell.queue):
            return
        jam = Jam(self.cell)
        with self.cell.queue.in_turn(self.cell.now_us) as turn:
            for request in turn:
                if request not in self.cell.arriving and not jam.holds(request):
                    self._admit(request, jam)
                if jam.total or not len(self.cell.queue):
                    return
                if jam.holds_tenant(request):
                    turn.pass_tenant()

    def _admit(self, request: Request, jam: Jam) -> None:
        """Seats what of it can start, or tells the round's jam what it lacks."""
        cell = self.cell
        while request.waiting_choices():
            if request.handoff is not None:
                break  # its other choices fork where the prefill arrives
            plan, hindrance = placement.start(cell, request, jam.open_to(request))
            if plan is not None and not hindrance:
                request.passing = jam.passes
                cell.counters["passing_starts"] += jam.passes
                seating.admit(cell, plan)
                continue
            if hindrance == "waits":
                break
            if hindrance in ("slots", "share"):
                if plan is not None and pauses.yield_own(cell, plan.worker, request):
                    continue
                jam.hold_tenant(request)
                break
            if plan is not None and (pauses.review(cell, plan.worker, request) or self._make_room(plan)):
                continue
            if request.live and request.waiting_choices():
                self._displace(request, jam)
                jam.hold(request)
            break
        if not request.waiting_choices():
            cell.queue.remove(request)

    def _displace(self, request: Request, jam: Jam) -> None:
        """Somebody of lower priority may run where the head of the queue waits for room."""
        lowest = min(self.cell.running_priorities, default=request.priority)
        if lowest < request.priority:
            residency.displace_lower(self.cell, request, placement.plans(self.cell, request, jam.open_to(request)))

    def _make_room(self, plan: Plan) -> bool:
        """On an idle worker only pins can be in the way of a request that fits the pool: they yield."""
        worker = plan.worker
        if worker.sequences or len(plan.choices) > len(worker.free_slots):
            return False
        back = residency.yield_pins(worker, plan.free_needed)
        self.cell.counters["yielded_pin_blocks"] += back
        return back > 0

    def _admit_arriving(self, request: Request) -> None:
        """A request that another worker prefilled: it goes where its blocks are, once they are there."""
        if handoff.waits(self.cell, request):
            return
        while request.waiting_choices():
            plan = placement.best_plan(self.cell, request)
            if plan is None or not fits(plan, self.cell.policy, self.cell.history):
                return
            seating.admit(self.cell, plan)
            self.cell.arriving.pop(request, None)
        self.cell.queue.remove(request)

    # -- time ------------------------------------------------------------------------------------------------------

    def _fire_timers(self) -> None:
        cell = self.cell
        for kind, request in cell.timers.due(cell.now_us):
            if kind == "no_worker":
                self._fail_without_workers()
            elif kind in ("join", "move", "wake"):
                cell.admission_due = True
            elif kind == "ttl":
                drop.expire(cell)
            elif kind == "drain":
                for worker in draining.hand_over(cell):
                    self._lose(worker, "the drain's deadline is over")
            elif kind == "recover":
                memory.recover(cell)
            elif request is None or not request.live:
                continue
            elif kind == "deadline":
                lifecycle.expire(cell, request)
            elif kind == "hopeless":
                if outcome := hopeless.hopeless(cell, request):
                    lifecycle.expire(cell, request, outcome)
            elif kind == "orphan" and 0 <= request.orphaned_us <= cell.now_us - cell.policy.orphan_grace_us:
                lifecycle.cancel_request(cell, request, "gateway-lost", None)

    def _fail_without_workers(self) -> None:
        cell = self.cell
        limit_us = cell.policy.no_worker_timeout_us
        if cell.fleet.workers:
            return
        for request in cell.queue:
            if cell.now_us >= request.waiting_since_us + limit_us:
                message = f"no worker came within {limit_us / SECOND_US:g} s"
                lifecycle.decide(cell, request, Outcome("failed", "no-worker", message, SECOND_US))

    def _audit(self) -> None:
        """Once a second: silent, stuck or disagreeing workers are lost; expired results are dropped."""
        cell, policy = self.cell, self.cell.policy
        late_us = cell.now_us - self._next_audit_us
        self._next_audit_us = cell.now_us + SECOND_US
        for worker in list(cell.fleet.workers.values()):
            if worker.orders:
                worker.orders_wait = False
                cell.touched[worker] = None
            if late_us > SECOND_US:  # this process stood still (stopped, or starved of CPU): that is nobody's silence
                worker.last_report_us = min(cell.now_us, worker.last_report_us + late_us)
                worker.last_progress_us = min(cell.now_us, worker.last_progress_us + late_us)
            if cell.now_us - worker.last_report_us > policy.worker_silence_us:
                self._lose(worker, f"silent for {policy.worker_silence_us / SECOND_US:g} s")
            elif worker.sequences and cell.now_us - worker.last_progress_us > policy.progress_timeout_us:
                self._lose(worker, f"no progress for {policy.progress_timeout_us / SECOND_US:g} s")
            elif wrong := worker.audit():
                cell.counters["protocol_errors"] += 1
                self._lose(worker, f"audit: {wrong[0]}")
            else:
                worker.healthy = worker.is_well(cell.now_us)
                worker.index.expire(cell.now_us)
                entries.price(cell, worker)
                entries.settle(cell, worker)
        cell.registry.expire(cell.now_us)
        cell.fleet.tidy_heads()
        pauses.tick(cell)
        cell.caching.drop_ended_pins()
        drop.tidy(cell)
        build.tend(cell)
