"""What each request is charged: sums over requests equal what the workers spent and held, whatever became of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from octavo_scheduler.events import Event, Reported
from octavo_scheduler.orders import Effects
from octavo_scheduler.policy import Policy
from octavo_scheduler.request import Cost, Request

from tests.scheduler.chaos import ChaosWorker
from tests.scheduler.harness import Client, Simulation
from tests.scheduler.scenes import done, make, run, run_until


class Meter:
    """Stands between a simulation and its core: device time reported, and blocks held times time, block by block."""

    def __init__(self, simulation: Simulation) -> None:
        self.wall_us = 0
        self.held_block_us = 0
        self.requests: dict[str, Request] = {}
        self._core = simulation.core
        self._handle = simulation.core.handle
        self._last_us = simulation.now_us
        simulation.core.handle = self.handle  # type: ignore[method-assign]

    def handle(self, event: Event) -> Effects:
        cell = self._core.cell
        held = sum(
            len({block for sequence in worker.sequences.values() for block in sequence.blocks})
            for worker in cell.fleet.workers.values()
        )
        now_us = max(cell.now_us, event.now_us)
        self.held_block_us += held * (now_us - self._last_us)
        self._last_us = now_us
        if isinstance(event, Reported) and event.epoch in cell.fleet.workers and event.slots:
            self.wall_us += event.wall_us
        effects = self._handle(event)
        for request in cell.registry.live():
            self.requests[request.request_id] = request
        return effects

    def total(self) -> Cost:
        total = Cost()
        for request in self.requests.values():
            for name in Cost.__dataclass_fields__:
                setattr(total, name, getattr(total, name) + getattr(request.cost, name))
        return total

    def of(self, client: Client) -> Cost:
        return self.requests[client.request_id].cost


def device_us(cost: Cost) -> float:
    return cost.prefill_us + cost.decode_us + cost.recompute_us


def test_one_request_is_charged_all_time_and_all_blocks() -> None:
    simulation, gateway = make()
    meter = Meter(simulation)
    client = simulation.submit(gateway, list(range(40)), 20)
    done(simulation, client)
    cost = meter.of(client)
    assert device_us(cost) == pytest.approx(meter.wall_us) and meter.wall_us > 0
    assert cost.prefill_us > 0 and cost.decode_us > 0 and cost.recompute_us == 0
    block_bytes = next(iter(simulation.core.cell.fleet.workers.values())).block_bytes
    assert cost.pool_byte_s == pytest.approx(meter.held_block_us * block_bytes / 1e6) and cost.pool_byte_s > 0


@pytest.mark.parametrize("seed", range(12))
def test_sums_over_requests_equal_what_the_workers_did(seed: int) -> None:
    """Random cancels, n > 1, preemptions and lost workers: no microsecond and no block is charged twice or never."""
    rng = Random(seed)
    simulation = Simulation(rng, Policy(prefix_cache=False), delay_us=3000)
    for number in range(2):
        simulation.add_worker(ChaosWorker(Random(seed + number), f"w{number}", num_blocks=24, max_seqs=4, calm=True))
    gateway = simulation.add_gateway()
    meter = Meter(simulation)
    clients: list[Client] = []
    for _ in range(25):
        prompt = [rng.randrange(50) for _ in range(rng.randint(1, 60))]
        clients.append(simulation.submit(gateway, prompt, rng.randint(1, 60), n=rng.choice([1, 1, 2, 3])))
        run(simulation, rng.randint(0, 12))
        if rng.random() < 0.3:
            simulation.cancel(rng.choice(clients))
    simulation.settle()
    total = meter.total()
    assert device_us(total) == pytest.approx(meter.wall_us)
    block_bytes = next(iter(simulation.core.cell.fleet.workers.values())).block_bytes
    assert total.pool_byte_s == pytest.approx(meter.held_block_us * block_bytes / 1e6)
    assert {client.outcome for client in clients} >= {"finished", "cancelled"}


def test_what_a_preemption_makes_compute_again_is_a_phase_of_its_own() -> None:
    simulation, gateway = make(Policy(prefix_cache=False, default_output_tokens=4), num_blocks=24)
    meter = Meter(simulation)
    short = [
        simulation.submit(gateway, [number], 2) for number in range(9)
    ]  # so that the long ones are predicted short
    done(simulation, *short)
    clients = [simulation.submit(gateway, list(range(20)), 60) for _ in range(3)]
    done(simulation, *clients)
    assert simulation.core.cell.counters["preemptions"] > 0
    assert meter.total().recompute_us > 0
    assert device_us(meter.total()) == pytest.approx(meter.wall_us)


def test_choices_of_one_request_share_a_prefill_and_are_told_so() -> None:
    simulation, gateway = make()
    meter = Meter(simulation)
    one = simulation.submit(gateway, list(range(48)), 8)
    simulation.settle()
    three = simulation.submit(gateway, list(range(100, 148)), 8, n=3)
    done(simulation, one, three)
    single, shared = meter.of(one), meter.of(three)
    assert shared.saved_sibling_tokens == 2 * 48 and single.saved_sibling_tokens == 0
    assert shared.prefill_us < 1.5 * single.prefill_us  # one prefill, not three
    assert shared.decode_us > 1.5 * single.decode_us


def test_a_hit_is_booked_as_saved_and_costs_less_prefill() -> None:
    simulation, gateway = make()
    meter = Meter(simulation)
    cold = simulation.submit(gateway, list(range(64)), 4)
    simulation.settle()
    warm = simulation.submit(gateway, list(range(64)), 4)
    done(simulation, cold, warm)
    assert meter.of(cold).saved_prefix_tokens == 0
    block_tokens = next(iter(simulation.core.cell.fleet.workers.values())).block_tokens
    assert meter.of(warm).saved_prefix_tokens == 64 - block_tokens  # at least one token is computed
    assert meter.of(warm).prefill_us < meter.of(cold).prefill_us


def test_a_load_from_the_store_is_booked_under_its_tier() -> None:
    simulation, gateway = make(store=True)
    meter = Meter(simulation)
    first = simulation.submit(gateway, list(range(64)), 4)
    simulation.settle()
    run_until(simulation, lambda: simulation.core.cell.counters["offloaded_blocks"] >= 4)
    link = simulation.links[0]
    link.worker.die()
    simulation._cut(link)
    run_until(simulation, lambda: simulation.core.cell.fleet.workers)
    again = simulation.submit(gateway, list(range(64)), 4)
    done(simulation, first, again)
    assert simulation.core.cell.counters["loaded_blocks"] > 0
    cost = meter.of(again)
    assert cost.saved_tier_tokens > 0
    assert cost.dram_byte_s + cost.nvme_byte_s > 0


def test_a_cancel_is_answered_with_the_whole_cost() -> None:
    simulation, gateway = make()
    meter = Meter(simulation)
    client = simulation.submit(gateway, list(range(20)), 100)
    run_until(simulation, lambda: len(client.got[0]) > 3)
    simulation.cancel(client)
    simulation.settle()
    fact = next(fact for fact in simulation.facts if fact.name == "cancel")
    assert fact.attributes["decode_device_us"] == round(meter.of(client).decode_us) > 0
    assert device_us(meter.of(client)) == pytest.approx(meter.wall_us)


def test_the_final_message_carries_the_cost_of_every_outcome() -> None:
    simulation, gateway = make()
    costs: dict[str, Any] = {}
    collect = simulation.core.collect

    def watched(number: int, runs: Any = None) -> Any:
        updates = collect(number, runs)
        costs.update({update.request_id: update.cost for update in updates if update.finished is not None})
        return updates

    simulation.core.collect = watched  # type: ignore[method-assign]
    finished = simulation.submit(gateway, [1, 2, 3], 5)
    cancelled = simulation.submit(gateway, [1, 2, 3], 100)
    late = simulation.submit(gateway, [4, 5, 6], 100, deadline_us=60_000)
    run_until(simulation, lambda: cancelled.got[0])
    simulation.cancel(cancelled)
    simulation.settle()
    for client in (finished, cancelled, late):
        assert device_us(costs[client.request_id]) > 0, client.outcome
    assert [client.outcome for client in (finished, cancelled, late)] == ["finished", "cancelled", "deadline"]


@pytest.mark.parametrize("seed", range(12))
def test_told_costs_and_the_untold_counter_are_all_of_the_steps(seed: int) -> None:
    """What a gateway adds up, and what it cannot know: steps after an end, and requests of a gateway that went."""
    rng = Random(seed)
    simulation = Simulation(rng, Policy(prefix_cache=False), delay_us=8000)
    simulation.add_worker(ChaosWorker(Random(seed), "w0", num_blocks=40, max_seqs=6, calm=True))
    gateways = [simulation.add_gateway(), simulation.add_gateway()]
    meter = Meter(simulation)
    told: dict[str, float] = {}
    collect = simulation.core.collect

    def watched(number: int, runs: Any = None) -> Any:
        updates = collect(number, runs)
        for update in updates:
            if update.finished is not None and update.cost is not None:
                told[update.request_id] = update.cost.device_us  # as it is serialized: now
        return updates

    simulation.core.collect = watched  # type: ignore[method-assign]
    clients = []
    for _ in range(25):
        prompt = [rng.randrange(50) for _ in range(rng.randint(1, 60))]
        clients.append(simulation.submit(rng.choice(gateways), prompt, rng.randint(1, 60), n=rng.choice([1, 1, 2])))
        run(simulation, rng.randint(0, 12))
        if rng.random() < 0.3:
            simulation.cancel(rng.choice(clients))
    simulation.settle()
    untold_us = simulation.core.cell.counters["untold_device_us"]
    assert sum(told.values()) + untold_us == pytest.approx(meter.wall_us)
    assert untold_us < meter.wall_us


def test_what_ran_for_a_gateway_that_went_is_untold() -> None:
    simulation, gateway = make(Policy(prefix_cache=False, orphan_grace_us=50_000))
    meter = Meter(simulation)
    client = simulation.submit(gateway, list(range(20)), 100)
    run_until(simulation, lambda: len(client.got[0]) > 3)
    (orphan,) = simulation.lose_gateway(gateway)
    orphan.gone = True
    simulation.settle()
    untold_us = simulation.core.cell.counters["untold_device_us"]
    assert untold_us == pytest.approx(meter.wall_us) and untold_us > 0


def test_steps_that_a_cancel_came_too_late_for_are_untold() -> None:
    simulation, gateway = make(Policy(prefix_cache=False))
    meter = Meter(simulation)
    client = simulation.submit(gateway, list(range(20)), 100)
    run_until(simulation, lambda: len(client.got[0]) > 3)
    simulation.cancel(client)
    told_us = meter.of(client).device_us
    simulation.deliver(gateway)
    simulation.settle()
    untold_us = simulation.core.cell.counters["untold_device_us"]
    assert untold_us == pytest.approx(meter.wall_us - told_us) and untold_us > 0
