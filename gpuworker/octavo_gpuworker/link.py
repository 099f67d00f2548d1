"""The worker's one stream to the scheduler: Join, Welcome, quiesce, Hello, then orders down and reports up.

Every message carries the epoch and a consecutive number; a gap or a foreign epoch closes the stream, and the worker
joins anew. A scheduler that stops reading is left as well, so the reports that wait for it are bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc.aio
from octavo.rpc.channels import open_channel
from octavo.rpc.flag import Flag
from octavo.rpc.stall import StallGuard
from octavo.v1 import scheduler_pb2_grpc
from octavo.v1 import worker_pb2 as pb

from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.orders import LeaveOrder, OffloadOrder, Order, Report, TransferDone
from octavo_gpuworker.steploop import StepLoop
from octavo_gpuworker.transfer import Transfers
from octavo_gpuworker.wire import fill_report, orders_from

RECONNECT_FIRST_S, RECONNECT_MOST_S = 0.05, 1.0
STOOD_S = 5.0
"""A stream that ends sooner after Hello was as good as refused: trying again at once would only ask the same again."""
BACKLOG_REPORTS = 10_000
"""A scheduler that lets this many reports pile up has stopped reading."""
SIGN_OF_LIFE_S = 1.5
"""Without a report for this long an empty one goes up. That steps advance is watched apart (progress_timeout_s)."""
WELCOME_LIMIT_S = 10.0
STATUS_LIMIT_S = 1.0
"""How long a failed write waits for the stream's status, which says more."""

Call = Any
"""A grpc.aio bidi call; grpc-stubs leaves its messages untyped."""
END: Any = getattr(grpc.aio, "EOF")  # noqa: B009 - missing in grpc-stubs


class StreamOver(Exception):
    """The stream is of no use any more: the peer broke its rules, closed it, or stopped reading."""


class SchedulerLink:
    """Keeps the stream alive for the life of the process. `hello` is asked for anew at every connection.

    `on_state(joined)` is called when orders can arrive, and when they cannot any more; `on_leave()` when the scheduler
    orders the worker to leave: `run` returns once the stream has ended.
    """

    def __init__(
        self,
        address: str,
        worker_id: str,
        boot_id: str,
        hello: Callable[[], pb.WorkerHello],
        steps: StepLoop,
        transfers: Transfers,
        log: logging.Logger,
        on_state: Callable[[bool], None] = lambda joined: None,
        on_leave: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self._worker_id = worker_id
        self._boot_id = boot_id
        self._hello = hello
        self._steps = steps
        self._transfers = transfers
        self._log = log
        self._on_state = on_state
        self._on_leave = on_leave
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[Report] = deque()
        self._outbox: deque[Report] = deque()
        self._filled = Flag()
        self._leave: asyncio.Future[str] = self._loop.create_future()
        self._epoch = 0
        self._joined = False
        self._joined_s = 0.0
        self._draining = False
        self._left = asyncio.Event()

    def emit(self, report: Report) -> None:
        """Takes a report from the step thread; it goes with the next `collect`."""
        self._arrived.append(report)

    def collect(self) -> None:
        """On the loop: sends what was emitted."""
        while self._arrived:
            self._take(self._arrived.popleft())

    def rejoin(self, why: str) -> None:
        """Ends the running stream; the next Hello tells what has changed."""
        if not self._leave.done():
            self._leave.set_result(why)

    async def leave(self) -> None:
        """Asks for no new sequences, and returns once the stream is over: when the last one has ended, or when it broke.

        Without a stream it returns at once. `run` ends too, since a worker that stops joins no more.
        """
        self._draining = True
        if self._epoch:
            self._take(Report())  # tells it now; every later report repeats it
            await self._left.wait()

    def _take(self, report: Report) -> None:
        if not self._joined:
            return
        self._outbox.append(report)
        self._filled.set()
        if len(self._outbox) > BACKLOG_REPORTS:
            self._joined = False
            self.rejoin(f"{BACKLOG_REPORTS} reports wait: the scheduler has stopped reading")

    async def run(self) -> None:
        """Connects again and again until it is cancelled, or `leave` was called."""
        backoff_s, told = RECONNECT_FIRST_S, ""
        async with open_channel(self._address) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
            while True:
                self._leave = self._loop.create_future()
                try:
                    await self._connection(stub)
                    reason = "closed the stream"
                except grpc.aio.AioRpcError as error:
                    reason = f"{error.code().name}: {error.details()}"
                except (StreamOver, asyncio.InvalidStateError) as error:  # a write after the end raises the latter
                    reason = str(error)
                joined, self._epoch, self._joined = self._epoch != 0, 0, False
                self._on_state(False)
                if self._draining:
                    self._log.info("scheduler %s: %s; this worker stops", self._address, reason)
                    self._left.set()
                    return
                stood = joined and self._loop.time() - self._joined_s >= STOOD_S
                if stood:
                    backoff_s = RECONNECT_FIRST_S
                if stood or reason != told:
                    self._log.warning("scheduler %s: %s; joining again", self._address, reason)
                    told = reason
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, RECONNECT_MOST_S)

    async def _connection(self, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        """One stream from Join to its end. Raises StreamOver, AioRpcError or InvalidStateError unless it was closed in order."""
        call = stub.AttachWorker()
        try:
            join = pb.WorkerJoin(worker_id=self._worker_id, boot_id=self._boot_id)
            await call.write(pb.AttachWorkerRequest(number=1, join=join))
            welcome = await self._welcome(call)
            await self._enter_epoch()
            if self._draining:
                raise StreamOver("this worker stops before it has joined")
            await call.write(pb.AttachWorkerRequest(epoch=welcome.epoch, number=2, hello=self._hello()))
            self._epoch, self._joined, self._joined_s = welcome.epoch, True, self._loop.time()
            self._steps.resume()
            self._on_state(True)
            self._log.info("joined scheduler %s, epoch %d", welcome.welcome.scheduler_boot_id, welcome.epoch)
            await self._serve(call, welcome.epoch)
        finally:
            call.cancel()

    async def _welcome(self, call: Call) -> pb.AttachWorkerResponse:
        try:
            async with asyncio.timeout(WELCOME_LIMIT_S):
                welcome = await call.read()
        except TimeoutError as error:
            raise StreamOver(f"no Welcome within {WELCOME_LIMIT_S:.0f} s") from error
        if welcome is END:
            await _raise_status(call)
            raise StreamOver("the stream ended before Welcome")
        if welcome.WhichOneof("message") != "welcome" or welcome.number != 1 or not welcome.epoch:
            raise StreamOver("the first message was not Welcome with number 1 and an epoch")
        return welcome  # type: ignore[no-any-return]

    async def _enter_epoch(self) -> None:
        """Nothing of the old epoch may run any more: steps and copies end, sequences are dropped."""
        await asyncio.to_thread(self._steps.quiesce)
        await self._transfers.quiesce()
        self._steps.engine.reset()
        self._arrived.clear()
        self._outbox.clear()

    async def _serve(self, call: Call, epoch: int) -> None:
        """Reads and writes until one of both ends, or `rejoin` is called."""
        reader = self._loop.create_task(self._read(call, epoch))
        writer = self._loop.create_task(self._write(call, epoch))
        try:
            waited: set[asyncio.Future[Any]] = {reader, writer, self._leave}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._leave.done():
                raise StreamOver(self._leave.result())
            if not reader.done():
                await asyncio.wait({reader}, timeout=STATUS_LIMIT_S)
            (reader if reader.done() else writer).result()
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(self, call: Call, epoch: int) -> None:
        number = 1
        while True:
            message = await call.read()
            if message is END:
                await _raise_status(call)
                return
            number += 1
            if message.epoch != epoch or message.number != number:
                raise StreamOver(
                    f"expected epoch {epoch} number {number}, got epoch {message.epoch} number {message.number}"
                )
            if message.WhichOneof("message") == "orders":
                try:
                    orders: list[Order | LoadedBlock | TransferDone] = list(orders_from(message.orders))
                except ValueError as error:
                    raise StreamOver(f"orders that cannot be read: {error}") from error
                self._steps.post(orders)
                for order in orders:  # its blocks are computed and held: the copy need not wait for the step that runs
                    if isinstance(order, OffloadOrder):
                        self._transfers.begin(order)
                if any(isinstance(order, LeaveOrder) for order in orders) and not self._draining:
                    self._draining = True
                    self._on_leave()
                    self._take(Report())  # an idle worker would be silent for up to a second

    async def _write(self, call: Call, epoch: int) -> None:
        number, silence = 2, StallGuard(SIGN_OF_LIFE_S)
        try:
            while True:
                number += 1
                message = pb.AttachWorkerRequest(epoch=epoch, number=number)
                report = await self._next_report(silence)
                fill_report(message.report, report, time.time_ns())
                message.report.draining = self._draining
                await call.write(message)
        finally:
            silence.close()

    async def _next_report(self, silence: StallGuard) -> Report:
        """The step thread's, or an empty one when a step takes long: silence means that the process stands, not that it works."""
        while not self._outbox:
            self._filled.clear()
            try:
                with silence:
                    await self._filled.wait()
            except TimeoutError:
                return Report()
        return self._outbox.popleft()


async def _raise_status(call: Call) -> None:
    code = await call.code()
    if code != grpc.StatusCode.OK:
        raise StreamOver(f"{code.name}: {await call.details()}")
