"""Each policy's order, alone: who waits before whom."""

from __future__ import annotations

import random
import sys

import pytest
from octavo_scheduler.policies.orders import SJF_STRETCH

from tests.scheduler.policies.scenes import names, policy_of, queue_of, request, served

ORDERS = ("fcfs", "priority", "sjf", "slo", "fair", "slo-fair")


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fcfs", "again early late"),
        ("priority", "again late early"),
        ("slo", "again late early"),
        ("fair", "again early late"),
        ("slo-fair", "again late early"),
    ],
)
def test_resubmits_go_first_then_the_policy_decides(order: str, expected: str) -> None:
    queue = queue_of(policy_of(order))
    queue.push(request("late", arrival_us=5, priority=9))
    queue.push(request("early", arrival_us=1))
    queue.push(request("again", arrival_us=9, resubmitted=True))
    assert names(queue) == expected.split()


def test_an_unknown_policy_is_no_policy() -> None:
    with pytest.raises(KeyError):
        queue_of(policy_of("lifo"))


def test_the_shortest_job_goes_first_among_those_that_come_together() -> None:
    queue = queue_of(policy_of("sjf"))
    for name, prompt, output in (("long", 2000, 16), ("short", 10, 16), ("talker", 10, 200), ("middle", 100, 16)):
        queue.push(request(name, prompt=prompt, max_tokens=output))
    # talker: its tenant's history says 16 tokens, whatever it may ask for
    assert names(queue) == ["short", "talker", "middle", "long"]


def test_a_long_job_is_overtaken_for_a_bounded_time_only() -> None:
    queue = queue_of(policy_of("sjf"))
    queue.push(request("long", arrival_us=0, prompt=2000))
    # 2000 tokens and 16 steps take about 217 ms, a short job 18 ms
    queue.push(request("soon", arrival_us=int(SJF_STRETCH * 190_000)))
    queue.push(request("later", arrival_us=int(SJF_STRETCH * 210_000)))
    assert names(queue) == ["soon", "long", "later"]


@pytest.mark.parametrize("order", ORDERS)
def test_every_request_comes_up_once_whatever_joins_and_leaves(order: str) -> None:
    draw = random.Random(3)
    queue = queue_of(policy_of(order))
    waiting: dict[str, object] = {}
    came: list[str] = []
    for number in range(2000):
        now_us = number * 1000
        move = draw.random()
        if move < 0.5:
            name = f"r{number}"
            waiting[name] = made = request(
                name,
                arrival_us=now_us,
                prompt=draw.choice((4, 100, 3000)),
                tenant=draw.choice("abc"),
                priority=draw.choice((0, 0, 2)),
                resubmitted=draw.random() < 0.02,
            )
            queue.push(made)
        elif move < 0.6 and waiting:
            queue.remove(waiting.pop(draw.choice(list(waiting))))  # type: ignore[arg-type]
        elif move < 0.7 and waiting:  # preempted at once: it comes back with what it had
            gone = waiting[draw.choice(list(waiting))]
            queue.remove(gone)  # type: ignore[arg-type]
            queue.push(gone)  # type: ignore[arg-type]
        elif move < 0.8:
            with queue.in_turn(now_us) as turn:
                seen = [item.request_id for item, _ in zip(turn, range(draw.randint(0, 5)), strict=False)]
            assert len(seen) == len(set(seen))
        elif waiting:
            name = served(queue, now_us, draw.choice((100.0, 5000.0)))
            del waiting[name]
            came.append(name)
        assert len(queue) == len(waiting) == len(list(queue))
        if number % 50 == 0:
            assert sorted(names(queue, now_us)) == sorted(waiting)
    while len(queue):
        came.append(served(queue, 10**7, 10.0))
    assert len(came) == len(set(came)) and queue.peek(0) is None and queue.prompt_tokens == 0


def test_a_request_that_is_passed_over_keeps_its_place() -> None:
    for order in ORDERS:
        queue = queue_of(policy_of(order))
        for number in range(5):
            queue.push(request(f"r{number}", arrival_us=number, tenant=f"t{number % 2}"))
        before = names(queue)
        with queue.in_turn(0) as turn:
            for at, item in enumerate(turn):
                if at == 2:
                    queue.remove(item)
                    break
        assert names(queue) == before[:2] + before[3:], order


@pytest.mark.parametrize("order", ["fcfs", "priority", "sjf", "slo", "fair", "slo-fair"])
def test_a_line_in_which_nobody_waits_any_more_holds_no_request(order: str) -> None:
    """Prompts of a tenant that asked for much and then for nothing for days would stay in memory."""
    queue = queue_of(policy_of(order))
    waiting = [request(f"r{number}", arrival_us=number) for number in range(50)]
    before = [sys.getrefcount(item) for item in waiting]
    for item in waiting:
        queue.push(item)
    for _ in range(len(waiting)):
        served(queue, 60)
    del item
    assert not len(queue)
    assert [sys.getrefcount(item) for item in waiting] == before
