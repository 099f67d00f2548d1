"""The worker's one stream to the scheduler: Join, Welcome, quiesce, Hello, then orders down and reports up.

Every message carries the epoch and a consecutive number; a gap or a foreign epoch closes the stream, and the worker
joins anew. Reports queue without bound only in theory: the stream is closed when the scheduler stops reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
from octavo.rpc.channels import open_channel
from octavo.v1 import scheduler_pb2_grpc
from octavo.v1 import worker_pb2 as pb

from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.orders import Order, Report, TransferDone
from octavo_gpuworker.steploop import StepLoop
from octavo_gpuworker.transfer import Transfers
from octavo_gpuworker.wire import orders_from, report_to

RECONNECT_FIRST_S, RECONNECT_MOST_S = 0.05, 1.0
BACKLOG_REPORTS = 10_000
"""A scheduler that lets this many reports pile up has stopped reading."""
SILENCE_S = 30.0


Call = Any
"""A grpc.aio bidi call; grpc-stubs leaves its messages untyped."""
END: Any = getattr(grpc.aio, "EOF")  # noqa: B009 - missing in grpc-stubs


class ProtocolError(Exception):
    """The peer broke the rules of the stream; the connection is of no use any more."""


class SchedulerLink:
    """Keeps the stream alive for the life of the process. `hello` is asked for anew at every connection."""

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
    ) -> None:
        self._address = address
        self._worker_id = worker_id
        self._boot_id = boot_id
        self._hello = hello
        self._steps = steps
        self._transfers = transfers
        self._log = log
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._outbox: asyncio.Queue[Report] = asyncio.Queue()
        self._joined = False

    def emit(self, report: Report) -> None:
        """Takes a report from the step thread."""
        self._loop.call_soon_threadsafe(self._take, report)

    def _take(self, report: Report) -> None:
        if self._joined:
            self._outbox.put_nowait(report)

    async def run(self) -> None:
        """Connects again and again until it is cancelled."""
        backoff_s = RECONNECT_FIRST_S
        async with open_channel(self._address) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
            while True:
                try:
                    await self._connection(stub)
                    reason = "the scheduler closed the stream"
                except grpc.aio.AioRpcError as error:
                    reason = f"{error.code().name}: {error.details()}"
                except ProtocolError as error:
                    reason = f"protocol: {error}"
                except asyncio.InvalidStateError:  # grpc.aio's word for a write to a call that has ended already
                    reason = "the stream ended while a message was about to be written"
                was_joined, self._joined = self._joined, False
                self._on_state(False)
                if was_joined:
                    backoff_s = RECONNECT_FIRST_S
                    self._log.warning("scheduler stream ended: %s; joining again", reason)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, RECONNECT_MOST_S)

    async def _connection(self, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        call = stub.AttachWorker()
        try:
            await call.write(
                pb.AttachWorkerRequest(number=1, join=pb.WorkerJoin(worker_id=self._worker_id, boot_id=self._boot_id))
            )
            welcome = await call.read()
            if welcome is END:
                await _raise_status(call)
                raise ProtocolError("the stream ended before Welcome")
            if welcome.WhichOneof("message") != "welcome" or welcome.number != 1:
                raise ProtocolError("the first message was not Welcome with number 1")
            await self._enter_epoch()
            hello = pb.AttachWorkerRequest(epoch=welcome.epoch, number=2, hello=self._hello())
            await call.write(hello)
            self._joined = True
            self._steps.resume()
            self._on_state(True)
            self._log.info("joined scheduler %s, epoch %d", welcome.welcome.scheduler_boot_id, welcome.epoch)
            writer = self._loop.create_task(self._write(call, welcome.epoch))
            try:
                async for orders in self._read(call, welcome.epoch, writer):
                    self._steps.post(_readable(orders))
            finally:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
        finally:
            call.cancel()

    async def _enter_epoch(self) -> None:
        """Nothing of the old epoch may run any more: steps and copies end, sequences are dropped."""
        await asyncio.to_thread(self._steps.quiesce)
        await self._transfers.quiesce()
        self._steps.engine.reset()
        while not self._outbox.empty():
            self._outbox.get_nowait()

    async def _read(self, call: Call, epoch: int, writer: asyncio.Task[None]) -> AsyncIterator[pb.Orders]:
        number = 1
        while True:
            reading = self._loop.create_task(call.read())
            await asyncio.wait({reading, writer}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                writer.result()
                raise ProtocolError("the writer ended")
            message = reading.result()
            if message is END:
                await _raise_status(call)
                return
            number += 1
            if message.epoch != epoch or message.number != number:
                raise ProtocolError(
                    f"expected epoch {epoch} number {number}, got epoch {message.epoch} number {message.number}"
                )
            if message.WhichOneof("message") == "orders":
                yield message.orders

    async def _write(self, call: Call, epoch: int) -> None:
        number = 2
        while True:
            report = await self._outbox.get()
            if self._outbox.qsize() > BACKLOG_REPORTS:
                raise ProtocolError(f"{self._outbox.qsize()} reports wait: the scheduler has stopped reading")
            number += 1
            await call.write(pb.AttachWorkerRequest(epoch=epoch, number=number, report=report_to(report)))


def _readable(message: pb.Orders) -> list[Order | LoadedBlock | TransferDone]:
    try:
        return list(orders_from(message))
    except ValueError as error:
        raise ProtocolError(f"orders that cannot be read: {error}") from error


async def _raise_status(call: Call) -> None:
    code = await call.code()
    if code != grpc.StatusCode.OK:
        raise ProtocolError(f"{code.name}: {await call.details()}")
