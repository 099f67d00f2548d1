"""The worker's stream against a scripted scheduler over real gRPC: epochs, numbers, rejoining."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest
from octavo.v1 import scheduler_pb2_grpc
from octavo.v1 import worker_pb2 as pb
from octavo_gpuworker.link import SchedulerLink
from octavo_gpuworker.orders import Report, StopOrder

Script = Callable[["Connection"], Awaitable[None]]


@dataclass
class Connection:
    """One attached stream as the scheduler sees it."""

    context: Any
    epoch: int
    number: int = 0
    got: list[pb.AttachWorkerRequest] = field(default_factory=list)

    async def read(self) -> pb.AttachWorkerRequest:
        message = await self.context.read()
        self.got.append(message)
        return message

    async def send(self, *, epoch: int | None = None, skip: int = 0, **message: Any) -> None:
        self.number += 1 + skip
        await self.context.write(
            pb.AttachWorkerResponse(epoch=self.epoch if epoch is None else epoch, number=self.number, **message)
        )

    async def welcome(self) -> pb.WorkerHello:
        """The whole handshake; asserts its order and numbers."""
        join = await self.read()
        assert (join.WhichOneof("message"), join.number, join.epoch) == ("join", 1, 0)
        await self.send(welcome=pb.WorkerWelcome(scheduler_boot_id="s"))
        hello = await self.read()
        assert (hello.WhichOneof("message"), hello.number, hello.epoch) == ("hello", 2, self.epoch)
        return hello.hello

    async def stop_order(self, seq: int, **kwargs: Any) -> None:
        await self.send(orders=pb.Orders(orders=[pb.Order(stop=pb.Stop(seq=seq, reason="cancel"))]), **kwargs)


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Plays one script per connection; the last one is played for all that follow."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.connections: list[Connection] = []
        self.failure: BaseException | None = None

    async def AttachWorker(self, request_iterator: Any, context: Any) -> None:
        connection = Connection(context, epoch=100 + len(self.connections))
        self.connections.append(connection)
        try:
            await self.scripts[min(len(self.connections), len(self.scripts)) - 1](connection)
        except AssertionError as error:
            self.failure = error


async def hold(connection: Connection) -> None:
    """Joins, then reads for ever."""
    await connection.welcome()
    while (await connection.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        pass


class FakeEngine:
    def __init__(self, trail: list[str]) -> None:
        self.trail = trail

    def reset(self) -> None:
        self.trail.append("reset")


class FakeSteps:
    """Notes what the link asks of the step thread, in order."""

    def __init__(self, trail: list[str]) -> None:
        self.trail = trail
        self.engine = FakeEngine(trail)
        self.orders: list[Any] = []

    def quiesce(self) -> None:
        self.trail.append("quiesce")

    def resume(self) -> None:
        self.trail.append("resume")

    def post(self, items: list[Any]) -> None:
        self.orders += items


class FakeTransfers:
    def __init__(self, trail: list[str]) -> None:
        self.trail = trail

    async def quiesce(self) -> None:
        self.trail.append("transfers")


@dataclass
class Case:
    scheduler: Scheduler
    link: SchedulerLink
    steps: FakeSteps
    trail: list[str]
    task: asyncio.Task[None]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for `condition`; a link that died or a script that failed ends the wait at once."""
        async with asyncio.timeout(10):
            while not condition():
                if self.task.done():
                    self.task.result()
                    raise AssertionError("the link ended")
                await asyncio.sleep(0.005)
        assert self.scheduler.failure is None, self.scheduler.failure


@asynccontextmanager
async def linked(*scripts: Script) -> AsyncIterator[Case]:
    scheduler = Scheduler(*scripts)
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
    await server.start()
    trail: list[str] = []
    steps = FakeSteps(trail)

    def hello() -> pb.WorkerHello:
        trail.append("hello")
        return pb.WorkerHello(root_key=b"r" * 32, block_tokens=16, num_blocks=8)

    link = SchedulerLink(
        f"127.0.0.1:{port}",
        "w",
        "boot",
        hello,
        steps,
        FakeTransfers(trail),
        logging.getLogger("test"),  # type: ignore[arg-type]
    )
    task = asyncio.create_task(link.run())
    try:
        yield Case(scheduler, link, steps, trail, task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop(None)


async def test_nothing_runs_between_welcome_and_hello() -> None:
    async with linked(hold) as case:
        await case.until(lambda: "resume" in case.trail)
        assert case.trail == ["quiesce", "transfers", "reset", "hello", "resume"]


async def test_reports_carry_the_epoch_and_consecutive_numbers() -> None:
    async with linked(hold) as case:
        await case.until(lambda: "resume" in case.trail)
        for step in (1, 2, 3):
            case.link.emit(Report(step=step, steps=1))
            case.link.collect()
        await case.until(lambda: len(case.scheduler.connections[0].got) == 5)
        reports = case.scheduler.connections[0].got[2:]
        assert [(m.epoch, m.number, m.report.step) for m in reports] == [(100, 3, 1), (100, 4, 2), (100, 5, 3)]


async def test_orders_reach_the_engine_in_order() -> None:
    async def script(connection: Connection) -> None:
        await connection.welcome()
        for seq in (7, 8, 9):
            await connection.stop_order(seq)
        await connection.read()

    async with linked(script) as case:
        await case.until(lambda: len(case.steps.orders) == 3)
        assert case.steps.orders == [StopOrder(seq, "cancel") for seq in (7, 8, 9)]


@pytest.mark.parametrize("wrong", [{"skip": 1}, {"epoch": 5}])
async def test_a_gap_or_a_foreign_epoch_is_not_applied_and_leads_to_a_new_epoch(wrong: dict[str, int]) -> None:
    async def broken(connection: Connection) -> None:
        await connection.welcome()
        await connection.stop_order(7, **wrong)
        await connection.read()

    async with linked(broken, hold) as case:
        await case.until(lambda: case.trail.count("resume") == 2)
        assert case.steps.orders == []
        assert case.trail == ["quiesce", "transfers", "reset", "hello", "resume"] * 2


async def test_orders_that_cannot_be_read_lead_to_a_new_epoch_not_to_an_exit() -> None:
    async def garbled(connection: Connection) -> None:
        await connection.welcome()
        grant = pb.Grant(seq=1, block_ids=b"abc")  # no multiple of 4
        await connection.send(orders=pb.Orders(orders=[pb.Order(grant=grant)]))
        await connection.read()

    async with linked(garbled, hold) as case:
        await case.until(lambda: case.trail.count("resume") == 2)


async def test_a_scheduler_that_ends_the_stream_after_welcome_is_joined_again() -> None:
    """The Hello is then written to a call that has ended already."""

    async def short(connection: Connection) -> None:
        await connection.read()
        await connection.send(welcome=pb.WorkerWelcome(scheduler_boot_id="s"))

    async with linked(short, short, short, hold) as case:
        slow = case.link._transfers.quiesce  # the end arrives while the old epoch's copies end

        async def quiesce() -> None:
            await slow()
            if len(case.scheduler.connections) < 4:
                await asyncio.sleep(0.05)

        case.link._transfers.quiesce = quiesce  # type: ignore[method-assign]
        await case.until(lambda: len(case.scheduler.connections) == 4 and "resume" in case.trail)


async def test_a_scheduler_that_ends_the_stream_under_reports_is_joined_again() -> None:
    async def short(connection: Connection) -> None:
        await connection.welcome()
        await connection.read()

    async with linked(*[short] * 8, hold) as case:

        async def report_on() -> None:
            while True:
                case.link.emit(Report(step=1, steps=1))
                case.link.collect()
                await asyncio.sleep(0)

        reporting = asyncio.create_task(report_on())
        try:
            await case.until(lambda: len(case.scheduler.connections) == 9)
        finally:
            reporting.cancel()


async def test_reports_of_an_ended_epoch_never_reach_the_next() -> None:
    async def first(connection: Connection) -> None:
        await connection.welcome()

    async with linked(first, hold) as case:
        while case.trail.count("resume") < 2:
            if case.trail.count("quiesce") == 1:  # as the step thread: it reports nothing once it is quiesced
                case.link.emit(Report(step=11, steps=1))
                case.link.collect()
            await case.until(lambda: True)
            await asyncio.sleep(0.005)
        case.link.emit(Report(step=22, steps=1))
        case.link.collect()
        second = case.scheduler.connections[1]
        await case.until(lambda: any(m.WhichOneof("message") == "report" for m in second.got))
        assert [m.report.step for m in second.got[2:]] == [22]
        assert second.got[2].number == 3
