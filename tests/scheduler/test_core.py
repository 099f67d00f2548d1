"""The core against calm chaos workers: one behaviour per test, on a virtual clock."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from octavo_scheduler import residency
from octavo_scheduler.events import Cancelled, ChoiceStart, Submitted, Tick, WorkerJoined
from octavo_scheduler.policy import SECOND_US, Policy

from tests.scheduler.chaos import ChaosStore, ChaosWorker, expected_output, tokens_of
from tests.scheduler.harness import Client, Link, Simulation


def make(policy: Policy | None = None, store: bool = False, workers: int = 1, **options: Any) -> tuple[Simulation, int]:
    simulation = Simulation(Random(1), policy, delay_us=0)
    host = ChaosStore(Random(2)) if store else None
    if host is not None:
        simulation.add_store(host)
    for number in range(workers):
        settings = {"num_blocks": 33, "max_seqs": 4, "calm": True, "store": host, **options}
        simulation.add_worker(ChaosWorker(Random(3), f"w{number}", **settings))
    return simulation, simulation.add_gateway()


def run(simulation: Simulation, iterations: int = 1) -> None:
    for _ in range(iterations):
        simulation.advance(3000)
        for link in simulation.links:
            simulation.run_link(link)
        for gateway in list(simulation.gateways):
            simulation.deliver(gateway)


def run_until(simulation: Simulation, condition: Any, limit: int = 3000) -> None:
    for _ in range(limit):
        if condition():
            return
        run(simulation)
    raise AssertionError("it never happened")


def counters(simulation: Simulation) -> dict[str, float]:
    return simulation.core.cell.counters


def done(simulation: Simulation, *clients: Client) -> None:
    simulation.settle()
    assert [(client.outcome, client.reason) for client in clients] == [("finished", "")] * len(clients)
    simulation.check_clean()


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
    assert refused.reason == "rejected-queue-full"
    simulation.settle()
    assert all(client.outcome == "finished" for client in kept)
    kept = [simulation.submit(gateway, [i] * 30, 2) for i in range(2)]
    refused = simulation.submit(gateway, [9] * 30, 2)
    assert refused.reason == "rejected-queue-full"
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


# -- cancel, stop strings, deadlines -------------------------------------------------------------------------------


def test_cancel_answers_once_blocks_are_back_and_repeats_attach() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 100)
    run_until(simulation, lambda: client.got[0])
    simulation.cancel(client)
    assert client.cancel_answers == []
    simulation.cancel(client)
    simulation.settle()
    ((found, outcome, freed), second) = client.cancel_answers
    assert found and outcome == "cancelled" and freed >= 1 and second == (found, outcome, freed)
    simulation.check_clean()


@pytest.mark.parametrize("through_its_own_gateway", [True, False])
def test_a_cancel_of_another_tenant_does_nothing(through_its_own_gateway: bool) -> None:
    simulation, gateway = make()
    other = simulation.add_gateway()
    client = simulation.submit(gateway, [1, 2, 3], 20)
    run_until(simulation, lambda: client.got[0])
    asked = gateway if through_its_own_gateway else other
    simulation.feed(Cancelled(simulation.now_us, asked, client.request_id, "client_cancel", "stranger"))
    answers = [update.cancel for update in simulation.core.collect(asked) if update.cancel is not None]
    assert [answer.found for answer in answers] == [False]
    done(simulation, client)


def test_a_cancel_through_another_gateway_is_answered_there() -> None:
    simulation, gateway = make()
    other = simulation.add_gateway()
    client = simulation.submit(gateway, [1, 2, 3], 20)
    run_until(simulation, lambda: client.got[0])
    simulation.feed(Cancelled(simulation.now_us, other, client.request_id, "client_cancel"))
    answers: list[Any] = []
    for _ in range(100):
        simulation.advance(3000)
        for link in simulation.links:
            simulation.run_link(link)
        answers += [update.cancel for update in simulation.core.collect(other) if update.cancel is not None]
    assert [(answer.found, answer.outcome) for answer in answers] == [(True, "cancelled")]
    simulation.settle()
    assert client.outcome == "cancelled"


def test_cancel_of_a_finished_or_unknown_request_does_nothing() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 3)
    simulation.settle()
    simulation.cancel(client)
    simulation.settle()
    assert client.cancel_answers == [(False, "", 0)] and client.outcome == "finished"


@pytest.mark.parametrize("iterations", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 3])
def test_cancel_at_any_moment_gives_everything_back(iterations: int, n: int) -> None:
    simulation, gateway = make(Policy(max_num_batched_tokens=8))
    client = simulation.submit(gateway, list(range(20)), 40, n=n)
    run(simulation, iterations)
    simulation.cancel(client)
    simulation.settle()
    assert client.outcome == "cancelled"
    simulation.check_clean()


def test_cancel_while_queued_is_answered_at_once() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1))
    first = simulation.submit(gateway, [1], 20)
    queued = simulation.submit(gateway, [2], 20)
    simulation.cancel(queued)
    simulation.deliver(gateway)
    assert queued.cancel_answers == [(True, "cancelled", 0)]
    simulation.settle()
    assert first.outcome == "finished"
    simulation.check_clean()


def test_cancel_resolves_when_the_worker_is_lost() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 100)
    run_until(simulation, lambda: client.got[0])
    simulation.cancel(client)
    simulation.disconnect(simulation.links[0], dead=True)
    simulation.deliver(gateway)
    assert client.cancel_answers and client.outcome == "cancelled"


def test_a_stop_string_cuts_the_choice_and_frees_it() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2, 3], 100)
    run_until(simulation, lambda: len(client.got[0]) > 10)
    simulation.stop_choice(client, 0, 6)
    done(simulation, client)
    assert client.ended[0] == ("stop", 6)


def test_a_deadline_in_the_queue_is_rejected_without_work() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1))
    first = simulation.submit(gateway, [1], 60)
    late = simulation.submit(gateway, [2], 20, deadline_us=20_000)
    simulation.settle()
    assert (late.outcome, late.reason, late.got[0]) == ("deadline", "rejected-deadline", [])
    assert first.outcome == "finished"


def test_a_deadline_while_decoding_stops_it() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1], 100, deadline_us=60_000)
    simulation.settle()
    assert (client.outcome, client.reason) == ("deadline", "evicted-deadline") and client.got[0]
    simulation.check_clean()


# -- identity ------------------------------------------------------------------------------------------------------


def test_the_same_id_and_body_attaches_and_replays_from_the_first_token() -> None:
    simulation, gateway = make()
    first = simulation.submit(gateway, [1, 2, 3], 20, request_id="same", seeds=[5])
    run_until(simulation, lambda: len(first.got[0]) > 4)
    other = simulation.add_gateway()
    second = simulation.submit(other, [1, 2, 3], 20, request_id="same", seeds=[5])
    done(simulation, first, second)
    late = simulation.submit(simulation.add_gateway(), [1, 2, 3], 20, request_id="same", seeds=[5])
    assert late.outcome == "finished" and late.got == first.got == second.got
    assert counters(simulation)["requests_finished"] == 1


def test_the_same_key_under_another_id_attaches() -> None:
    simulation, gateway = make()
    first = simulation.submit(gateway, [1, 2, 3], 20, key="k", seeds=[5])
    second = simulation.submit(gateway, [1, 2, 3], 20, key="k", seeds=[5])
    done(simulation, first, second)
    assert second.got == first.got and counters(simulation)["requests_finished"] == 1


def test_the_same_id_with_another_body_already_exists_and_hurts_nobody() -> None:
    simulation, gateway = make()
    first = simulation.submit(gateway, [1, 2, 3], 20, request_id="same")
    other = simulation.add_gateway()
    second = simulation.submit(other, [1, 2, 4], 20, request_id="same")
    assert second.outcome == "already_exists"
    done(simulation, first)


def test_attach_to_an_unknown_request_is_not_found() -> None:
    simulation, gateway = make()
    simulation.attach(gateway, "nobody")
    (update,) = simulation.core.collect(gateway)
    assert update.finished is not None and update.finished.outcome == "not_found"


def test_stored_results_expire() -> None:
    simulation, gateway = make(Policy(registry_ttl_us=2 * SECOND_US))
    done(simulation, simulation.submit(gateway, [1], 2, request_id="old"))
    assert len(simulation.core.cell.registry) == 1
    for _ in range(4):
        simulation.advance(SECOND_US)
        run(simulation)
    assert len(simulation.core.cell.registry) == 0


def test_an_orphan_is_cancelled_after_its_grace() -> None:
    simulation, gateway = make(Policy(orphan_grace_us=60_000))
    simulation.submit(gateway, [1, 2], 120)
    run(simulation, 2)
    simulation.lose_gateway(gateway)
    simulation.settle()
    assert counters(simulation)["requests_cancelled"] == 1
    simulation.check_clean()


def test_another_gateway_takes_an_orphan_over() -> None:
    simulation, gateway = make(Policy(orphan_grace_us=60_000))
    client = simulation.submit(gateway, [1, 2], 120)
    run(simulation, 5)
    simulation.lose_gateway(gateway)
    simulation.resubmit(client, simulation.add_gateway())
    done(simulation, client)
    assert counters(simulation)["requests_attached"] == 1


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
    run_until(simulation, lambda: simulation.closed)
    assert "without a release" in simulation.closed[0]
    counters(simulation)["protocol_errors"] = 0  # what this test provoked
    done(simulation, client)


def test_the_next_wakeup_is_the_next_deadline() -> None:
    simulation, gateway = make()
    simulation.submit(gateway, [1, 2], 60, deadline_us=123_456)
    effects = simulation.feed(Tick(simulation.now_us))
    assert effects.next_wakeup_us == simulation.now_us + 123_456


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
    return [client.got[0] for client in clients], sorted((k.hex(), 1) for k in worker.index._block_of), reports


@pytest.mark.parametrize("seed", range(5))
def test_one_k_step_report_equals_k_reports(seed: int) -> None:
    single, merged = play(1, seed), play(4, seed)
    assert single[:2] == merged[:2]
    assert merged[2] < single[2]
