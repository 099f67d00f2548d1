"""The loop around the core: monotonic time in, effects carried out, a Tick when the core asked for one. It awaits nothing."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TextIO

from octavo_scheduler.connections import GatewayConnection, StoreConnection, WorkerConnection
from octavo_scheduler.core import Core
from octavo_scheduler.event_log import EventLog
from octavo_scheduler.events import Event, Reported, Tick
from octavo_scheduler.journal import Journal
from octavo_scheduler.observer import Observer
from octavo_scheduler.orders import Effects
from octavo_scheduler.outbox import Update
from octavo_scheduler.policy import Policy
from octavo_scheduler.token_runs import TokenRuns


def monotonic_us() -> int:
    """The core's clock."""
    return time.monotonic_ns() // 1000


class Driver:
    """Owns the core and the open streams. Every method runs on the event loop and returns at once."""

    def __init__(
        self,
        policy: Policy,
        observer: Observer,
        log: logging.Logger,
        clock_us: Callable[[], int] = monotonic_us,
        on_stuck: Callable[[str], None] = lambda why: None,
        event_log: TextIO | None = None,
        later: Callable[[Callable[[], None]], object] = lambda work: work(),
    ) -> None:
        """`later`: calls what it is given once the streams' writers have had their turn, as a loop's `call_soon` does."""
        self._log = log
        self._later = later
        self.boot_id = uuid.uuid4().hex
        self.clock_us = clock_us
        started_us = clock_us()
        self.core = Core(policy, started_us)
        self._event_log = EventLog(event_log, policy, started_us, self._log_broke) if event_log is not None else None
        self.workers: dict[int, WorkerConnection] = {}
        self.gateways: dict[int, GatewayConnection] = {}
        self.stores: dict[str, StoreConnection] = {}
        self.journal = Journal()
        self._observer = observer
        self._on_stuck = on_stuck
        self._connections = 0
        self._wakeup_us = 0
        self._timer_moved = asyncio.Event()

    def next_connection(self) -> int:
        """A number for a new stream, never reused by this process."""
        self._connections += 1
        return self._connections

    def feed(self, event: Event) -> None:
        """Applies an event and carries out what it orders."""
        if self._event_log is None:
            effects = self.core.handle(event)
        else:
            text = self._event_log.before(event)
            effects = self.core.handle(event)
            self._event_log.after(text, effects)
        tokens_first = isinstance(event, Reported)
        if tokens_first:  # a writer that is woken first writes first, and what a worker needs of a report is not urgent
            self._wake_gateways(effects)
        self._carry_out(effects)
        if not tokens_first:
            self._wake_gateways(effects)
        if effects.facts:
            self.journal.record(effects.facts)
            # spans and metrics take longer than the orders that they are about
            self._later(partial(self._observer.record, effects.facts, self.core.cell.now_us))

    def owes(self, gateway: int) -> bool:
        """Whether there is something to collect for the gateway's stream."""
        connection = self.core.cell.fleet.gateways.get(gateway)
        return connection is not None and connection.owes()

    def collect(self, gateway: int, runs: TokenRuns | None = None) -> list[Update]:
        """What a gateway's stream is owed now (Core.collect)."""
        if self._event_log is not None:
            self._event_log.collected(gateway)
        return self.core.collect(gateway, runs)

    def _carry_out(self, effects: Effects) -> None:
        for epoch, why in effects.close_workers:
            worker = self.workers.get(epoch)
            if worker is not None:
                self._log.warning("worker %s: epoch %016x ends: %s", worker.worker_id, epoch, why)
                worker.close(why)
            if why.startswith("no progress"):
                self._on_stuck(f"worker {worker.worker_id if worker else ''}: {why}")
        for epoch, orders in effects.orders:
            worker = self.workers.get(epoch)
            if worker is not None:
                worker.send(orders, self.core.cell.now_us)
        for store_id in effects.ask_inventory:
            store = self.stores.get(store_id)
            if store is not None:
                store.inventory_due = True
                store.wake.set()
        for store_id, told in effects.stores:
            store = self.stores.get(store_id)
            if store is not None:
                store.orders.append(told)
                store.wake.set()
        for store_id, keys in effects.prefetch:
            store = self.stores.get(store_id)
            if store is not None:
                store.prefetch.append(keys)
                store.wake.set()
        if effects.limits_changed:
            for gateway in self.gateways.values():
                gateway.welcome_due = True
                gateway.wake.set()
        if effects.next_wakeup_us != self._wakeup_us:
            earlier = effects.next_wakeup_us < self._wakeup_us
            self._wakeup_us = effects.next_wakeup_us
            if earlier:
                self._timer_moved.set()

    def _wake_gateways(self, effects: Effects) -> None:
        for number in effects.dirty_gateways:
            gateway = self.gateways.get(number)
            if gateway is not None:
                gateway.wake.set()

    async def run(self) -> None:
        """Feeds a Tick whenever the core's next wake-up is due; ends only when cancelled."""
        self.feed(Tick(self.clock_us()))
        while True:
            self._timer_moved.clear()
            delay_s = max(0.0, (self._wakeup_us - self.clock_us()) / 1e6)
            try:
                await asyncio.wait_for(self._timer_moved.wait(), delay_s)
            except TimeoutError:
                self.feed(Tick(self.clock_us()))

    def drain(self) -> None:
        """Refuses new requests from now on, and tells the gateways."""
        if self._event_log is not None:
            self._event_log.drained()
        self.core.drain()
        for gateway in self.gateways.values():
            gateway.welcome_due = True
            gateway.wake.set()

    def announce_load(self) -> None:
        """Tells every gateway the cell's load, for what they show to routers; call it about once a second."""
        for gateway in self.gateways.values():
            gateway.load_due = True
            gateway.wake.set()

    def flush_log(self) -> None:
        """The event log, if there is one, is with the system."""
        if self._event_log is not None:
            self._event_log.flush()

    def _log_broke(self, why: str) -> None:
        self._log.error("scheduler.event_log ends here and cannot be replayed beyond this: %s", why)

    def close_all(self, why: str) -> None:
        """Ends every stream."""
        for connection in (*self.gateways.values(), *self.workers.values(), *self.stores.values()):
            connection.close(why)

    async def drained(self) -> None:
        """Returns when no request is live; the caller bounds it."""
        while self.core.cell.registry.live() or any(  # noqa: ASYNC110 -- the core has no waiters, and the drain no hurry
            worker.sequences for worker in self.core.cell.fleet.workers.values()
        ):
            await asyncio.sleep(0.05)
