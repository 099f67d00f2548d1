"""The gRPC edge: one handler per stream, which reads, and one writer beside it, which sends what the driver left for it.

Nobody waits: a handler feeds the driver and goes on reading; a write that is stuck for 5 s ends that stream alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
from octavo.errors import InvalidRequest
from octavo.packing import pack_keys
from octavo.rpc.stall import StallGuard
from octavo.v1 import scheduler_pb2 as pb
from octavo.v1 import scheduler_pb2_grpc as pb_grpc
from octavo.v1 import worker_pb2 as wpb

from octavo_scheduler import drain_wire, events, live_wire, wire
from octavo_scheduler.books.ledger import TECHNIQUES
from octavo_scheduler.books.ledger_wire import ledger_answer, seen_tenants
from octavo_scheduler.connections import (
    Connection,
    GatewayConnection,
    StoreConnection,
    WorkerConnection,
    fold_epoch,
)
from octavo_scheduler.driver import Driver
from octavo_scheduler.report_wire import ReportReader
from octavo_scheduler.status import cell_load, status
from octavo_scheduler.update_wire import UpdateWriter

STUCK_WRITE_S = 5.0
HEARTBEAT_S = 1.0
SILENCE_S = 10.0
"""A gateway or kvstore that sends not even heartbeats for this long is gone (half-open connections)."""
JOIN_TIMEOUT_S = 60.0
"""How long a worker may take from Welcome to Hello: launched steps and copies must end first."""

ENDED = "the peer ended its stream"
SILENT = "silent for too long"
EOF = grpc.aio.EOF  # type: ignore[attr-defined]
Context = grpc.aio.ServicerContext[Any, Any]


class StreamClosed(Exception):
    """The stream ends now; the text says why."""


class SchedulerServicer(pb_grpc.SchedulerServiceServicer):
    """octavo.v1.SchedulerService."""

    def __init__(
        self,
        driver: Driver,
        log: logging.Logger,
        *,
        stuck_write_s: float = STUCK_WRITE_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._driver = driver
        self._log = log
        self._stuck_write_s = stuck_write_s
        self._silence_s = silence_s

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        return status(self._driver)

    async def GetLive(self, request: pb.GetLiveRequest, context: Context) -> pb.GetLiveResponse:
        return live_wire.live(self._driver, request.max_requests)

    async def GetLedger(self, request: pb.GetLedgerRequest, context: Context) -> pb.GetLedgerResponse:
        if request.technique and request.technique not in TECHNIQUES:
            known = ", ".join(TECHNIQUES)
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"technique: {request.technique[:80]!r} is none of {known}"
            )
        if request.tenant and request.tenant not in (tenants := seen_tenants(self._driver.core.cell)):
            known = ", ".join(tenants) or "none yet"
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"tenant: {request.tenant!r} is unknown here; known: {known}"
            )
        return ledger_answer(self._driver.core.cell, request.technique, request.tenant)

    async def GetTimeline(self, request: pb.GetTimelineRequest, context: Context) -> pb.GetTimelineResponse:
        return live_wire.timeline(self._driver, request.request_id, request.tenant)

    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, context: Context
    ) -> AsyncIterator[pb.DrainWorkerResponse]:
        try:
            async for progress in drain_wire.drain(self._driver, request):
                yield progress
        except InvalidRequest as error:
            await context.abort(error.status, error.message)

    # -- workers ---------------------------------------------------------------------------------------------------

    async def AttachWorker(self, request_iterator: object, context: Context) -> None:
        join_message = await self._first(context, "join")
        join = join_message.join
        driver = self._driver
        epoch = fold_epoch(driver.boot_id, join.boot_id, driver.next_connection())
        connection = WorkerConnection(epoch, join.worker_id)
        driver.workers[epoch] = connection
        self._log.info("worker %s dialled in, epoch %016x", join.worker_id, epoch)
        welcome = wpb.AttachWorkerResponse(
            epoch=epoch, number=1, welcome=wpb.WorkerWelcome(scheduler_boot_id=driver.boot_id)
        )

        def leave() -> None:
            driver.workers.pop(epoch, None)
            driver.feed(events.WorkerLost(driver.clock_us(), epoch, connection.why or "stream closed"))

        reader = self._read_worker(context, connection, join_message.number)
        await self._serve(context, connection, welcome, reader, self._write_worker(context, connection), leave)

    async def _read_worker(self, context: Context, connection: WorkerConnection, number: int) -> None:
        driver, said_hello, reports = self._driver, False, ReportReader(connection.epoch)
        while True:
            if said_hello:  # a report per step comes here, and a timeout costs as much as reading it
                message: wpb.AttachWorkerRequest = await context.read()
                if message is EOF:
                    raise StreamClosed(ENDED)
            else:
                async with asyncio.timeout(JOIN_TIMEOUT_S):
                    message = await self._read(context)
            if message.epoch != connection.epoch:
                raise StreamClosed(f"foreign epoch {message.epoch:016x}")
            number += 1
            if message.number != number:
                raise StreamClosed(f"message {message.number} came where {number} was due")
            kind = message.WhichOneof("message")
            if kind == "hello" and not said_hello:
                said_hello = True
                hello = wire.read_hello(message.hello, connection.epoch, connection.worker_id, driver.clock_us())
                self._log.info(
                    "worker %s: %d blocks of %d tokens, %d resident, model %s",
                    hello.worker_id,
                    hello.num_blocks,
                    hello.block_tokens,
                    len(hello.resident),
                    hello.model,
                )
                driver.feed(hello)
            elif kind == "report" and said_hello:
                driver.feed(reports.read(message.report, driver.clock_us()))
            else:
                raise StreamClosed(f"{kind or 'an empty message'} came out of turn")

    async def _write_worker(self, context: Context, connection: WorkerConnection) -> None:
        number, guard = 1, StallGuard(self._stuck_write_s)
        while True:
            await connection.wake.wait()
            if connection.closed.is_set():
                return
            connection.wake.clear()
            batch, connection.orders = connection.orders, []
            for orders in wire.write_orders(batch):
                number += 1
                wire.stamp_admits(orders, connection.admitted_us, self._driver.clock_us())
                await self._write(
                    context,
                    wpb.AttachWorkerResponse(epoch=connection.epoch, number=number, orders=orders),
                    guard,
                )

    # -- gateways --------------------------------------------------------------------------------------------------

    async def AttachGateway(self, request_iterator: object, context: Context) -> None:
        hello = (await self._first(context, "hello")).hello
        driver = self._driver
        connection = GatewayConnection(driver.next_connection(), hello.gateway_id)
        for other in list(driver.gateways.values()):
            if other.gateway_id == hello.gateway_id:
                other.close("the gateway dialled in again")
        driver.gateways[connection.number] = connection
        self._log.info("gateway %s dialled in", hello.gateway_id)
        driver.feed(events.GatewayJoined(driver.clock_us(), connection.number, hello.gateway_id))
        connection.wake.set()

        def leave() -> None:
            driver.gateways.pop(connection.number, None)
            driver.feed(events.GatewayLost(driver.clock_us(), connection.number))

        welcome = pb.AttachGatewayResponse(welcome=self.welcome())
        connection.welcome_due = False
        reader = self._read_gateway(context, connection)
        writer = self._write_gateway(context, connection, UpdateWriter(runs=hello.takes_runs))
        await self._serve(context, connection, welcome, reader, writer, leave)

    async def _read_gateway(self, context: Context, connection: GatewayConnection) -> None:
        driver, silence = self._driver, StallGuard(self._silence_s)
        while True:
            try:
                with silence:
                    message: pb.AttachGatewayRequest = await self._read(context)
            except TimeoutError as error:
                raise StreamClosed(SILENT) from error
            for event in wire.read_gateway(message, connection.number, driver.clock_us()):
                driver.feed(event)

    async def _write_gateway(self, context: Context, connection: GatewayConnection, updates_as: UpdateWriter) -> None:
        heartbeat = pb.AttachGatewayResponse(heartbeat=pb.Heartbeat())
        guard, beat = StallGuard(self._stuck_write_s), StallGuard(HEARTBEAT_S)
        while await self._woken(context, connection, heartbeat, guard, beat):
            if connection.welcome_due:
                connection.welcome_due = False
                await self._write(context, pb.AttachGatewayResponse(welcome=self.welcome()), guard)
            if connection.load_due:
                connection.load_due = False
                load = cell_load(self._driver.core.cell)
                await self._write(context, pb.AttachGatewayResponse(heartbeat=pb.Heartbeat(load=load)), guard)
            # what comes while a write is under way is in the cursors, and leaves with the next message
            while not connection.closed.is_set() and self._driver.owes(connection.number):
                updates = self._driver.collect(connection.number, updates_as.runs)
                if (message := updates_as.write(updates, self._driver.clock_us())) is not None:
                    await self._write(context, message, guard)

    def welcome(self) -> pb.GatewayWelcome:
        """The limits in force."""
        cell = self._driver.core.cell
        workers = cell.fleet.accepting()
        welcome = pb.GatewayWelcome(
            scheduler_boot_id=self._driver.boot_id,
            ready=bool(workers) and not cell.draining,
            max_choices=min([cell.policy.max_num_seqs, *(worker.max_seqs for worker in workers)]),
            max_request_blocks=cell.fleet.max_request_blocks(),
            takes_many=True,
        )
        if workers:
            hello = workers[0].hello
            welcome.namespace_generations.update(cell.caching.generations)
            welcome.root_key, welcome.block_tokens, welcome.model = hello.root_key, hello.block_tokens, hello.model
            # a context that the largest pool cannot hold is no context
            welcome.max_model_len = min(
                max(worker.hello.max_model_len for worker in workers),
                welcome.max_request_blocks * hello.block_tokens + 1,
            )
        return welcome

    # -- kvstores --------------------------------------------------------------------------------------------------

    async def AttachStore(self, request_iterator: object, context: Context) -> None:
        hello = (await self._first(context, "hello")).hello
        driver = self._driver
        connection = StoreConnection(driver.next_connection(), hello.store_id)
        if (other := driver.stores.get(hello.store_id)) is not None:
            other.close("the kvstore dialled in again")
        driver.stores[hello.store_id] = connection
        connection.peer_address = wire.peer_address(hello.peer_address, context.peer())
        self._log.info("kvstore %s dialled in", hello.store_id)

        def leave() -> None:
            if driver.stores.get(hello.store_id) is connection:
                del driver.stores[hello.store_id]
                self._peers_changed()
            driver.feed(events.StoreLost(driver.clock_us(), hello.store_id, connection.number))

        reachable = bool(connection.peer_address)
        driver.feed(events.StoreJoined(driver.clock_us(), hello.store_id, connection.number, reachable, hello.fetches))
        self._peers_changed()
        welcome = pb.AttachStoreResponse(welcome=pb.StoreWelcome(scheduler_boot_id=driver.boot_id))
        reader, writer = self._read_store(context, connection), self._write_store(context, connection)
        await self._serve(context, connection, welcome, reader, writer, leave)

    def _peers_changed(self) -> None:
        """A kvstore came or went: every other one is told whom it can fetch from."""
        for connection in self._driver.stores.values():
            connection.peers_due = True
            connection.wake.set()

    async def _read_store(self, context: Context, connection: StoreConnection) -> None:
        driver = self._driver
        while True:
            async with asyncio.timeout(self._silence_s):
                message: pb.AttachStoreRequest = await self._read(context)
            if message.WhichOneof("message") == "tiers":
                connection.tiers = live_wire.read_tiers(message.tiers)
                continue
            event = wire.read_store(message, connection.store_id, connection.number, driver.clock_us())
            if event is not None:
                driver.feed(event)

    async def _write_store(self, context: Context, connection: StoreConnection) -> None:
        heartbeat = pb.AttachStoreResponse(heartbeat=pb.Heartbeat())
        guard, beat = StallGuard(self._stuck_write_s), StallGuard(HEARTBEAT_S)
        while await self._woken(context, connection, heartbeat, guard, beat):
            told, connection.orders = connection.orders, []
            for order in told:
                await self._write(context, wire.write_store_order(order), guard)
            if connection.inventory_due:
                connection.inventory_due = False
                await self._write(context, pb.AttachStoreResponse(inventory_request=pb.InventoryRequest()), guard)
            if connection.peers_due:
                connection.peers_due = False
                await self._write(context, pb.AttachStoreResponse(peers=self._peers_of(connection)), guard)
            while connection.prefetch:
                hint = pb.PrefetchHint(keys=pack_keys(connection.prefetch.popleft()))
                await self._write(context, pb.AttachStoreResponse(prefetch=hint), guard)

    def _peers_of(self, connection: StoreConnection) -> pb.StorePeers:
        others = (other for other in self._driver.stores.values() if other is not connection and other.peer_address)
        return pb.StorePeers(
            peers=[pb.StorePeer(store_id=other.store_id, address=other.peer_address) for other in others]
        )

    # -- streams ---------------------------------------------------------------------------------------------------

    async def _woken(
        self, context: Context, connection: Connection, heartbeat: Any, guard: StallGuard, beat: StallGuard
    ) -> bool:
        """Waits until there is something to write, with heartbeats meanwhile; False once the connection is closed."""
        while True:
            try:
                with beat:
                    await connection.wake.wait()
            except TimeoutError:
                await self._write(context, heartbeat, guard)
                continue
            if connection.closed.is_set():
                return False
            connection.wake.clear()
            return True

    async def _first(self, context: Context, kind: str) -> Any:
        message = await context.read()
        if message is EOF or message.WhichOneof("message") != kind:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the first message must be {kind}")
        return message

    async def _read(self, context: Context) -> Any:
        message = await context.read()
        if message is EOF:
            raise StreamClosed(ENDED)
        return message

    async def _write(self, context: Context, message: object, guard: StallGuard) -> None:
        try:
            with guard:
                await context.write(message)
        except TimeoutError as error:
            raise StreamClosed(f"a write was stuck for {self._stuck_write_s:g} s") from error

    async def _serve(
        self,
        context: Context,
        connection: Connection,
        welcome: object,
        reader: Coroutine[Any, Any, None],
        writer: Coroutine[Any, Any, None],
        leave: Callable[[], None],
    ) -> None:
        """Welcome, then both directions until one ends or the driver closes the connection; `leave`, then a status."""
        tasks: set[asyncio.Future[Any]] = set()
        try:
            status_code = await self._run_both(context, connection, welcome, reader, writer, tasks)
        except asyncio.CancelledError:
            connection.close("cancelled by the peer or by the server's stop")
            return  # the call is over, nobody reads a status
        finally:
            await _cancel_all(tasks)
            reader.close()
            writer.close()
            # before the status: a peer that takes no byte takes no status either, and its requests must not wait for it
            leave()
        kind = type(connection).__name__.removesuffix("Connection").lower()
        self._log.info("stream of a %s ends: %s", kind, connection.why)
        if not context.cancelled() and not context.done():
            try:
                async with asyncio.timeout(self._stuck_write_s):
                    await context.abort(status_code, connection.why)
            except (grpc.aio.InternalError, TimeoutError):
                self._log.debug("stream of a %s: its peer takes no status", kind)

    async def _run_both(
        self,
        context: Context,
        connection: Connection,
        welcome: object,
        reader: Coroutine[Any, Any, None],
        writer: Coroutine[Any, Any, None],
        tasks: set[asyncio.Future[Any]],
    ) -> grpc.StatusCode:
        try:
            await self._write(context, welcome, StallGuard(self._stuck_write_s))
        except StreamClosed as error:
            connection.close(str(error))
            return grpc.StatusCode.UNAVAILABLE
        writing = asyncio.ensure_future(writer)
        tasks |= {writing, asyncio.ensure_future(reader), asyncio.ensure_future(connection.closed.wait())}
        done, _pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        status_code = grpc.StatusCode.UNAVAILABLE
        for failure in [task.exception() for task in done]:
            if isinstance(failure, wire.WireError):
                status_code = grpc.StatusCode.INVALID_ARGUMENT
            elif failure is not None and not isinstance(failure, StreamClosed | TimeoutError):
                self._log.error("a stream failed", exc_info=failure)
            if failure is not None:
                connection.close(str(failure) or SILENT)
        connection.close("closed")
        # a status cannot be sent beside a message that is under way: the writer ends by itself, or is stuck
        await asyncio.wait({writing}, timeout=self._stuck_write_s)
        return status_code


async def _cancel_all(tasks: set[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
