"""Pins: in what order they end, and that no request waits for ever beside one."""

from __future__ import annotations

from octavo_scheduler.fleet import Worker
from octavo_scheduler.policy import SECOND_US, Policy
from octavo_scheduler.prefix.pins import Pins

from tests.scheduler.harness import Simulation
from tests.scheduler.scenes import counters, done, make, run


def test_the_weakest_is_the_least_urgent_then_the_oldest() -> None:
    pins = Pins()
    first, second, third = pins.add([1], 2, 0), pins.add([2], 1, 0), pins.add([3], 1, 0)
    assert pins.weakest() is second and pins.end(second) == [2]
    assert pins.weakest() is third and pins.end(third) == [3] and pins.end(third) == []
    assert pins.weakest() is first and len(pins) == 1


def test_they_fall_due_in_order_and_only_once() -> None:
    pins = Pins()
    late, soon = pins.add([1], 0, 20), pins.add([2], 0, 10)
    pins.add([3], 0, 0)
    assert pins.due(9) == [] and pins.due(10) == [soon]
    pins.end(soon)
    assert pins.due(30) == [late]
    pins.end(late)
    assert pins.due(99) == [] and len(pins) == 1
    assert not pins.add([], 0, 5).live and len(pins) == 1


def pinned(policy: Policy | None = None) -> tuple[Simulation, int, Worker]:
    """A cell of 32 blocks, of which 16 are pinned and idle."""
    simulation, gateway = make(policy)
    prompt = list(range(65))
    done(simulation, simulation.submit(gateway, prompt, 1))
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    keys = [key for key, _block in sorted(worker.index.block_of.items(), key=lambda item: item[1])]
    by_depth = sorted(
        keys, key=lambda key: worker.index._node(worker.index.block_of[key]).blocks.index(worker.index.block_of[key])
    )
    pin = worker.index.pin(by_depth)
    assert len(pin.blocks) == 16 and worker.pool.free_blocks == 16
    return simulation, gateway, worker


def test_a_request_that_fits_beside_a_pin_leaves_it_alone() -> None:
    simulation, gateway, worker = pinned()
    done(simulation, simulation.submit(gateway, [99] * 40, 10))
    assert worker.index.pins == 1 and counters(simulation)["yielded_pin_blocks"] == 0


def test_a_pin_yields_to_a_request_that_needs_its_room_on_an_idle_worker() -> None:
    simulation, gateway, worker = pinned()
    done(simulation, simulation.submit(gateway, [99] * 90, 10))
    assert worker.index.pins == 0 and counters(simulation)["yielded_pin_blocks"] == 16
    assert worker.check_integrity() == []


def test_a_pin_yields_to_the_last_one_that_runs_and_grows() -> None:
    simulation, gateway, worker = pinned(Policy(default_output_tokens=1, margin_fraction=0.0))
    done(simulation, simulation.submit(gateway, [99] * 20, 80))
    assert worker.index.pins == 0 and counters(simulation)["yielded_pin_blocks"] == 16
    assert counters(simulation)["preemptions"] == 0


def test_a_pin_of_limited_time_ends_with_an_audit() -> None:
    simulation, _gateway, worker = pinned()
    worker.index.yield_pins(99)
    key = next(iter(worker.index.block_of))
    worker.index.pin([key], until_us=simulation.now_us + SECOND_US)
    held = worker.index.pins
    for _ in range(800):
        run(simulation)
    assert worker.index.pins == 0 and held <= 1
