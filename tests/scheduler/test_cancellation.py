"""Cancels that race everything else that can happen to a request: every interleaving, and every block comes back."""

from __future__ import annotations

from array import array
from itertools import permutations
from random import Random
from typing import Any

import pytest
from octavo_scheduler import residency
from octavo_scheduler.core import Core
from octavo_scheduler.events import Cancelled, GatewayJoined, Tick
from octavo_scheduler.orders import Effects, Fact
from octavo_scheduler.policy import Policy
from octavo_scheduler.request import Phase
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.worker import SimulatedWorker
from octavo_scheduler.simulate.workload import Row, submitted

from tests.scheduler.chaos import ChaosWorker, expected_output
from tests.scheduler.chaos_store import ChaosStore
from tests.scheduler.harness import Client, Link, Simulation
from tests.scheduler.scenes import counters, done, make, run, run_until

ACTS = ("cancel", "step", "hear", "preempt", "load", "hand over")


class Race:
    """Three requests of one prefix on one worker: one waits for a load, one is a step from its end, one lives on."""

    def __init__(self) -> None:
        simulation = self.simulation = Simulation(Random(1), Policy(max_num_seqs=4), delay_us=0)
        store = ChaosStore(Random(2))
        simulation.add_store(store)
        for name in ("w0", "w1"):
            simulation.add_worker(ChaosWorker(Random(3), name, 60, 4, calm=True, store=store))
        self.gateway = simulation.add_gateway()
        prefix = list(range(12))
        seed = simulation.submit(self.gateway, [*prefix, 50, 51, 52, 53], 2)
        done(simulation, seed)
        run_until(simulation, lambda: len(store.held) >= 4)
        simulation.flush_store("host")
        self.link = next(link for link in simulation.links if link.worker.computed_tokens)
        other = next(link for link in simulation.links if link is not self.link)
        simulation.disconnect(other, dead=True)
        other.reconnect_at_us = simulation.now_us + 10**9
        self.other = other
        self.survivor = simulation.submit(self.gateway, [*prefix, 1], 30)
        self.ending = simulation.submit(self.gateway, [*prefix, 2], 6)
        run_until(simulation, lambda: len(self.ending.got[0]) == 5)
        self._forget_the_tail()
        self.link.worker.freeze_transfers = True
        self.loading = simulation.submit(self.gateway, [*prefix, 50, 51, 52, 53, 9], 20)
        assert counters(simulation)["loads_started"] == 1
        simulation.connect(other)

    def _forget_the_tail(self) -> None:
        """The pool loses what the store still has: the next one with that prefix must load it."""
        worker = self.worker()
        worker.offload_candidates.clear()
        taken = worker.pool.take(worker.pool.free_blocks)
        worker.pool.drop_all(taken)

    def worker(self) -> Any:
        return self.simulation.core.cell.fleet.by_name(self.link.worker.worker_id)

    def act(self, name: str) -> None:
        simulation, link = self.simulation, self.link
        simulation.now_us += 1000
        match name:
            case "cancel":
                for client in (self.loading, self.ending):
                    simulation.cancel(client)
            case "step":  # a boundary of the worker: its orders arrive, its report leaves
                if link.epoch:
                    self._boundary(link)
            case "hear":
                while link.up:
                    report = link.up.popleft()[1]
                    report.now_us = simulation.now_us  # type: ignore[attr-defined]
                    simulation.feed(report)  # type: ignore[arg-type]
            case "preempt":
                self._preempt()
            case "load":
                link.worker.freeze_transfers = False
            case "hand over":
                simulation.drain(link, 0)
        simulation.check_integrity()

    def _boundary(self, link: Link) -> None:
        simulation = self.simulation
        while link.down:
            link.worker.receive(link.down.popleft()[1])
        report = link.worker.iterate(simulation.now_us)
        if report is not None:
            report.epoch = link.epoch
            link.up.append((simulation.now_us, report))

    def _preempt(self) -> None:
        """As a shortage does: both that are cancelled lose their seats."""
        cell, worker = self.simulation.core.cell, self.worker()
        for sequence in list(worker.sequences.values()) if worker is not None else []:
            mine = sequence.choice.request.request_id in (self.loading.request_id, self.ending.request_id)
            if mine and sequence.choice.phase is Phase.RUNNING and not sequence.stopping:
                worker.preempting.add(sequence.seq)
                residency.stop(cell, sequence, "preempt")
        self.simulation.feed(Tick(self.simulation.now_us))

    def finish(self) -> None:
        simulation = self.simulation
        self.link.worker.freeze_transfers = False
        simulation.settle()
        simulation.check_clean()
        client = self.survivor
        assert client.outcome == "finished" and client.got[0] == expected_output(client.seeds[0], 13, 30, [])[0]
        for client in (self.loading, self.ending):
            assert len(client.cancel_answers) == client.cancels == 1
            assert client.outcome in ("cancelled", "finished")
        assert self.loading.outcome == "cancelled"
        assert counters(simulation)["protocol_errors"] == 0
        assert sum(worker.leaked_blocks() for worker in simulation.core.cell.fleet.workers.values()) == 0


@pytest.mark.parametrize("first", ACTS)
def test_every_interleaving_gives_every_block_back(first: str) -> None:
    """Cancel against finish, preemption, load, hand-over, and reports that are late by any of them: all 720 orders."""
    for rest in permutations([act for act in ACTS if act != first]):
        race = Race()
        for act in (first, *rest):
            race.act(act)
        race.finish()


def test_a_finish_that_was_heard_first_wins_and_a_late_one_does_not() -> None:
    outcomes = {}
    for order in (("step", "hear", "cancel"), ("step", "cancel", "hear")):
        race = Race()
        for act in order:
            race.act(act)
        race.finish()
        outcomes[order] = race.ending.outcome
    assert list(outcomes.values()) == ["finished", "cancelled"]


def cancelled(client: Client) -> tuple[bool, str, int]:
    return client.cancel_answers[-1]


def test_shared_blocks_stay_while_another_owner_lives() -> None:
    simulation, gateway = make(num_blocks=60)
    prefix = list(range(16))
    first = simulation.submit(gateway, [*prefix, 1], 30)
    run_until(simulation, lambda: first.got[0])
    second = simulation.submit(gateway, [*prefix, 2], 30)
    run_until(simulation, lambda: second.got[0])
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    one, two = worker.sequences.values()
    shared = one.blocks[:4]
    assert two.blocks[:4] == shared
    assert worker.owners(shared[0]) == [f"seq {one.seq}", f"seq {two.seq}", "index"]
    own = sum(worker.pool.is_exclusive(block) for block in one.blocks)
    simulation.cancel(first)
    run_until(simulation, lambda: first.cancel_answers)
    found, outcome, blocks_freed = cancelled(first)
    assert found and outcome == "cancelled" and own <= blocks_freed < own + 4
    assert worker.owners(shared[0]) == [f"seq {two.seq}", "index"] and not worker.pool.is_cached(shared[0])
    done(simulation, second)


def test_a_leak_is_named_and_closes_the_epoch() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 60)
    run_until(simulation, lambda: client.got[0])
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    (lost,) = worker.pool.take(1)
    run_until(simulation, lambda: simulation.closed)
    assert "held by nobody" in simulation.closed[0] and f"block {lost} of nobody" in simulation.closed[0]
    counters(simulation)["protocol_errors"] = 0  # what this test provoked
    done(simulation, client)


def test_200_cancels_in_one_tick_give_their_last_block_back_within_two_steps() -> None:
    """Counted in steps of the simulated worker, from the cancel to the event in which the last block is free."""
    hardware = Hardware("many", 5000.0, 20.0, 10.0, 0.01, num_blocks=20_000, block_bytes=1, max_num_seqs=256)
    core = Core(Policy(max_num_seqs=256, max_waiting_requests=1000))
    worker = SimulatedWorker("w", 1, hardware)
    core.handle(GatewayJoined(0, 1, "g"))
    now_us, facts = 0, list[Fact]()

    def give(effects: Effects) -> None:
        facts.extend(effects.facts)
        worker.inbox.extend((now_us, orders) for _epoch, orders in effects.orders)

    def step() -> None:
        nonlocal now_us
        now_us = max(now_us + 1, worker.wake_us)
        for report, _owners in worker.boundary(now_us):
            report.now_us = now_us
            give(core.handle(report))

    give(core.handle(worker.hello(0)))
    for number in range(200):
        row = Row(0, (("same", 64), (str(number), 100)), 500)
        give(core.handle(submitted(number, row, array("I"), 1, 0, 16)))
    pool = next(iter(core.cell.fleet.workers.values())).pool
    for _ in range(300):
        step()
    assert len(core.cell.fleet.workers[1].sequences) == 200 and pool.free_blocks < pool.usable_blocks
    began = worker.steps
    step_us = worker.wake_us - now_us
    for number in range(200):
        give(core.handle(Cancelled(now_us, 1, f"r{number}", "client_cancel")))
    steps = {}
    for _ in range(6):
        before = len(facts)
        step()
        for fact in facts[before:]:
            if fact.name == "cancel":
                steps[fact.attributes["octavo.request_id"]] = worker.steps - began
                assert int(fact.attributes["latency_us"]) < 2 * step_us
    assert len(steps) == 200 and sorted(steps.values())[int(0.99 * 200)] < 2, sorted(steps.values())[-5:]
    assert pool.free_blocks == pool.usable_blocks and core.cell.fleet.workers[1].check_integrity() == []


def test_a_cancel_in_the_tick_of_its_submit_and_twice() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 9)
    simulation.cancel(client)
    simulation.cancel(client)
    run(simulation, 4)
    assert [answer[1] for answer in client.cancel_answers] == ["cancelled"] * 2
    simulation.settle()
    simulation.check_clean()
