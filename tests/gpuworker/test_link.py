"""The worker's stream against a scripted scheduler over real grpc.aio, with a real engine on its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

import pytest
import torch
from octavo.packing import pack_keys, pack_u32, unpack_keys, unpack_u32
from octavo.step import StepBudget
from octavo.v1 import worker_pb2 as pb
from octavo_gpuworker import link as link_module
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.bell import Bell
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.link import SchedulerLink
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.steploop import StepLoop
from octavo_gpuworker.transfer import Transfers

from tests.gpuworker.scripted import ScriptedScheduler, admit, scripted_scheduler


class World:
    """A scheduler to script and a worker that dials it."""

    def __init__(self, decoder, address: str, scheduler: ScriptedScheduler) -> None:
        self.scheduler = scheduler
        self.pool = KvPool(decoder.config, 100, 4, torch.float32)
        self.states: list[bool] = []
        self.deaths: list[BaseException] = []
        self.engine = Engine(
            TorchBackend(decoder, self.pool),
            budget=StepBudget(64, 64, 16),
            start_transfer=lambda order: self.transfers.start(order),
        )
        bell = Bell(asyncio.get_running_loop(), lambda: self.link.collect())
        self.steps = StepLoop(self.engine, lambda report: self.link.emit(report), self.deaths.append, bell)
        self.transfers = Transfers("", self.pool, b"l" * 32, self.steps.post)
        self.link = SchedulerLink(
            address, "w1", "boot", self.hello, self.steps, self.transfers, logging.getLogger("test"), self.states.append
        )

    def hello(self) -> pb.WorkerHello:
        blocks, keys, parents = self.engine.labels.resident()
        return pb.WorkerHello(
            block_tokens=4,
            num_blocks=100,
            resident_blocks=pack_u32(blocks),
            resident_keys=pack_keys(keys),
            resident_parents=pack_u32(parents),
        )


@pytest.fixture
async def world(decoder):
    async with scripted_scheduler() as (scheduler, address):
        world = World(decoder, address, scheduler)
        world.steps.start()
        running = asyncio.create_task(world.link.run())
        yield world
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await asyncio.to_thread(world.steps.stop)
        await world.transfers.close()
    assert not world.deaths


async def test_orders_become_steps_and_reports(world) -> None:
    stream = await world.scheduler.stream()
    hello = await stream.join(epoch=77)
    assert hello.num_blocks == 100
    await stream.orders(admit(3))
    tokens: list[int] = []
    while len(tokens) < 6:
        report = await stream.report()
        assert all(slot == 3 for slot in unpack_u32(report.slots))
        assert sum(unpack_u32(report.counts)) == len(unpack_u32(report.tokens))
        tokens += unpack_u32(report.tokens)
    assert [(f.seq, f.reason) for f in report.finishes] == [(3, "length")]
    assert [(r.seq, r.len, r.computed_len) for r in report.released] == [(3, 12, 11)]
    assert report.times.wall_us >= report.times.forward_us > 0
    assert world.states == [True]


async def test_idle_worker_sends_heartbeats_with_what_it_holds(world, monkeypatch) -> None:
    stream = await world.scheduler.stream()
    await stream.join(epoch=1)
    first = await stream.report()
    second = await stream.report()
    for report in (first, second):
        assert report.steps == 0 and not report.slots and report.HasField("live")


@pytest.mark.parametrize(
    "broken",
    [{"number": 9}, {"epoch": 5}, {"number": 1}],
    ids=["gap", "foreign epoch", "repeated"],
)
async def test_a_broken_stream_is_left_and_joined_anew(world, broken) -> None:
    stream = await world.scheduler.stream()
    await stream.join(epoch=1)
    label = pb.Label(block_ids=pack_u32([50]), keys=pack_keys([b"k" * 32]), parents=bytes(32))
    await stream.orders(admit(1, max_len=16), pb.Order(label=label))
    await stream.report(lambda report: report.slots)
    await stream.orders(admit(2, blocks=(5, 6, 7, 8)), **broken)
    await stream.closed()
    again = await world.scheduler.stream()
    hello = await again.join(epoch=2)
    assert unpack_u32(hello.resident_blocks) == [50]
    assert unpack_keys(hello.resident_keys) == [b"k" * 32] and unpack_u32(hello.resident_parents) == [0]
    report = await again.report(lambda report: report.HasField("live"))
    assert not report.live.seqs, "everything of the old epoch was dropped"
    await again.orders(admit(1))  # the ids of a new scheduler may be those of the old one
    await again.report(lambda report: report.finishes)
    assert world.states == [True, False, True]


@pytest.mark.parametrize(
    "order",
    [
        pb.Order(grant=pb.Grant(seq=1, block_ids=b"abc")),
        pb.Order(label=pb.Label(block_ids=b"", keys=b"x" * 31)),
        pb.Order(admit=pb.Admit(seq=1, sampling=pb.SamplingParams(bias_ids=pack_u32([1, 2])))),
    ],
    ids=["blocks", "keys", "bias"],
)
async def test_orders_that_cannot_be_read_close_the_stream(world, order) -> None:
    stream = await world.scheduler.stream()
    await stream.join(epoch=1)
    await stream.orders(order)
    await stream.closed()
    await (await world.scheduler.stream()).join(epoch=2)


async def test_the_scheduler_closes_and_comes_back(world) -> None:
    for epoch in (1, 2, 3):
        stream = await world.scheduler.stream()
        await stream.join(epoch)
        await stream.orders(admit(1, blocks=range(1, 40), max_len=150))
        await stream.report(lambda report: report.slots)
        stream.over.set()
    stream = await world.scheduler.stream()
    await stream.join(4)
    report = await stream.report(lambda report: report.HasField("live"))
    assert not report.live.seqs


async def test_no_hello_before_the_running_step_has_ended(world, decoder) -> None:
    """Welcome of a new epoch while a step runs: the old step's writes must be over before Hello leaves."""
    stream = await world.scheduler.stream()
    await stream.join(epoch=1)
    inside, go = threading.Event(), threading.Event()
    forward = decoder.forward

    class Slow:
        config, device = decoder.config, decoder.device

        @staticmethod
        def forward(inputs, pool):
            inside.set()
            assert go.wait(5)
            return forward(inputs, pool)

    world.engine.backend.decoder = Slow()
    await stream.orders(admit(1))
    assert await asyncio.to_thread(inside.wait, 5)
    stream.over.set()
    again = await world.scheduler.stream()
    await again.next()
    again.epoch = 2
    await again.send(welcome=pb.WorkerWelcome(scheduler_boot_id="s"))
    await asyncio.sleep(0.2)
    assert again.inbox.empty(), "Hello left while a step of the old epoch was running"
    go.set()
    assert (await again.next()).HasField("hello")
    report = await again.report(lambda report: report.HasField("live"))
    assert not report.live.seqs and not report.slots


async def test_a_long_step_is_no_silence(world, decoder, monkeypatch) -> None:
    """A prompt that takes longer than the scheduler's patience: empty reports say that the process lives."""
    monkeypatch.setattr(link_module, "SIGN_OF_LIFE_S", 0.02)
    stream = await world.scheduler.stream()
    await stream.join(epoch=1)
    await stream.report()
    running, over = threading.Event(), threading.Event()
    launch = world.engine.backend.launch

    def slow(*args, **kwargs):
        running.set()
        over.wait(10)
        return launch(*args, **kwargs)

    monkeypatch.setattr(world.engine.backend, "launch", slow)
    await stream.orders(admit(3))
    await asyncio.to_thread(running.wait, 10)
    for _ in range(5):
        report = await stream.report()
        assert not report.steps and not report.slots and not report.HasField("live")
    over.set()
    while not (report := await stream.report()).steps:
        pass
    assert unpack_u32(report.slots) == [3]


async def test_a_refusal_is_tried_again(decoder, world) -> None:
    stream = await world.scheduler.stream()
    await stream.join(epoch=1)
    world.scheduler.refuse = "another model"
    stream.over.set()
    while world.scheduler.refused < 3:
        await asyncio.sleep(0.02)
    world.scheduler.refuse = ""
    await (await world.scheduler.stream()).join(epoch=2)


async def test_a_refusal_after_hello_is_tried_again_ever_later(world, monkeypatch, caplog) -> None:
    """A scheduler refuses another model's Hello after Welcome: no reason to ask eighteen times a second, nor to log each."""
    caplog.set_level(logging.INFO)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(link_module, "asyncio", _With(asyncio, sleep=sleep))
    for epoch in range(1, 7):
        stream = await world.scheduler.stream()
        await stream.join(epoch)
        stream.over.set()
    await (await world.scheduler.stream()).join(7)
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert sum("joining again" in record.message for record in caplog.records) == 1
    monkeypatch.setattr(link_module, "STOOD_S", 0.0)  # from here on every stream has stood
    world.link.rejoin("a kvstore appeared")
    await (await world.scheduler.stream()).join(8)
    assert waits[-1] == 0.05


class _With:
    """A module with some of its names replaced."""

    def __init__(self, module, **names) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str):
        return getattr(self._module, name)


async def test_a_scheduler_that_stops_reading_is_left(world, monkeypatch) -> None:
    monkeypatch.setattr(link_module, "BACKLOG_REPORTS", 20)
    stream = await world.scheduler.stream()
    await stream.join(epoch=1)
    await stream.report()
    from octavo_gpuworker.orders import Report

    for _ in range(25):
        world.link._take(Report())
    await stream.closed()
    assert len(world.link._outbox) <= 25
    await (await world.scheduler.stream()).join(epoch=2)


async def test_no_welcome_in_time(world, monkeypatch) -> None:
    monkeypatch.setattr(link_module, "WELCOME_LIMIT_S", 0.1)
    (await world.scheduler.stream()).over.set()
    silent = await world.scheduler.stream()
    await silent.next()
    await silent.closed()


async def test_rejoin(world) -> None:
    stream = await world.scheduler.stream()
    await stream.join(epoch=1)
    world.link.rejoin("a kvstore appeared")
    await stream.closed()
    await (await world.scheduler.stream()).join(epoch=2)


async def test_a_load_without_a_store_is_told_and_prefilled(world) -> None:
    stream = await world.scheduler.stream()
    await stream.join(epoch=1)
    load = pb.Load(xfer_id=9, keys=pack_keys([b"k" * 32]), block_ids=pack_u32([1]), limit_us=1_000_000)
    await stream.orders(pb.Order(load=load), admit(1, wait_xfer=9))
    report = await stream.report(lambda report: report.transfers_done)
    assert [(t.xfer_id, t.ok_blocks) for t in report.transfers_done] == [(9, 0)]
    report = await stream.report(lambda report: report.finishes)
    assert report.finishes[0].reason == "length"
