"""The step thread: reports in time, rest while paused, told deaths, and what counts as being stuck."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path

import pytest
import torch
from octavo.step import StepBudget
from octavo_gpuworker import steploop as steploop_module
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import AdmitOrder, LoadOrder, StopOrder, TransferDone, UpdateOrder
from octavo_gpuworker.steploop import StepLoop

from tests.gpuworker.conftest import GREEDY, prompt_of


class Counted:
    """A decoder that counts its forwards and can be made to fail or to hang."""

    def __init__(self, decoder) -> None:
        self.inner, self.config, self.device = decoder, decoder.config, decoder.device
        self.calls = 0
        self.error: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()

    def forward(self, inputs, pool):
        self.calls += 1
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return self.inner.forward(inputs, pool)


@pytest.fixture
def world(decoder):
    class World:
        model = Counted(decoder)
        pool = KvPool(decoder.config, 300, 4, torch.float32)
        engine = Engine(TorchBackend(model, pool), budget=StepBudget(64, 64, 16), start_transfer=lambda order: None)
        reports: queue.Queue = queue.Queue()
        deaths: queue.Queue = queue.Queue()
        loop = StepLoop(engine, reports.put, deaths.put)

        def until(self, wanted):
            while True:
                report = self.reports.get(timeout=5)
                if wanted(report):
                    return report

    world = World()
    world.loop.start()
    yield world
    world.model.gate.set()
    world.loop.stop()
    assert not world.loop._thread.is_alive()


def admit(seq: int, *, blocks, max_len: int = 12, **more) -> AdmitOrder:
    return AdmitOrder(seq, seq, prompt_of(6), 6, 0, list(blocks), GREEDY, 0, max_len, **more)


def test_orders_wake_an_idle_thread(world) -> None:
    world.loop.post([admit(1, blocks=range(1, 5))])
    assert world.until(lambda report: report.finishes).finishes[0].reason == "length"


@pytest.mark.parametrize("state", ["starved", "paused", "loading"])
def test_a_worker_that_cannot_step_reports_and_does_not_spin(world, state) -> None:
    """At least each 100 ms, and not much more often: with every sequence starved the thread sleeps."""
    orders = [admit(1, blocks=[1, 2], max_len=40, wait_xfer=5 if state == "loading" else 0)]
    if state == "loading":
        orders.insert(0, LoadOrder(5, [b"k" * 32], [1], 0))
    if state == "paused":
        orders.append(UpdateOrder(1, 0, True))
    world.loop.post(orders)
    time.sleep(0.3)
    while not world.reports.empty():
        world.reports.get()
    began, iterations = time.monotonic(), []
    compose = world.engine.run_once
    world.engine.run_once = lambda: (iterations.append(1), compose())[1]
    told = [world.reports.get(timeout=2) for _ in range(4)]
    assert time.monotonic() - began < 2
    assert all(report.steps == 0 for report in told)
    assert all(report.starved == ([1] if state == "starved" else []) for report in told)
    assert len(iterations) <= 3 * len(told)


def test_only_work_without_steps_is_stuck(world) -> None:
    assert world.loop.stuck_for_s() == 0
    world.loop.post([LoadOrder(5, [b"k" * 32], [1], 0), admit(1, blocks=[1, 2, 3], wait_xfer=5)])
    world.loop.post([admit(2, blocks=[4, 5, 6]), UpdateOrder(2, 0, True)])
    world.until(lambda report: report.live_seqs)
    time.sleep(0.5)
    assert world.loop.stuck_for_s() < 0.4, "paused, or waiting for a load: not its fault"
    world.model.gate.clear()
    world.loop.post([TransferDone(5, 0)])
    time.sleep(0.6)
    assert world.loop.stuck_for_s() > 0.4, "a forward that hangs is stuck"
    world.model.gate.set()
    world.until(lambda report: report.finishes)
    world.loop.post([StopOrder(2, "cancel")])
    world.until(lambda report: report.released)
    time.sleep(0.05)
    assert world.loop.stuck_for_s() == 0


def test_a_starved_sequence_that_nobody_feeds_is_stuck(world) -> None:
    world.loop.post([admit(1, blocks=[1, 2], max_len=40)])
    world.until(lambda report: report.starved)
    time.sleep(0.5)
    assert world.loop.stuck_for_s() > 0.3


def test_quiesce_waits_for_the_step_and_nothing_runs_until_resume(world) -> None:
    world.model.gate.clear()
    world.loop.post([admit(1, blocks=range(1, 60), max_len=200)])
    while not world.model.calls:
        time.sleep(0.005)
    quiet = threading.Thread(target=world.loop.quiesce)
    quiet.start()
    quiet.join(timeout=0.1)
    assert quiet.is_alive(), "the step still runs"
    world.model.gate.set()
    quiet.join(timeout=5)
    assert not quiet.is_alive()
    calls = world.model.calls
    time.sleep(0.1)
    assert world.model.calls == calls
    world.loop.resume()
    world.until(lambda report: report.finishes)


def test_quiesce_and_resume_again_and_again(world) -> None:
    world.loop.post([admit(1, blocks=range(1, 250), max_len=500)])
    for _ in range(200):
        world.loop.quiesce()
        calls = world.model.calls
        time.sleep(0.0005)
        assert world.model.calls == calls
        world.loop.resume()
    world.until(lambda report: report.steps)


def test_a_dead_thread_is_told_and_nobody_waits_for_it(world) -> None:
    world.model.error = RuntimeError("kernel launch failed")
    world.loop.post([admit(1, blocks=[1, 2, 3])])
    assert "kernel launch" in str(world.deaths.get(timeout=5))
    world.loop.quiesce()
    world.loop.stop()


def test_busy_reports_and_live_lists_come_in_time(world, monkeypatch) -> None:
    monkeypatch.setattr(steploop_module, "LIVE_LIST_S", 0.2)
    world.loop.post([admit(1, blocks=[1, 2], max_len=40), LoadOrder(5, [b"k" * 32], [9], 0)])
    first = world.until(lambda report: report.live_seqs)
    second = world.until(lambda report: report.live_seqs)
    assert (first.live_seqs, first.live_transfers) == ([1], [5]) == (second.live_seqs, second.live_transfers)


def test_two_thousand_sequences_leave_nothing_behind(world) -> None:
    """Everything that a sequence made is gone with it: no state grows, whatever the number of sequences."""
    import gc

    def burst(first: int, count: int) -> tuple[int, float]:
        for start in range(first, first + count, 10):
            world.loop.post(
                [
                    AdmitOrder(
                        seq,
                        seq % 10,
                        prompt_of(6),
                        6,
                        0,
                        list(range(1 + 3 * (seq % 10), 4 + 3 * (seq % 10))),
                        GREEDY,
                        seq,
                        8,
                    )
                    for seq in range(start, start + 10)
                ]
            )
            ended = 0
            while ended < 10:
                ended += len(world.reports.get(timeout=5).released)
        gc.collect()
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return len(gc.get_objects()), resident_pages * 4096 / 2**20

    settled, settled_mib = burst(0, 200)
    objects, resident_mib = burst(200, 2000)
    grown = objects - settled
    engine = world.engine
    assert not (engine._by_seq or engine._by_slot or engine._transfers or engine.labels.resident()[0])
    assert resident_mib - settled_mib < 8, f"{resident_mib - settled_mib:.1f} MiB more after 2,000 sequences"
    assert grown < 500, f"{grown} objects more after 2,000 sequences"


def test_stop_before_start_is_harmless(decoder) -> None:
    pool = KvPool(decoder.config, 4, 4, torch.float32)
    engine = Engine(TorchBackend(decoder, pool), budget=StepBudget(4, 4, 4), start_transfer=lambda order: None)
    StepLoop(engine, print, print).stop()


def test_a_report_is_handed_over_when_the_next_step_is_ready_and_the_last_one_at_once(decoder) -> None:
    """Between two steps the loop's thread must not be woken: it would take the interpreter from what prepares the next one."""
    pool = KvPool(decoder.config, 300, 4, torch.float32)
    engine = Engine(TorchBackend(decoder, pool), budget=StepBudget(64, 64, 16), start_transfer=lambda order: None)
    said: list[str] = []
    emitted = threading.Event()
    launch = engine.backend.launch

    def launched(batch, before=None):
        said.append("step")
        return launch(batch, before)

    def emit(report) -> None:
        if report.steps:
            said.append("report")
        if report.released:
            emitted.set()

    engine.backend.launch = launched
    loop = StepLoop(engine, emit, lambda error: None)
    loop.post([admit(1, blocks=range(1, 5), max_len=8)])
    loop.start()
    assert emitted.wait(10)
    loop.stop()
    # prefill and first token, then one more token
    assert said == ["step", "report", "step", "report"]


class HeardBell:
    """A bell of a backend that rings at its step's start, or not."""

    fd = 7

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def ring(self) -> None:
        self.said.append("ring")

    def ring_and_wait(self, limit_s: float) -> None:
        assert 0 < limit_s < 0.01
        self.said.append("sent")


@pytest.mark.parametrize("by_step", [True, False])
def test_a_first_token_is_sent_first_then_reports_ring_at_the_steps_start_and_the_last_one_at_once(
    decoder, by_step: bool
) -> None:
    pool = KvPool(decoder.config, 300, 4, torch.float32)
    engine = Engine(
        TorchBackend(decoder, pool), budget=StepBudget(64, 64, 16), start_transfer=lambda order: None, merge_ns=0
    )
    said: list[str] = []
    ended = threading.Event()

    def ring_at_start(bell: int) -> bool:
        said.append(f"step rings {bell}" if by_step else "step cannot")
        return by_step

    def emit(report) -> None:
        if report.steps:
            said.append("report")
        if report.released:
            ended.set()

    engine.backend.ring_at_start = ring_at_start
    loop = StepLoop(engine, emit, lambda error: None, HeardBell(said))
    loop.post([admit(1, blocks=range(1, 5), max_len=9)])
    loop.start()
    assert ended.wait(10)
    loop.stop()
    second = ["report", "step rings 7"] if by_step else ["report", "step cannot", "ring"]
    assert said[: len(second) + 4] == ["report", "sent", *second, "report", "ring"]


def test_a_first_token_beside_decodes_goes_along_with_the_next_step(decoder) -> None:
    """Whoever decodes would wait for what is sent."""
    pool = KvPool(decoder.config, 300, 4, torch.float32)
    engine = Engine(
        TorchBackend(decoder, pool), budget=StepBudget(8, 6, 16), start_transfer=lambda order: None, merge_ns=0
    )
    said: list[str] = []
    ended = threading.Event()

    def emit(report) -> None:
        said.extend(f"first of {first.seq} beside {report.decode_seqs}" for first in report.first_tokens)
        if any(released.seq == 1 for released in report.released):
            ended.set()

    engine.backend.ring_at_start = lambda bell: said.append("step rings") or True
    loop = StepLoop(engine, emit, lambda error: None, HeardBell(said))
    loop.post([admit(1, blocks=range(1, 5), max_len=16), admit(2, blocks=range(5, 9), max_len=16)])
    loop.start()
    assert ended.wait(10)
    loop.stop()
    assert said[:4] == ["first of 1 beside 0", "sent", "first of 2 beside 1", "step rings"]
    assert said.count("sent") == 1
