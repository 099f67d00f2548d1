"""An operator's drain: nothing new, what runs ends, the rest is handed over at the deadline, then the stream ends."""

from __future__ import annotations

from octavo_scheduler.draining import RELEASE_US
from octavo_scheduler.events import DrainRequested
from octavo_scheduler.orders import Leave
from octavo_scheduler.policy import SECOND_US, Policy

from tests.scheduler.harness import Link, Simulation
from tests.scheduler.scenes import counters, done, make, run, run_until


def order_drain(simulation: Simulation, deadline_us: int = 60 * SECOND_US, name: str = "w0") -> None:
    simulation.feed(DrainRequested(simulation.now_us, name, deadline_us))


def link_of(simulation: Simulation, name: str) -> Link:
    return next(link for link in simulation.links if link.worker.worker_id == name)


def test_what_runs_ends_there_and_what_comes_goes_elsewhere() -> None:
    simulation, gateway = make(workers=2)
    running = [simulation.submit(gateway, [i, 2, 3], 20) for i in range(4)]
    run_until(simulation, lambda: all(client.got[0] for client in running))
    on_w0 = len(link_of(simulation, "w0").worker.sequences)
    assert 0 < on_w0 < 4
    order_drain(simulation)
    late = [simulation.submit(gateway, [9, i], 6) for i in range(3)]
    run_until(simulation, lambda: "drained" in simulation.closed)
    link_of(simulation, "w0").reconnect_at_us = simulation.now_us + 10**9
    done(simulation, *running, *late)
    assert counters(simulation)["workers_drained"] == 1 and counters(simulation)["handed_over"] == 0
    assert counters(simulation)["worker_losses"] == 0 and counters(simulation)["preemptions"] == 0
    assert all(client.attempt == 1 for client in running)


def test_at_the_deadline_the_rest_goes_on_elsewhere_with_the_same_tokens() -> None:
    simulation, gateway = make(workers=2)
    clients = [simulation.submit(gateway, [i, 2, 3], 40) for i in range(4)]
    run_until(simulation, lambda: all(client.got[0] for client in clients))
    moved = len(link_of(simulation, "w0").worker.sequences)
    order_drain(simulation, deadline_us=6000)
    run_until(simulation, lambda: "drained" in simulation.closed)
    link_of(simulation, "w0").reconnect_at_us = simulation.now_us + 10**9
    assert counters(simulation)["handed_over"] == moved > 0
    done(simulation, *clients)  # checks every token
    assert counters(simulation)["workers_drained"] == 1 and counters(simulation)["requests_failed"] == 0


def test_an_idle_worker_leaves_at_once_and_only_after_it_heard_of_it() -> None:
    simulation, _gateway = make(workers=2)
    order_drain(simulation)
    assert "drained" not in simulation.closed, "its process must hear of it first, or it would dial in again"
    run(simulation, 3)
    assert simulation.closed == ["drained"] and counters(simulation)["workers_drained"] == 1


def test_a_worker_that_does_not_let_go_is_given_up_after_the_deadline() -> None:
    simulation, gateway = make(Policy(worker_silence_us=60 * SECOND_US), workers=2)
    clients = [simulation.submit(gateway, [i, 2, 3], 40) for i in range(2)]
    run_until(simulation, lambda: all(client.got[0] for client in clients))
    stuck = link_of(simulation, "w0")
    simulation.links.remove(stuck)  # it hears and says nothing any more
    order_drain(simulation, deadline_us=SECOND_US)
    simulation.advance(SECOND_US)
    assert not simulation.closed
    simulation.advance(RELEASE_US)
    assert simulation.closed == ["the drain's deadline is over"] and counters(simulation)["worker_losses"] == 1
    done(simulation, *clients)


def test_a_repeat_brings_the_deadline_forward_and_orders_nothing_again() -> None:
    simulation, gateway = make(workers=2)
    client = simulation.submit(gateway, [1, 2, 3], 60)
    run_until(simulation, lambda: client.got[0])
    busy = next(link for link in simulation.links if link.worker.sequences)
    name = busy.worker.worker_id
    effects = simulation.feed(DrainRequested(simulation.now_us, name, 60 * SECOND_US))
    assert [type(order) for _epoch, orders in effects.orders for order in orders] == [Leave]
    assert simulation.feed(DrainRequested(simulation.now_us, name, 90 * SECOND_US)).orders == []
    worker = simulation.core.cell.fleet.by_name(name)
    assert worker is not None and worker.drain_until_us == simulation.now_us + 60 * SECOND_US
    simulation.feed(DrainRequested(simulation.now_us, name, 0))
    assert worker.handed_over == 1
    busy.reconnect_at_us = simulation.now_us + 10**9
    done(simulation, client)


def test_a_drain_of_nobody_changes_nothing() -> None:
    simulation, _gateway = make()
    effects = simulation.feed(DrainRequested(simulation.now_us, "nobody", 0))
    assert effects.orders == [] and effects.close_workers == []


def test_who_waits_for_the_prefix_of_a_draining_worker_looks_elsewhere() -> None:
    simulation, gateway = make(Policy(max_num_batched_tokens=4), workers=2, num_blocks=100)
    prompt = list(range(60))
    leader = simulation.submit(gateway, prompt, 4)
    run(simulation, 2)
    waiter = simulation.submit(gateway, [*prompt, 1], 4)
    busy = next(link for link in simulation.links if link.worker.sequences)
    assert not waiter.got[0] and len(simulation.core.cell.queue) == 1
    order_drain(simulation, name=busy.worker.worker_id)
    assert len(simulation.core.cell.queue) == 0
    done(simulation, leader, waiter)
