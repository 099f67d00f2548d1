"""The core when workers, stores and schedulers come and go."""

from __future__ import annotations

from random import Random

import pytest
from octavo_scheduler.events import Tick, WorkerJoined
from octavo_scheduler.policy import SECOND_US, Policy

from tests.scheduler.chaos import ChaosWorker, expected_output
from tests.scheduler.harness import Client, Link, Simulation
from tests.scheduler.scenes import counters, done, make, run, run_until

# -- workers come and go -------------------------------------------------------------------------------------------


def test_new_requests_are_refused_and_resubmits_wait_while_no_worker_is_ready() -> None:
    simulation = Simulation(Random(1), delay_us=0)
    gateway = simulation.add_gateway()
    new = simulation.submit(gateway, [1, 2], 5)
    assert new.reason == "rejected-not-ready"
    again = Client("again", gateway, [1, 2, 3], 9, [4], [], attempt=1)
    again.got = [expected_output(4, 3, 9, [])[0][:4]]
    simulation.clients.append(again)
    simulation.resubmit(again, gateway)
    simulation.add_worker(ChaosWorker(Random(3), "w0", num_blocks=33, calm=True))
    simulation.settle()
    assert again.outcome == "finished" and again.times.attempts == 2  # type: ignore[attr-defined]


def test_resubmits_of_the_grace_go_ahead_of_new_requests() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1))
    running = simulation.submit(gateway, [1], 10)
    new = simulation.submit(gateway, [2], 10)
    again = Client("again", gateway, [1, 2, 3], 9, [4], [], attempt=1)
    simulation.clients.append(again)
    simulation.resubmit(again, gateway)
    run_until(simulation, lambda: again.outcome)
    assert running.outcome and not new.outcome
    simulation.settle()


def test_loss_of_a_worker_resumes_with_the_same_tokens() -> None:
    simulation, gateway = make(workers=2)
    clients = [simulation.submit(gateway, [i, 2, 3, 4, 5], 50) for i in range(6)]
    run_until(simulation, lambda: all(client.got[0] for client in clients))
    simulation.disconnect(simulation.links[0], dead=True)
    done(simulation, *clients)
    assert {client.times.attempts for client in clients} == {1, 2}  # type: ignore[attr-defined]


def test_a_request_that_kills_every_worker_fails() -> None:
    simulation, gateway = make(Policy(max_losses=3, max_num_batched_tokens=4))
    client = simulation.submit(gateway, list(range(60)), 10)
    for _ in range(3):
        run_until(simulation, lambda: simulation.links[0].epoch)
        simulation.disconnect(simulation.links[0], dead=True)
    simulation.settle()
    assert (client.outcome, client.reason) == ("failed", "worker-lost")


def test_without_any_worker_for_long_a_queued_request_fails() -> None:
    simulation, gateway = make(Policy(no_worker_timeout_us=SECOND_US))
    client = simulation.submit(gateway, list(range(60)), 10)
    simulation.disconnect(simulation.links[0], dead=True)
    simulation.links.clear()
    for _ in range(4):
        simulation.advance(400_000)
    simulation.deliver(gateway)
    assert (client.outcome, client.reason) == ("failed", "no-worker")


def test_resident_blocks_are_indexed_again_after_a_new_epoch() -> None:
    simulation, gateway = make()
    prompt = list(range(16))
    done(simulation, simulation.submit(gateway, prompt, 2))
    simulation.disconnect(simulation.links[0])
    run_until(simulation, lambda: simulation.links[0].epoch)
    again = simulation.submit(gateway, prompt, 2)
    done(simulation, again)
    assert again.cached_tokens == 12


def test_a_silent_worker_and_a_stuck_worker_are_lost() -> None:
    policy = Policy(worker_silence_us=2 * SECOND_US, progress_timeout_us=3 * SECOND_US)
    simulation, _gateway = make(policy)
    for _ in range(30):
        simulation.advance(100_000)
    assert any("silent" in why for why in simulation.closed)


def test_work_without_progress_loses_the_worker() -> None:
    simulation, gateway = make(Policy(progress_timeout_us=2 * SECOND_US))
    simulation.submit(gateway, [1, 2], 30)
    link = simulation.links[0]
    run(simulation, 3)
    link.worker._launch = lambda: None  # type: ignore[method-assign]
    link.worker.launched = []
    for _ in range(60):
        simulation.advance(50_000)
        if link.epoch:
            simulation.run_link(link)
    assert any("no progress" in why for why in simulation.closed)


def test_a_worker_with_another_model_is_turned_away() -> None:
    simulation, _gateway = make()
    other = WorkerJoined(simulation.now_us, 99, "other", 10, 4, 4, 100, root_key=b"x" * 32)
    effects = simulation.feed(other)
    assert effects.close_workers[0][0] == 99 and "manifest" in effects.close_workers[0][1]
    assert len(simulation.core.cell.fleet.workers) == 1


def test_a_live_list_that_disagrees_closes_the_epoch() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2], 60)
    run(simulation, 3)
    link = simulation.links[0]
    dropped = next(iter(link.worker.sequences.values()))
    del link.worker.sequences[dropped.seq], link.worker.slots[dropped.slot]
    link.worker.launched = []
    run_until(simulation, lambda: simulation.closed, 6000)
    assert "without a release" in simulation.closed[0]
    counters(simulation)["protocol_errors"] = 0  # what this test provoked
    done(simulation, client)


def test_the_next_wakeups_are_when_a_deadline_cannot_be_met_any_more_and_the_deadline() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2], 60, deadline_us=123_456)
    deadline_us = simulation.now_us + 123_456
    first_us = simulation.feed(Tick(simulation.now_us)).next_wakeup_us
    assert deadline_us - 10_000 < first_us < deadline_us
    # it runs: what it takes at least is no reason to end it
    assert simulation.feed(Tick(first_us)).next_wakeup_us == deadline_us and not client.outcome


# -- tiers ---------------------------------------------------------------------------------------------------------


def fill(simulation: Simulation, gateway: int, rounds: int, prompts: int = 8) -> list[Client]:
    clients = []
    for number in range(rounds):
        clients.append(simulation.submit(gateway, [number % prompts, *range(1, 48)], 4))
        simulation.settle()
    return clients


def test_a_small_pool_offloads_and_loads() -> None:
    simulation, gateway = make(store=True, num_blocks=65)
    done(simulation, *fill(simulation, gateway, 32, prompts=12))
    assert counters(simulation)["offloaded_blocks"] >= 100 and counters(simulation)["loaded_blocks"] >= 50
    assert any(fact.name == "kv.load" and fact.attributes["blocks"] for fact in simulation.facts)


def test_a_store_that_dies_during_a_load_costs_prefill_only() -> None:
    simulation, gateway = make(store=True, num_blocks=33)
    done(simulation, *fill(simulation, gateway, 8))
    client = simulation.submit(gateway, [0, *range(1, 48)], 4)
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    assert any(transfer.kind == "load" for transfer in worker.transfers.values())
    simulation.kill_store("host")
    done(simulation, client)


def test_a_gap_in_the_store_events_asks_for_an_inventory() -> None:
    simulation, gateway = make(store=True, num_blocks=33)
    done(simulation, *fill(simulation, gateway, 4))
    directory = simulation.core.cell.fleet.stores["host"]
    simulation.flush_store("host", lose=True)
    assert directory.synced and len(directory) == len(simulation.stores["host"][0].held)


def test_nothing_is_offloaded_without_a_store() -> None:
    simulation, gateway = make(store=False, num_blocks=33)
    done(simulation, *fill(simulation, gateway, 8))
    assert counters(simulation)["offloaded_blocks"] == 0


# -- one k-step report equals k reports ----------------------------------------------------------------------------


def play(max_merge: int, seed: int) -> tuple[list[list[int]], list[tuple[str, int]], int]:
    simulation = Simulation(Random(seed), Policy(default_output_tokens=2), delay_us=0)
    link: Link = simulation.add_worker(
        ChaosWorker(Random(seed), "w0", num_blocks=40, max_seqs=4, calm=True, max_merge=max_merge)
    )
    if max_merge > 1:
        link.worker.rng.random = lambda: 1.0  # type: ignore[method-assign]
    gateway = simulation.add_gateway()
    clients = [simulation.submit(gateway, [seed % 7, i, 1, 2], 12 + i) for i in range(4)]
    done(simulation, *clients)
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    reports = int(counters(simulation)["reports"])
    return [client.got[0] for client in clients], sorted((k.hex(), 1) for k in worker.index.block_of), reports


@pytest.mark.parametrize("seed", range(5))
def test_one_k_step_report_equals_k_reports(seed: int) -> None:
    single, merged = play(1, seed), play(4, seed)
    assert single[:2] == merged[:2]
    assert merged[2] < single[2]
