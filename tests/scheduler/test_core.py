"""The core against calm chaos workers: queueing, sharing, memory; one behaviour per test, on a virtual clock."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from octavo_scheduler import residency
from octavo_scheduler.events import ChoiceStart, Submitted
from octavo_scheduler.policy import Policy

from tests.scheduler.chaos import ChaosWorker, expected_output, tokens_of
from tests.scheduler.harness import Simulation
from tests.scheduler.scenes import counters, done, make, run, run_until

# -- the plain path ------------------------------------------------------------------------------------------------


def test_one_request_finishes_with_the_expected_tokens() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3, 4, 5], 10)
    done(simulation, client)
    assert client.ended[0] == ("length", 10)


def test_a_stop_token_ends_a_choice_and_is_named() -> None:
    simulation, gateway = make()
    want, _ = expected_output(7, 3, 60, [])
    client = simulation.submit(gateway, [1, 2, 3], 60, seeds=[7], stop_ids=[want[4]])
    done(simulation, client)
    assert client.ended[0][0] == "stop" and client.got[0][-1] == want[4]


def test_a_long_prompt_runs_in_chunks_below_the_budget() -> None:
    policy = Policy(max_num_batched_tokens=8, max_num_batched_tokens_alone=16)
    simulation, gateway = make(policy, num_blocks=65)
    first = simulation.submit(gateway, list(range(60)), 30)
    run_until(simulation, lambda: first.got[0])
    second = simulation.submit(gateway, list(range(1, 61)), 10)
    done(simulation, first, second)
    assert simulation.links[0].worker.max_batch <= 16
    assert counters(simulation)["mixed_steps"] >= 60 // 8


def test_no_more_than_max_num_seqs_run() -> None:
    simulation, gateway = make(Policy(max_num_seqs=2))
    clients = [simulation.submit(gateway, [i, 2, 3], 8) for i in range(5)]
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    most = 0
    while not all(client.outcome for client in clients):
        run(simulation)
        most = max(most, len(worker.sequences))
    assert most == 2
    done(simulation, *clients)


def test_first_come_is_first_served() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1))
    clients = [simulation.submit(gateway, [i, 2, 3], 4) for i in range(4)]
    order: list[str] = []
    while len(order) < 4:
        run(simulation)
        order += [c.request_id for c in clients if c.outcome and c.request_id not in order]
    assert order == [client.request_id for client in clients]


def test_priority_goes_first_under_the_priority_policy() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1, order="priority"))
    clients = [simulation.submit(gateway, [i, 2, 3], 4, priority=i) for i in range(4)]
    run_until(simulation, lambda: clients[3].outcome)
    assert not clients[1].outcome and not clients[2].outcome
    done(simulation, *clients)


# -- prefix cache and siblings -------------------------------------------------------------------------------------


def test_a_known_prefix_is_not_computed_again_and_one_token_always_is() -> None:
    simulation, gateway = make(num_blocks=200)
    prompt = list(range(16))
    done(simulation, simulation.submit(gateway, prompt, 2))
    before = counters(simulation)["prefill_tokens"]
    again = simulation.submit(gateway, prompt, 2)
    done(simulation, again)
    assert again.cached_tokens == 12  # three of four full blocks: at least one token is computed
    assert counters(simulation)["prefill_tokens"] - before == 4


def test_cache_off_neither_reads_nor_feeds_the_cache() -> None:
    simulation, gateway = make()
    prompt = list(range(16))
    done(simulation, simulation.submit(gateway, prompt, 2, cache_off=True))
    second = simulation.submit(gateway, prompt, 2)
    done(simulation, second)
    third = simulation.submit(gateway, prompt, 2, cache_off=True)
    done(simulation, third)
    assert second.cached_tokens == 0 and third.cached_tokens == 0


def test_output_blocks_are_found_by_the_next_turn() -> None:
    simulation, gateway = make(num_blocks=100)
    first = simulation.submit(gateway, list(range(8)), 12)
    done(simulation, first)
    second = simulation.submit(gateway, list(range(8)) + first.got[0] + [1], 2)
    done(simulation, second)
    assert second.cached_tokens == 16  # 8 + 12 tokens, the last one's KV was never written


def test_siblings_share_one_prefill() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, list(range(1, 19)), 6, n=4)
    done(simulation, client)
    assert len({tuple(tokens) for tokens in client.got}) == 4
    assert counters(simulation)["prefill_tokens"] == 18


def test_two_requests_with_one_prefix_at_once_compute_it_once() -> None:
    simulation, gateway = make(Policy(max_num_batched_tokens=8), num_blocks=100)
    prompt = list(range(40))
    clients = [simulation.submit(gateway, [*prompt, i], 4) for i in range(3)]
    done(simulation, *clients)
    assert counters(simulation)["prefill_tokens"] == 41  # the other two lack one token each, which counts as a decode


def test_a_waiter_goes_on_when_the_leader_of_its_prefix_is_cancelled() -> None:
    simulation, gateway = make(Policy(max_num_batched_tokens=4), num_blocks=100)
    prompt = list(range(40))
    leader = simulation.submit(gateway, prompt, 4)
    waiter = simulation.submit(gateway, [*prompt, 1], 4)
    run(simulation, 3)
    simulation.cancel(leader)
    simulation.settle()
    assert leader.outcome == "cancelled" and waiter.outcome == "finished"
    simulation.check_clean()


# -- admission -----------------------------------------------------------------------------------------------------


def test_a_request_of_exactly_the_pool_runs_and_one_token_more_is_refused_at_once() -> None:
    simulation, gateway = make(num_blocks=17)  # 16 blocks of 4: 64 positions, so 65 tokens
    exact = simulation.submit(gateway, [1] * 10, 55)
    never = simulation.submit(gateway, [1] * 10, 56)
    tiny = simulation.submit(gateway, [5], 2)
    assert never.outcome == "rejected" and never.reason == "rejected-never-fits"
    simulation.settle()
    assert exact.outcome == tiny.outcome == "finished" and len(exact.got[0]) == 55
    simulation.check_clean()


def test_n_beyond_the_worker_is_refused_naming_the_field() -> None:
    simulation, gateway = make(Policy(max_num_seqs=4))
    client = simulation.submit(gateway, [1, 2], 2, n=5)
    assert (client.outcome, client.reason) == ("rejected", "rejected-invalid")


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "options"),
    [([], 3, {}), ([1], 0, {}), ([1], 5000, {})],
)
def test_bad_sizes_are_refused(prompt: list[int], max_tokens: int, options: dict[str, Any]) -> None:
    simulation, gateway = make(max_model_len=100)
    client = simulation.submit(gateway, prompt, max_tokens, **options)
    assert client.reason == "rejected-invalid"
    done(simulation, simulation.submit(gateway, [1, 2], 2))


def test_an_unknown_slo_class_is_refused() -> None:
    simulation, gateway = make()
    simulation.clients.clear()
    event = Submitted(simulation.now_us, gateway, "x", tokens_of([1]), 1, [ChoiceStart(1)], slo_class="platinum")
    simulation.feed(event)
    (update,) = simulation.core.collect(gateway)
    assert update.finished is not None and "platinum" in update.finished.message


def test_a_full_queue_refuses_naming_the_unit() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1, max_waiting_requests=2, max_waiting_prompt_tokens=50))
    kept = [simulation.submit(gateway, [i], 2) for i in range(3)]
    refused = simulation.submit(gateway, [9], 2)
    assert refused.reason == "rejected-queue-requests"
    simulation.settle()
    assert all(client.outcome == "finished" for client in kept)
    kept = [simulation.submit(gateway, [i] * 30, 2) for i in range(2)]
    refused = simulation.submit(gateway, [9] * 30, 2)
    assert refused.reason == "rejected-queue-prompt-tokens"
    simulation.settle()


def test_admission_keeps_room_for_the_growth_of_what_runs() -> None:
    simulation, gateway = make(Policy(default_output_tokens=40), num_blocks=25)  # 24 blocks; one run grows to 11
    clients = [simulation.submit(gateway, [i, 1, 2], 40) for i in range(4)]
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    assert len(worker.sequences) == 2
    done(simulation, *clients)
    assert counters(simulation)["preemptions"] == 0


def steps_for(delay_us: int) -> int:
    """Worker steps that 3 requests of 60 tokens take when each message is `delay_us` under way."""
    simulation = Simulation(Random(1), delay_us=delay_us)
    simulation.rng.randint = lambda low, high: high  # type: ignore[method-assign]
    link = simulation.add_worker(ChaosWorker(Random(3), "w0", num_blocks=100, max_seqs=4, calm=True))
    gateway = simulation.add_gateway()
    clients = [simulation.submit(gateway, [i, 2, 3], 60) for i in range(3)]
    starved = 0
    launch = link.worker._launch

    def counted() -> None:
        nonlocal starved
        launch()
        starved += len(link.worker.pending_step.starved)

    link.worker._launch = counted  # type: ignore[method-assign]
    done(simulation, *clients)
    assert starved == 0
    return link.worker.steps


def test_thirty_milliseconds_on_the_link_starve_nobody() -> None:
    assert steps_for(30_000) == steps_for(0)


# -- preemption ----------------------------------------------------------------------------------------------------


def test_a_full_pool_preempts_and_all_finish() -> None:
    simulation, gateway = make(Policy(default_output_tokens=1), num_blocks=17)
    clients = [simulation.submit(gateway, [9, i, 2], 40) for i in range(4)]
    done(simulation, *clients)
    assert counters(simulation)["preemptions"] > 0


def test_a_preemption_storm_keeps_making_tokens() -> None:
    """Complaint 12: pool for four, sixteen requests that each grow to 75% of it; tokens never stop for 50 steps."""
    policy = Policy(default_output_tokens=1, max_num_seqs=16)
    simulation, gateway = make(policy, store=True, num_blocks=25, max_seqs=16)
    clients = [simulation.submit(gateway, [i, i + 1, 5], 70) for i in range(16)]
    quiet = longest = 0
    before = 0
    while not all(client.outcome for client in clients):
        run(simulation)
        total = sum(len(client.got[0]) for client in clients)
        quiet = 0 if total > before else quiet + 1
        longest, before = max(longest, quiet), total
        assert quiet < 50
    done(simulation, *clients)
    assert max(client.times.preemptions for client in clients) <= 4  # type: ignore[attr-defined]


def test_the_oldest_is_never_the_victim() -> None:
    simulation, gateway = make(Policy(default_output_tokens=1), num_blocks=17)
    clients = [simulation.submit(gateway, [9, i, 2], 40) for i in range(4)]
    done(simulation, *clients)
    assert clients[0].times.preemptions == 0  # type: ignore[attr-defined]


def test_low_priority_is_preempted_first() -> None:
    simulation, gateway = make(Policy(default_output_tokens=1), num_blocks=17)
    low = simulation.submit(gateway, [9, 1, 2], 40, priority=-1)
    high = simulation.submit(gateway, [9, 2, 2], 40, priority=1)
    done(simulation, low, high)
    assert high.times.preemptions == 0 and low.times.preemptions > 0  # type: ignore[attr-defined]


def test_a_finish_that_crosses_a_preemption_wins() -> None:
    simulation, gateway = make(Policy(default_output_tokens=1), num_blocks=17)
    client = simulation.submit(gateway, [9, 1, 2], 20)
    run_until(simulation, lambda: len(client.got[0]) == 19)
    worker = next(iter(simulation.core.cell.fleet.workers.values()))
    (sequence,) = worker.sequences.values()
    residency.stop(simulation.core.cell, sequence, "preempt")  # the last token's step is launched already
    done(simulation, client)
    assert client.times.preemptions == 0 and client.times.attempts == 1  # type: ignore[attr-defined]
