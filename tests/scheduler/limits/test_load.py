"""The queue's load by pool, tenant and priority, and what of it is served before a newcomer."""

from __future__ import annotations

from array import array

from octavo_scheduler.limits.load import QueueLoad
from octavo_scheduler.request import Request


def waiting(tenant: str, gpu_us: float, priority: int = 0, pool: str = "", prompt: int = 10) -> Request:
    return Request(
        "r", tenant, array("I", range(prompt)), [], b"", -1, 100, 0, 0,
        priority=priority, pool=pool, claimed_kv_tokens=2 * prompt, claimed_gpu_us=gpu_us,
    )  # fmt: skip


def test_what_was_added_is_taken_out_whole() -> None:
    load = QueueLoad()
    requests = [waiting("a", 0.1 * number, priority=number % 2, pool="xy"[number % 2]) for number in range(10)]
    for request in requests:
        load.add(request)
    assert (load.total.requests, load.total.prompt_tokens, load.total.kv_tokens) == (10, 100, 200)
    assert load.requests_in({"x"}, set()) == 5 and load.requests_in({"x"}, {"a"}) == 10
    for request in requests:
        load.take(request)
    assert (load.total.requests, load.total.prompt_tokens, load.total.kv_tokens, load.total.gpu_us) == (0, 0, 0, 0.0)


def ahead(
    load: QueueLoad, order: str, tenant: str = "new", priority: int = 0, own_us: float = 10.0, **weights: float
) -> float:
    return load.ahead_us(order, "", tenant, priority, own_us, weights)


def test_by_arrival_all_are_ahead_and_by_priority_the_urgent_ones() -> None:
    load = QueueLoad()
    load.add(waiting("a", 100.0))
    load.add(waiting("b", 50.0, priority=5))
    assert ahead(load, "fcfs") == 150.0
    assert ahead(load, "priority", priority=1) == 50.0 and ahead(load, "priority", priority=6) == 0.0


def test_under_a_fair_order_a_flood_is_ahead_only_by_its_share() -> None:
    load = QueueLoad()
    for _ in range(100):
        load.add(waiting("flood", 100.0))
    assert ahead(load, "fair") == 10.0  # as much as the newcomer itself takes
    assert ahead(load, "slo-fair", flood=3.0) == 30.0 and ahead(load, "fair", new=2.0) == 5.0
    assert ahead(load, "fair", tenant="flood") == 10_000.0
    load.add(waiting("light", 4.0))
    assert ahead(load, "fair") == 14.0


def test_work_of_another_pool_is_not_ahead() -> None:
    load = QueueLoad()
    load.add(waiting("a", 100.0, pool="x"))
    load.add(waiting("a", 30.0))
    assert load.ahead_us("fcfs", "y", "a", 0, 1.0, {}) == 30.0 and load.ahead_us("fcfs", "x", "a", 0, 1.0, {}) == 130.0
