"""The door: deadlines, queue limits by unit, tenants, and what overload makes of a request; on a cell with chaos workers."""

from __future__ import annotations

from typing import Any

import pytest
from octavo_scheduler.policy import SECOND_US, Policy

from tests.scheduler.chaos import expected_output
from tests.scheduler.harness import Client, Simulation
from tests.scheduler.scenes import counters, done, make, run, run_until


def fill(simulation: Simulation, gateway: int, count: int = 12, tokens: int = 20, **options: Any) -> list[Client]:
    """Requests that end, so that lengths are known, and then a queue of as many."""
    for number in range(10):
        done(simulation, simulation.submit(gateway, [1, 2, number], tokens))
    return [simulation.submit(gateway, [3, 4, number], tokens, **options) for number in range(count)]


LIMITS = {
    "rejected-queue-requests": {"max_waiting_requests": 3},
    "rejected-queue-prompt-tokens": {"max_waiting_prompt_tokens": 10},
    "rejected-queue-kv-tokens": {"max_waiting_kv_tokens": 80},
    "rejected-queue-gpu-time": {"max_waiting_gpu_us": 150_000},
}


@pytest.mark.parametrize(("reason", "limit"), LIMITS.items())
def test_each_queue_limit_refuses_in_its_own_unit(reason: str, limit: dict[str, int]) -> None:
    simulation, gateway = make(Policy(max_num_seqs=1, default_output_tokens=20, **limit))
    clients = [simulation.submit(gateway, [3, 4, number], 20) for number in range(9)]
    run(simulation)
    refused = [client for client in clients if client.outcome]
    assert refused and {client.reason for client in refused} == {reason}
    (name,) = limit
    assert name.replace("_us", "_s") in refused[0].message and refused[0].retry_after_us > 0
    simulation.settle()
    assert sum(client.outcome == "finished" for client in clients) == 9 - len(refused) >= 2
    simulation.check_clean()


def test_who_waits_alone_is_not_refused_for_its_size() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1, max_waiting_kv_tokens=4, max_waiting_gpu_us=1))
    client = simulation.submit(gateway, [1, 2, 3, 4, 5, 6], 20)
    done(simulation, client)


def test_a_retry_hint_follows_the_drain_rate() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1, max_waiting_requests=3))
    for _ in range(12):
        run_until(simulation, lambda: len(simulation.core.cell.queue) < 3)
        simulation.submit(gateway, [1, 2], 80)
    while len(simulation.core.cell.queue) < 3:
        simulation.submit(gateway, [1, 2], 80)
    refused = simulation.submit(gateway, [1, 2], 80)
    # one of 80 tokens leaves every 80 iterations of 3 ms
    assert refused.retry_after_us == pytest.approx(80 * 3000, rel=0.3)


def test_a_deadline_that_the_queue_makes_impossible_is_refused_at_once() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1))
    fill(simulation, gateway)
    late = simulation.submit(gateway, [5, 6], 20, deadline_us=150_000)
    assert (late.outcome, late.reason) == ("deadline", "rejected-deadline") and "ms of queue" in late.message
    assert late.retry_after_us > SECOND_US // 2
    in_time = simulation.submit(gateway, [5, 6], 20, deadline_us=20 * SECOND_US)
    assert not in_time.outcome
    simulation.settle()
    assert in_time.outcome == "finished"
    # after the time that it was told, the same request is taken and served
    again = simulation.submit(gateway, [5, 6], 20, deadline_us=150_000)
    done(simulation, again, in_time)


def test_a_deadline_that_the_request_alone_cannot_meet_is_refused_without_a_hint() -> None:
    simulation, gateway = make()
    fill(simulation, gateway, count=0, tokens=60)
    late = simulation.submit(gateway, [5, 6], 60, deadline_us=30_000)
    assert late.reason == "rejected-deadline" and late.retry_after_us == 0
    simulation.check_clean()


def test_what_waits_is_dropped_when_it_is_hopeless_and_never_prefilled() -> None:
    """Answers were short so far, so the door lets it in; then the one that runs turns out long."""
    simulation, gateway = make(Policy(max_num_seqs=1))
    fill(simulation, gateway, count=0, tokens=3)
    blocking = simulation.submit(gateway, [1, 2], 100)
    doomed = simulation.submit(gateway, list(range(30)), 10, deadline_us=200_000)
    deadline_us = simulation.now_us + 200_000
    computed = simulation.links[0].worker.computed_tokens
    run_until(simulation, lambda: doomed.outcome)
    assert (doomed.outcome, doomed.reason) == ("deadline", "rejected-hopeless")
    assert deadline_us - 30_000 < simulation.now_us < deadline_us
    assert not doomed.got[0] and simulation.links[0].worker.computed_tokens > computed
    done(simulation, blocking)


def test_a_preempted_request_that_is_hopeless_is_evicted() -> None:
    simulation, gateway = make(Policy(default_output_tokens=1, grant_ahead_us=3000), num_blocks=13)
    first = simulation.submit(gateway, [1, 2], 40)
    second = simulation.submit(gateway, [3, 4], 40, deadline_us=140_000)
    run_until(simulation, lambda: counters(simulation)["preemptions"] and second.outcome)
    assert (second.outcome, second.reason) in (("deadline", "evicted-hopeless"), ("deadline", "evicted-deadline"))
    assert second.got[0]
    done(simulation, first)


def test_a_deadline_that_passes_in_decode_has_an_outcome_of_its_own() -> None:
    simulation, gateway = make()
    client = simulation.submit(gateway, [1, 2], 100, deadline_us=50_000)
    run_until(simulation, lambda: client.outcome)
    assert (client.outcome, client.reason) == ("deadline", "evicted-deadline")
    assert 0 < len(client.got[0]) < 100 and not client.ended
    simulation.settle()
    simulation.check_clean()


def test_a_class_can_bring_a_deadline() -> None:
    simulation, gateway = make(Policy(slo_classes={"default": {}, "quick": {"deadline_ms": 50.0}}))
    client = simulation.submit(gateway, [1, 2], 100, slo_class="quick")
    run_until(simulation, lambda: client.outcome)
    assert client.reason == "evicted-deadline"


SHED = {"default": {"ttft_ms": 100.0, "on_overload": "reject"}, "patient": {"ttft_ms": 100.0}}


def test_a_class_that_rejects_sheds_what_would_miss_its_target() -> None:
    simulation, gateway = make(Policy(max_num_seqs=1, slo_classes=SHED))
    clients = fill(simulation, gateway)
    shed = [client for client in clients if client.outcome]
    assert {client.reason for client in shed} == {"rejected-overload"} and 5 < len(shed) < 12
    assert all(client.retry_after_us >= 100_000 for client in shed) and "SLO class default" in shed[0].message
    patient = simulation.submit(gateway, [5, 6], 20, slo_class="patient")
    assert not patient.outcome
    simulation.settle()
    assert patient.outcome == "finished"


def test_an_idle_cell_is_no_overload_however_long_the_prompt() -> None:
    simulation, gateway = make(Policy(slo_classes={"default": {"ttft_ms": 0.001, "on_overload": "reject"}}))
    done(simulation, simulation.submit(gateway, list(range(40)), 3))


def test_a_class_that_degrades_takes_fewer_tokens_and_says_so() -> None:
    classes = {"default": {"ttft_ms": 300.0, "on_overload": "degrade", "degrade_max_tokens": 5.0}}
    simulation, gateway = make(Policy(max_num_seqs=1, slo_classes=classes))
    clients = fill(simulation, gateway)
    run(simulation)
    less = [client for client in clients if client.degraded]
    assert less and {(client.degraded, client.agreed_tokens) for client in less} == {("max_tokens=5", 5)}
    assert {client.agreed_tokens for client in clients if not client.degraded and not client.outcome} == {20}
    assert counters(simulation)["requests_degraded"] == len(less)  # the first ones ran alone
    simulation.settle()
    assert all(len(client.got[0]) == 5 for client in less if client.outcome == "finished")
    assert {client.reason for client in clients} <= {"", "rejected-overload"}


def pools(classes: dict[str, dict[str, float | str]], fast_blocks: int = 33) -> tuple[Simulation, int]:
    simulation, gateway = make(Policy(max_num_seqs=1, slo_classes=classes), workers=2)
    for link, label, blocks in zip(simulation.links, ("fast", "cheap"), (fast_blocks, 33), strict=True):
        link.worker.pool_labels, link.worker.num_blocks = [label], blocks
        simulation.disconnect(link)
    run(simulation, 110)
    assert len(simulation.core.cell.fleet.workers) == 2
    return simulation, gateway


def test_a_degraded_request_runs_in_the_cheaper_pool() -> None:
    classes = {"default": {"ttft_ms": 60.0, "pool": "fast", "on_overload": "degrade", "degrade_pool": "cheap"}}
    simulation, gateway = pools(classes)
    fast, cheap = (link.worker for link in simulation.links)
    one = simulation.submit(gateway, [1, 2], 30)
    run(simulation, 3)
    two = simulation.submit(gateway, [3, 4], 30)
    run(simulation, 3)
    assert (one.degraded, two.degraded) == ("", "pool=cheap") and fast.sequences and cheap.sequences
    done(simulation, one, two)


def test_a_pool_without_workers_refuses_and_a_full_pool_holds_back_only_its_own() -> None:
    classes = {"default": {}, "fast": {"pool": "fast"}, "cheap": {"pool": "cheap"}, "none": {"pool": "missing"}}
    simulation, gateway = pools(classes)
    away = simulation.submit(gateway, [1], 5, slo_class="none")
    assert away.reason == "rejected-not-ready" and "'missing'" in away.message
    fast = [simulation.submit(gateway, [1, number], 30, slo_class="fast") for number in range(5)]
    cheap = simulation.submit(gateway, [2, 2], 5, slo_class="cheap")
    run_until(simulation, lambda: cheap.outcome)
    assert cheap.outcome == "finished" and not all(client.outcome for client in fast)
    done(simulation, *fast)


def test_what_no_worker_of_its_pool_can_hold_is_refused_though_another_pool_could() -> None:
    classes = {"default": {}, "fast": {"pool": "fast"}, "cheap": {"pool": "cheap"}}
    simulation, gateway = pools(classes, fast_blocks=17)
    never = simulation.submit(gateway, [1] * 20, 80, slo_class="fast")
    assert never.reason == "rejected-never-fits" and "pool 'fast' has 16" in never.message
    done(simulation, simulation.submit(gateway, [1] * 20, 80, slo_class="cheap"))


def test_kept_blocks_of_a_pause_give_way_to_their_own_tenant_at_its_share() -> None:
    policy = Policy(order="fcfs", pause="keep", tenant_limits={"a": {"kv_share": 0.5}}, default_output_tokens=4)
    simulation, gateway = make(policy, num_blocks=41, max_seqs=8)
    turn = simulation.submit(gateway, list(range(60)), 4, tenant="a", pause=("t", 60_000_000))
    run_until(simulation, lambda: counters(simulation)["pauses_keep"])
    assert turn.outcome == "finished"
    # without the paused blocks a third of the pool is free to its share, with them it is exhausted
    after = [simulation.submit(gateway, [number] * 30, 8, tenant="a") for number in (1, 2)]
    run_until(simulation, lambda: all(client.outcome for client in after))
    assert counters(simulation)["pauses_demoted"] == 1
    simulation.settle()


def test_one_tenants_long_prompts_cannot_hold_the_pool() -> None:
    policy = Policy(order="fcfs", tenant_limits={"long": {"kv_share": 0.5}}, default_output_tokens=4)
    simulation, gateway = make(policy, num_blocks=41, max_seqs=8)
    long = [
        simulation.submit(gateway, [number] * 36, 40, tenant="long") for number in range(6)
    ]  # 10 blocks each, 19 in the end
    run(simulation, 3)
    short = simulation.submit(gateway, [1, 2, 3], 4, tenant="short")
    run_until(simulation, lambda: short.outcome)
    assert not any(client.outcome for client in long)
    done(simulation, short, *long)


def test_tenant_limits_refuse_by_name_and_others_are_served() -> None:
    limits = {"a": {"rate_tokens_per_s": 10.0, "burst_tokens": 40.0}, "b": {"concurrency": 1.0}}
    simulation, gateway = make(Policy(tenant_limits=limits, default_output_tokens=20))
    first = simulation.submit(gateway, [1] * 10, 20, tenant="a")
    over = simulation.submit(gateway, [2] * 10, 20, tenant="a")
    assert over.reason == "rejected-tenant-tokens" and over.retry_after_us >= SECOND_US
    one, two = (simulation.submit(gateway, [3, number], 5, tenant="b") for number in range(2))
    assert two.reason == "rejected-tenant-concurrency"
    other = simulation.submit(gateway, [4], 5, tenant="c")
    done(simulation, first, one, other)
    assert simulation.core.cell.tenants.accounts["a"].rejected == 1


def test_a_resubmit_of_a_stream_that_has_begun_is_never_refused_nor_degraded() -> None:
    classes = {"default": {"ttft_ms": 1.0, "on_overload": "reject"}}
    limits = {"*": {"concurrency": 1.0}}
    policy = Policy(max_num_seqs=1, slo_classes=classes, tenant_limits=limits, recovery_grace_us=0)
    simulation, gateway = make(policy)
    blocking = simulation.submit(gateway, [5, 6], 60)
    refused = simulation.submit(gateway, [5, 7], 60)
    assert refused.reason == "rejected-tenant-concurrency"
    known, _ = expected_output(77, 2, 40, [])
    begun = Client("begun", gateway, [1, 2], 40, [77], [], got=[known[:5]])
    simulation.clients.append(begun)
    simulation.resubmit(begun, gateway)
    simulation.settle()
    assert (begun.outcome, blocking.outcome) == ("finished", "finished")
