"""A scheduler that a test scripts message by message, over real grpc.aio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc.aio
from octavo.packing import pack_u32
from octavo.v1 import scheduler_pb2_grpc
from octavo.v1 import worker_pb2 as pb

from tests.gpuworker.conftest import prompt_of


class Stream:
    """One AttachWorker call as the scheduler sees it."""

    def __init__(self, context) -> None:
        self.context = context
        self.inbox: asyncio.Queue[pb.AttachWorkerRequest | None] = asyncio.Queue()
        self.over = asyncio.Event()
        self.epoch = self.sent = self.received = 0

    async def next(self) -> pb.AttachWorkerRequest:
        message = await asyncio.wait_for(self.inbox.get(), 5)
        assert message is not None, "the worker closed the stream"
        self.received += 1
        assert message.number == self.received, "numbers are consecutive"
        assert message.epoch == (self.epoch if self.received > 1 else 0)
        return message

    async def closed(self) -> None:
        """Waits until the worker has given the stream up."""
        while await asyncio.wait_for(self.inbox.get(), 5) is not None:
            pass

    async def send(self, *, epoch: int | None = None, number: int | None = None, **body) -> None:
        self.sent += 1
        await self.context.write(
            pb.AttachWorkerResponse(
                epoch=self.epoch if epoch is None else epoch, number=self.sent if number is None else number, **body
            )
        )

    async def orders(self, *orders: pb.Order, **more) -> None:
        await self.send(orders=pb.Orders(orders=orders), **more)

    async def join(self, epoch: int) -> pb.WorkerHello:
        assert (await self.next()).join.worker_id == "w1"
        self.epoch = epoch
        await self.send(welcome=pb.WorkerWelcome(scheduler_boot_id="s"))
        return (await self.next()).hello

    async def report(self, wanted=lambda report: True) -> pb.Report:
        while True:
            report = (await self.next()).report
            if wanted(report):
                return report


class ScriptedScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    def __init__(self) -> None:
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.refuse = ""
        self.refused = 0

    async def AttachWorker(self, request_iterator, context):
        if self.refuse:
            self.refused += 1
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse)
        stream = Stream(context)
        self.streams.put_nowait(stream)

        async def pump() -> None:
            try:
                async for message in request_iterator:
                    stream.inbox.put_nowait(message)
            finally:
                stream.inbox.put_nowait(None)

        pumping = asyncio.create_task(pump())
        over = asyncio.create_task(stream.over.wait())
        await asyncio.wait({pumping, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        pumping.cancel()

    async def stream(self) -> Stream:
        return await asyncio.wait_for(self.streams.get(), 5)


@contextlib.asynccontextmanager
async def scripted_scheduler() -> AsyncIterator[tuple[ScriptedScheduler, str]]:
    """A served ScriptedScheduler and its address."""
    scheduler = ScriptedScheduler()
    server = grpc.aio.server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield scheduler, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def admit(seq: int, length: int = 6, *, blocks=(1, 2, 3, 4), max_len: int = 12, **more) -> pb.Order:
    return pb.Order(
        admit=pb.Admit(
            seq=seq, slot=seq, tokens=pack_u32(prompt_of(length)), prompt_len=length, block_ids=pack_u32(blocks),
            sampling=pb.SamplingParams(temperature=0, logprobs=-1), max_len=max_len, **more,
        )
    )  # fmt: skip
