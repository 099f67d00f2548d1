"""A worker without memory: admission closes, the pool shrinks, the least urgent make room, and no stream fails."""

from __future__ import annotations

import pytest
from octavo_scheduler.admission import MAX_PREEMPTIONS, is_protected, next_group
from octavo_scheduler.events import Tick
from octavo_scheduler.limits import memory
from octavo_scheduler.limits.memory import CLOSED_US, RECOVER_US
from octavo_scheduler.policy import Policy

from tests.scheduler.harness import Simulation
from tests.scheduler.scenes import counters, done, make, run, run_until


def pool_of(simulation: Simulation):
    (worker,) = simulation.core.cell.fleet.workers.values()
    return worker, worker.pool


def cut(simulation: Simulation, blocks: int) -> None:
    """As so many failures one after another do, without the steps between them."""
    worker, _pool = pool_of(simulation)
    memory.close(simulation.core.cell, worker)
    memory.shrink_to(simulation.core.cell, worker, blocks)
    simulation.core.cell.touched[worker] = None
    simulation.feed(Tick(simulation.now_us))


def test_every_50th_allocation_fails_and_no_stream_does() -> None:
    simulation, gateway = make(num_blocks=65)
    simulation.links[0].worker.fail_every = 50
    clients = []
    for number in range(30):
        clients.append(simulation.submit(gateway, [number, 2, 3], 30))
        run(simulation, 10)
    simulation.settle()
    assert [client.outcome for client in clients] == ["finished"] * 30
    assert counters(simulation)["failed_allocations"] >= 4
    _worker, pool = pool_of(simulation)
    assert 0 < pool.retired_blocks < 32 and pool.free_blocks == pool.usable_blocks
    assert counters(simulation)["worker_losses"] == counters(simulation)["protocol_errors"] == 0
    simulation.check_clean()


def test_a_failure_closes_admission_for_a_while_and_shrinks_the_pool() -> None:
    simulation, gateway = make(num_blocks=101)
    simulation.links[0].worker.fail_every = 3
    first = simulation.submit(gateway, [1, 2], 40)
    run_until(simulation, lambda: counters(simulation)["failed_allocations"])
    simulation.links[0].worker.fail_every = 0
    worker, pool = pool_of(simulation)
    assert pool.usable_blocks == 95 and pool.retired_blocks == 5
    failed_us = simulation.now_us
    second = simulation.submit(gateway, [3, 4], 5)
    run_until(simulation, lambda: second.got[0])
    assert simulation.now_us - failed_us >= CLOSED_US > 100_000 and worker.closed_until_us
    done(simulation, first, second)


def test_the_pool_comes_back_while_nothing_fails() -> None:
    simulation, gateway = make(num_blocks=101)
    simulation.links[0].worker.fail_every = 5
    done(simulation, simulation.submit(gateway, [1, 2], 20))
    simulation.links[0].worker.fail_every = 0
    _worker, pool = pool_of(simulation)
    lost = pool.retired_blocks
    assert lost
    run(simulation, RECOVER_US // 3000 + 400)
    assert pool.retired_blocks < lost
    run(simulation, 5 * RECOVER_US // 3000)
    assert pool.retired_blocks == 0
    simulation.check_clean()


@pytest.mark.parametrize("order", ["fcfs", "priority", "slo-fair"])
def test_a_pool_cut_by_30_percent_under_load_preempts_and_fails_nobody(order: str) -> None:
    policy = Policy(order=order, default_output_tokens=20, grant_ahead_us=6000)
    simulation, gateway = make(policy, num_blocks=41, max_seqs=8)
    clients = [simulation.submit(gateway, [number, 1, 2], 16, priority=number % 2) for number in range(16)]
    run(simulation, 12)
    worker, pool = pool_of(simulation)
    held = pool.usable_blocks - pool.free_blocks
    assert held > 28
    cut(simulation, 28)  # of 40
    assert pool.debt == held - 28 and counters(simulation)["preemptions"] > 0
    stopping = [sequence.choice.request for sequence in worker.sequences.values() if sequence.stopping == "preempt"]
    going_on = [sequence.choice.request for sequence in worker.running()]
    assert max(item.priority for item in stopping) <= min(item.priority for item in going_on), (
        "the least urgent go first"
    )
    run_until(simulation, lambda: not pool.debt)
    assert pool.num_blocks - 1 - pool.retired_blocks == 28
    done(simulation, *clients)
    run_until(simulation, lambda: pool.usable_blocks == 40, 40_000)  # share by share, while nothing fails


def test_the_pool_never_shrinks_below_what_a_request_under_way_needs() -> None:
    simulation, gateway = make(num_blocks=33)
    large = simulation.submit(gateway, [1, 2], 100)  # 26 blocks in the end
    waiting = simulation.submit(gateway, [3, 4], 110)  # 28
    run(simulation, 3)
    cut(simulation, 10)
    assert pool_of(simulation)[1].usable_blocks == 28
    refused = simulation.submit(gateway, [5, 6], 118)
    assert refused.reason == "rejected-never-fits"
    done(simulation, large, waiting)


def test_a_choice_that_was_preempted_four_times_is_seated_to_its_end_and_nobodys_victim() -> None:
    policy = Policy(order="fcfs", default_output_tokens=1, grant_ahead_us=1)
    simulation, gateway = make(policy, num_blocks=25, max_seqs=8)
    clients = [simulation.submit(gateway, [number, 1], 60) for number in range(5)]  # 16 of 24 blocks each, in the end
    core = simulation.core
    run_until(simulation, lambda: any(request.preemptions for request in core.cell.queue))
    victim = next(request for request in core.cell.queue if request.preemptions)
    (choice,) = victim.choices
    choice.preemptions = MAX_PREEMPTIONS
    assert is_protected(choice) and next_group([choice]) == [choice]
    run_until(simulation, lambda: choice.sequence is not None)
    assert choice.sequence.ungranted(4) == 0, "it never asks for a block again"
    run_until(simulation, lambda: victim.outcome)
    assert choice.preemptions == MAX_PREEMPTIONS and victim.outcome.outcome == "finished"
    assert counters(simulation)["promised_blocks"] > 0 and counters(simulation)["unkept_blocks"] == 0
    done(simulation, *clients)


def test_overcommit_is_bounded() -> None:
    simulation, gateway = make(Policy(default_output_tokens=1, max_overcommit=1.0), num_blocks=25, max_seqs=8)
    clients = [simulation.submit(gateway, [number, 1], 40) for number in range(6)]  # 11 of 24 blocks each, in the end
    worker, pool = pool_of(simulation)
    for _ in range(600):
        run(simulation)
        assert pool.usable_blocks - pool.free_blocks + worker.ungranted <= pool.usable_blocks
    assert counters(simulation)["preemptions"] == 0
    done(simulation, *clients)


def test_blocks_without_memory_are_used_by_nobody_until_they_have_some() -> None:
    simulation, gateway = make(num_blocks=101)
    simulation.links[0].worker.backed_blocks = 31
    first = simulation.submit(gateway, [1, 2], 40)
    run(simulation, 400)
    worker, pool = pool_of(simulation)
    assert (pool.usable_blocks, pool.retired_blocks, worker.closed_until_us) == (30, 70, 0)
    clients = [first, *(simulation.submit(gateway, [number, 2, 3], 30) for number in range(20))]
    used = 0
    while any(not client.outcome for client in clients):
        run(simulation, 1)
        used = max([used, *(block for seq in worker.sequences.values() for block in seq.blocks)])
    assert used <= 30 and [client.outcome for client in clients] == ["finished"] * 21
    simulation.links[0].worker.backed_blocks = 0
    run(simulation, 400)
    assert (pool.usable_blocks, pool.retired_blocks) == (100, 0)
    simulation.settle()
    simulation.check_clean()


def test_failures_and_missing_memory_come_back_each_in_its_own_time() -> None:
    simulation, gateway = make(num_blocks=101)
    worker, pool = pool_of(simulation)
    simulation.links[0].worker.fail_every = 3
    done(simulation, simulation.submit(gateway, [1, 2], 25))
    simulation.links[0].worker.fail_every = 0
    simulation.links[0].worker.backed_blocks = 81
    run(simulation, 400)
    assert pool.usable_blocks < 80
    run_until(simulation, lambda: pool.usable_blocks == 80, 10 * RECOVER_US // 3000)
    run(simulation, RECOVER_US // 3000 + 400)
    assert pool.usable_blocks == worker.backed_blocks == 80  # as far as there is memory
    simulation.links[0].worker.backed_blocks = 0
    run(simulation, 400)
    assert pool.usable_blocks == 100
    simulation.check_clean()


def test_what_runs_keeps_what_it_needs_whatever_a_worker_says() -> None:
    simulation, gateway = make(num_blocks=41)
    client = simulation.submit(gateway, [1, 2], 60)
    run_until(simulation, lambda: client.got[0])
    simulation.links[0].worker.backed_blocks = 1
    run_until(simulation, lambda: client.outcome)
    done(simulation, client)
    simulation.links[0].worker.backed_blocks = 1
    run(simulation, 400)
    _worker, pool = pool_of(simulation)
    assert pool.usable_blocks == 1
    simulation.check_clean()
