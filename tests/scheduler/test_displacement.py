"""Priority inversion: a request of higher priority waits for blocks that lower ones hold."""

from __future__ import annotations

import pytest
from octavo_scheduler.admission import MAX_PREEMPTIONS
from octavo_scheduler.policy import Policy
from octavo_scheduler.preemption import may_displace

from tests.scheduler.policies.scenes import policy_of, request
from tests.scheduler.scenes import counters, done, make, run, run_until


def scene(order: str, **options: object):  # type: ignore[no-untyped-def]
    """A pool of 32 blocks of 4, full of two long requests of priority 0: one has computed much, one little."""
    policy = Policy(order=order, default_output_tokens=4, max_num_seqs=4, **options)  # type: ignore[arg-type]
    simulation, gateway = make(policy)
    old = simulation.submit(gateway, list(range(60)), 20, cache_off=True)
    run(simulation, 12)
    new = simulation.submit(gateway, list(range(40)), 20, cache_off=True)
    run(simulation, 2)
    return simulation, gateway, old, new


@pytest.mark.parametrize("order", ["priority", "slo"])
def test_the_cheapest_of_lower_priority_gives_way(order: str) -> None:
    simulation, gateway, old, new = scene(order)
    urgent = simulation.submit(gateway, list(range(30)), 8, cache_off=True, priority=5)
    run_until(simulation, lambda: urgent.got[0])
    assert counters(simulation)["priority_preemptions"] == 1
    assert counters(simulation)["bring_back_predicted_us"] > 0
    assert not old.outcome and not new.outcome and len(old.got[0]) >= len(new.got[0])
    done(simulation, old, new, urgent)
    times = {client: client.times.preemptions for client in (old, new, urgent)}  # type: ignore[attr-defined]
    assert times == {old: 0, new: 1, urgent: 0}


@pytest.mark.parametrize("order", ["fcfs", "sjf"])
def test_policies_that_do_not_go_by_priority_stop_nobody(order: str) -> None:
    simulation, gateway, old, new = scene(order)
    urgent = simulation.submit(gateway, list(range(30)), 8, cache_off=True, priority=5)
    run(simulation, 3)
    assert counters(simulation)["priority_preemptions"] == 0
    done(simulation, old, new, urgent)


def test_equal_priority_stops_nobody() -> None:
    simulation, gateway, old, new = scene("priority")
    other = simulation.submit(gateway, list(range(30)), 8, cache_off=True)
    run(simulation, 3)
    assert counters(simulation)["priority_preemptions"] == 0
    done(simulation, old, new, other)


def test_slots_are_room_too() -> None:
    simulation, gateway = make(Policy(order="priority", max_num_seqs=2))
    running = [simulation.submit(gateway, [1, 2, number], 20, cache_off=True) for number in range(2)]
    run(simulation, 2)
    urgent = simulation.submit(gateway, [7, 8], 4, cache_off=True, priority=1)
    run_until(simulation, lambda: urgent.outcome)
    assert not any(client.outcome for client in running)
    done(simulation, urgent, *running)


def test_who_may_displace_whom() -> None:
    urgent, own = request("urgent", tenant="a", priority=2), request("own", tenant="a")
    other = request("other", tenant="b")
    spared = request("spared", tenant="a")
    spared.choices[0].preemptions = MAX_PREEMPTIONS
    expected = {
        "fcfs": (False, False),
        "sjf": (False, False),
        "priority": (True, True),
        "slo": (True, True),
        "fair": (True, False),
        "slo-fair": (True, False),
    }
    for order, (same, foreign) in expected.items():
        policy = policy_of(order)
        assert may_displace(urgent, own, policy) == same and may_displace(urgent, other, policy) == foreign, order
        assert not may_displace(urgent, spared, policy) and not may_displace(own, urgent, policy)
    classes = {"default": {}, "chat": {"policy": "priority"}}
    policy = policy_of("fcfs", slo_classes=classes)
    assert may_displace(request("r", slo_class="chat", priority=1), other, policy)


def test_nothing_is_stopped_when_it_would_not_be_enough() -> None:
    simulation, gateway = make(Policy(order="priority", default_output_tokens=4, max_num_seqs=4))
    high = simulation.submit(gateway, list(range(90)), 8, cache_off=True, priority=9)
    low = simulation.submit(gateway, list(range(8)), 20, cache_off=True)
    run(simulation, 2)
    middle = simulation.submit(gateway, list(range(60)), 8, cache_off=True, priority=5)
    run(simulation, 2)
    assert counters(simulation)["priority_preemptions"] == 0
    done(simulation, high, low, middle)
