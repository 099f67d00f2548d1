"""Routing over several workers: where the choice flips, who is looked at, when a prefix spreads."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from octavo.keys import extend_keys
from octavo_scheduler import draining, placement
from octavo_scheduler.cell import Cell
from octavo_scheduler.costs import StepCosts
from octavo_scheduler.events import Calibration, WorkerJoined
from octavo_scheduler.fleet import Worker
from octavo_scheduler.history import OutputHistory
from octavo_scheduler.policy import SECOND_US, Policy
from octavo_scheduler.request import Choice, Phase, Request, Sequence
from octavo_scheduler.routing import pressure_us, room_in_us, score_us

from tests.scheduler.chaos import ChaosWorker
from tests.scheduler.scenes import counters, done, make, run, run_until

SIZE = 16
ROOT = bytes(32)
PREFIX = 6000 // SIZE * SIZE
CALIBRATION = Calibration(5000.0, 100.0, 500.0, 0.1)


def joined(cell: Cell, name: str, num_blocks: int = 4000, max_seqs: int = 64) -> Worker:
    epoch = len(cell.fleet.workers) + 1
    worker = Worker(
        WorkerJoined(0, epoch, name, num_blocks, SIZE, max_seqs, 10**6, calibration=CALIBRATION), cell.policy
    )
    cell.fleet.workers[epoch] = worker
    cell.fleet.changed()
    return worker


def asks(tokens: list[int], max_tokens: int = 8) -> Request:
    keys = extend_keys(ROOT, tokens, SIZE)
    request = Request("r", "t", array("I", tokens), keys, b"", -1, max_tokens, 0, 0, namespace_root=ROOT)
    request.choices = [Choice(request, 0, 1, array("I"))]
    return request


def cache(worker: Worker, tokens: list[int]) -> None:
    keys = extend_keys(ROOT, tokens, SIZE)
    table = worker.pool.take(len(keys))
    for at, key in enumerate(keys):
        assert worker.index.add(key, table[at], keys[at - 1] if at else None, 0)
    worker.pool.drop_all(reversed(table))


def queue_on(worker: Worker, count: int, tokens: int) -> None:
    """`count` admitted sequences whose prompts of `tokens` tokens are still to be prefilled."""
    for number in range(count):
        choice = Choice(asks([number] * tokens), 0, 1, array("I"), Phase.RUNNING)
        table = worker.pool.take(-(-tokens // SIZE))
        made = Sequence(
            900 + number, worker.free_slots.pop(), number, worker.epoch, choice, table, tokens, 0, 0, tokens, 0
        )
        worker.sequences[made.seq] = worker.slots[made.slot] = made  # type: ignore[assignment]
        worker.note_behind(made)


def two_workers() -> tuple[Cell, Worker, Worker, Request]:
    cell = Cell(Policy(max_num_seqs=64, default_output_tokens=8), 0)
    warm, cold = joined(cell, "warm"), joined(cell, "cold")
    prompt = list(range(PREFIX)) + [7] * 40
    cache(warm, prompt[:PREFIX])
    return cell, warm, cold, asks(prompt)


def chosen(cell: Cell, request: Request) -> Worker:
    plan = placement.best_plan(cell, request)
    assert plan is not None
    return plan.worker


def test_the_choice_flips_where_the_predicted_wait_equals_the_saved_prefill() -> None:
    """A 6,000-token prefix on a worker with 20 queued against an idle cold one."""
    budget = Policy().max_num_batched_tokens
    costs = StepCosts(CALIBRATION)
    cold_us = score_us(PREFIX + 40, 0, 0, 0.0, costs, budget)
    flips = []
    for tokens in range(SIZE, 1200, SIZE):
        cell, warm, cold, request = two_workers()
        queue_on(warm, 20, tokens)
        backlog = warm.backlog
        wait_us = score_us(40, backlog, 20, 0.0, costs, budget) - score_us(40, 0, 0, 0.0, costs, budget)
        saved_us = cold_us - score_us(40, 0, 0, 0.0, costs, budget)
        took = chosen(cell, request)
        assert took is (warm if wait_us <= saved_us else cold), (tokens, wait_us, saved_us)
        flips.append(took is warm)
    assert flips[0] and not flips[-1] and flips == sorted(flips, reverse=True), "it flips once"


def test_an_idle_warm_worker_takes_it_and_nothing_cached_anywhere_goes_to_the_idle_one() -> None:
    cell, warm, cold, request = two_workers()
    assert chosen(cell, request) is warm
    queue_on(warm, 2, 64)
    assert chosen(cell, asks([99] * 500)) is cold


@pytest.mark.parametrize("why", ["draining", "quiet", "stuck", "closed"])
def test_an_unhealthy_worker_is_never_chosen_for_its_cache(why: str) -> None:
    cell, warm, cold, request = two_workers()
    cell.now_us = 40 * SECOND_US
    cold.last_report_us = warm.last_report_us = warm.last_progress_us = cell.now_us
    assert chosen(cell, request) is warm
    match why:
        case "draining":
            draining.close(cell, warm)
        case "quiet":
            warm.last_report_us -= cell.policy.worker_silence_us // 2 + 1
        case "stuck":
            queue_on(warm, 1, 16)
            warm.last_progress_us -= cell.policy.progress_timeout_us // 2 + 1
        case "closed":
            warm.closed_until_us = cell.now_us + 1
    warm.healthy = warm.is_well(cell.now_us)  # as the audit does once a second
    assert chosen(cell, request) is cold
    draining.close(cell, cold)
    assert placement.best_plan(cell, request) is None, "rather nowhere than there"


def test_a_worker_that_is_heard_again_takes_what_waits() -> None:
    policy = Policy(worker_silence_us=60 * SECOND_US, progress_timeout_us=100 * SECOND_US)
    simulation, gateway = make(policy)
    link = simulation.links[0]
    simulation.links.clear()
    for _ in range(32):
        simulation.advance(SECOND_US)
    client = simulation.submit(gateway, [1, 2, 3], 4)
    run(simulation, 3)
    assert len(simulation.core.cell.queue) == 1, "half of the allowed silence is over: nothing new goes there"
    simulation.links.append(link)
    done(simulation, client)


def test_kv_pressure_is_what_a_newcomer_pushes_out() -> None:
    cell = Cell(Policy(max_num_seqs=64), 0)
    worker = joined(cell, "w", num_blocks=101)
    assert pressure_us(worker, 100) == 0.0
    cache(worker, list(range(60 * SIZE)))
    assert pressure_us(worker, 40) == 0.0, "forty blocks are empty"
    assert pressure_us(worker, 50) == 0.0, "nothing was ever found in this cache"
    for _ in range(200):
        worker.note_reuse(0.5)
    assert pressure_us(worker, 50) == pytest.approx(10 * 0.5 * worker.block_cost_us(25), rel=1e-3)
    assert pressure_us(worker, 1000) == pytest.approx(60 * 0.5 * worker.block_cost_us(500), rel=1e-3)


def test_pressure_sends_a_stranger_to_the_worker_with_empty_blocks() -> None:
    cell = Cell(Policy(max_num_seqs=64, default_output_tokens=8), 0)
    full, empty = joined(cell, "full", num_blocks=401), joined(cell, "empty", num_blocks=401)
    cache(full, list(range(400 * SIZE)))
    full.note_reuse(1.0)
    for name in ("a", "b"):
        assert chosen(cell, asks([ord(name)] * 3000)) is empty


def test_room_comes_when_the_first_sequence_is_expected_to_end() -> None:
    cell = Cell(Policy(max_num_seqs=64), 0)
    worker, history = joined(cell, "w"), OutputHistory(100)
    assert room_in_us(worker, history) == 0.0
    queue_on(worker, 2, 64)
    first, second = worker.sequences.values()
    first.choice.request.max_tokens = second.choice.request.max_tokens = 100
    second.length += 90
    assert room_in_us(worker, history) == pytest.approx(10 * worker.costs.step_us)
    first.stopping = "cancel"
    assert room_in_us(worker, history) == 0.0


def test_a_request_waits_for_room_beside_its_prefix_but_not_longer_than_it_saves() -> None:
    cell, warm, cold, request = two_workers()
    queue_on(warm, 1, 16)
    for sequence in warm.sequences.values():
        sequence.computed_len = sequence.length - 1
        warm.note_behind(sequence)
        sequence.choice.request.max_tokens = 5
    taken, warm.free_slots = warm.free_slots, []
    plan = placement.best_plan(cell, request)
    assert plan is not None and plan.worker is warm and plan.waits
    until_us = request.room_until_us
    assert 500_000 < until_us < 1_000_000, "what it saves is 6,000 tokens at 100 us and their steps"
    cell.now_us = cold.last_report_us = warm.last_report_us = warm.last_progress_us = until_us
    plan = placement.best_plan(cell, request)
    assert plan is not None and plan.worker is cold and plan.spreads and not plan.waits
    warm.free_slots = taken
    plan = placement.best_plan(cell, request)
    assert plan is not None and plan.worker is warm and not plan.spreads


def test_a_hot_prefix_spreads_when_its_worker_is_full_of_long_answers() -> None:
    policy = Policy(max_num_seqs=4, default_output_tokens=200)
    simulation, gateway = make(policy, workers=2, num_blocks=400)
    prompt = list(range(64))
    first = simulation.submit(gateway, prompt, 4)
    done(simulation, first)
    clients = [simulation.submit(gateway, [*prompt, i], 150) for i in range(7)]
    run_until(simulation, lambda: all(client.got[0] for client in clients))
    workers = [link.worker for link in simulation.links]
    assert sorted(len(worker.sequences) for worker in workers) == [3, 4]
    assert counters(simulation)["prefix_spreads"] >= 1
    done(simulation, *clients)
    held = [
        worker.index.match_len(extend_keys(b"n" * 32, prompt, 4), 16)
        for worker in simulation.core.cell.fleet.workers.values()
    ]
    assert held == [16, 16], "both hold it now"


def test_a_worker_that_joins_takes_its_share() -> None:
    simulation, gateway = make(Policy(max_num_seqs=4))
    clients = [simulation.submit(gateway, [i, 2, 3], 40) for i in range(8)]
    run(simulation, 3)
    simulation.add_worker(ChaosWorker(Random(9), "late", num_blocks=33, calm=True))
    run(simulation, 3)
    assert all(link.worker.sequences for link in simulation.links)
    done(simulation, *clients)


@pytest.mark.parametrize("order", [(7, 65), (65, 7)])
def test_nobody_begins_where_it_could_never_end(order: tuple[int, int]) -> None:
    """Alone in a pool that is too small it would stand still for good, and its worker be lost for it."""
    simulation, gateway = make(num_blocks=order[0])
    simulation.add_worker(ChaosWorker(Random(3), "w1", num_blocks=order[1], max_seqs=4, calm=True))
    clients = [simulation.submit(gateway, [number] * 9, 60) for number in range(3)]
    large = max(simulation.core.cell.fleet.workers.values(), key=lambda worker: worker.pool.usable_blocks)
    assert len(large.sequences) == 3
    small = simulation.submit(gateway, [9] * 5, 4)
    assert len(large.sequences) == 3, "what fits the other one goes there"
    done(simulation, *clients, small)


def test_nobody_gives_way_where_the_other_could_never_end() -> None:
    simulation, gateway = make(Policy(order="priority"), num_blocks=7, max_seqs=1)
    simulation.add_worker(ChaosWorker(Random(3), "w1", num_blocks=65, max_seqs=1, calm=True))
    first = simulation.submit(gateway, [1] * 9, 60, priority=9)
    low = simulation.submit(gateway, [2] * 5, 12, priority=0)
    run(simulation, 2)
    high = simulation.submit(gateway, [3] * 9, 60, priority=5)
    run_until(simulation, lambda: low.outcome)
    assert counters(simulation)["priority_preemptions"] == 0
    done(simulation, first, low, high)
