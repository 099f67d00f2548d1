"""Least slack first; what is lost waits behind, and still comes up."""

from __future__ import annotations

from octavo_scheduler.policies.slo_line import LOST_SHARE
from octavo_scheduler.policy import Policy

from tests.scheduler.policies.scenes import names, policy_of, queue_of, request, served

SECOND_US = 1_000_000
CLASSES = {
    "default": {"ttft_ms": 1000.0, "itl_p99_ms": 200.0},
    "patient": {"ttft_ms": 5000.0},
    "batch": {},
}


def slo() -> Policy:
    return policy_of("slo", slo_classes=CLASSES)


def test_the_latest_possible_start_decides_not_the_arrival() -> None:
    queue = queue_of(slo())
    queue.push(request("patient", arrival_us=0, slo_class="patient"))
    queue.push(request("batch", arrival_us=0, slo_class="batch"))
    queue.push(request("short", arrival_us=100_000, prompt=10))
    queue.push(request("long", arrival_us=100_000, prompt=5000))  # half a second of prefill: it must begin sooner
    assert names(queue) == ["long", "short", "patient", "batch"]


def test_a_clients_deadline_that_is_nearer_than_the_target_counts() -> None:
    queue = queue_of(slo())
    queue.push(request("plain", arrival_us=0))
    queue.push(request("hurried", arrival_us=500_000, deadline_us=700_000))
    assert names(queue) == ["hurried", "plain"]


def test_what_can_no_longer_be_saved_goes_behind_what_can() -> None:
    queue = queue_of(slo())
    queue.push(request("old", arrival_us=0))
    queue.push(request("new", arrival_us=900_000))
    assert names(queue, 900_000) == ["old", "new"]
    assert names(queue, SECOND_US) == ["new", "old"]  # its prefill would end after its second


def test_a_class_without_a_target_is_never_lost_and_ages_past_newcomers() -> None:
    queue = queue_of(slo())
    queue.push(request("batch", slo_class="batch"))
    queue.push(request("new", arrival_us=100 * SECOND_US))
    assert names(queue, 100 * SECOND_US) == ["batch", "new"]


def test_one_start_in_eight_is_a_lost_ones() -> None:
    queue = queue_of(slo())
    for number in range(3):
        queue.push(request(f"lost{number}", arrival_us=number))
    now_us = 10 * SECOND_US
    order = []
    for number in range(3 * LOST_SHARE):
        queue.push(request(f"new{number}", arrival_us=now_us))
        order.append(served(queue, now_us))
    assert [at for at, name in enumerate(order) if name.startswith("lost")] == [
        LOST_SHARE - 1,
        2 * LOST_SHARE - 1,
        3 * LOST_SHARE - 1,
    ]
    assert [name for name in order if name.startswith("lost")] == ["lost0", "lost1", "lost2"]


def test_a_stream_that_began_is_due_at_its_next_token_and_never_given_up() -> None:
    queue = queue_of(slo())
    begun = request("begun", arrival_us=0, first_token_us=50_000, waiting_since_us=60 * SECOND_US)
    queue.push(request("new", arrival_us=60 * SECOND_US))
    queue.push(begun)
    assert names(queue, 60 * SECOND_US) == ["begun", "new"]
    assert names(queue, 90 * SECOND_US) == ["begun", "new"] and not begun.lost


def test_a_lost_request_that_comes_back_is_judged_anew() -> None:
    queue = queue_of(slo())
    old = request("old", arrival_us=0)
    queue.push(old)
    assert names(queue, 2 * SECOND_US) == ["old"] and old.lost
    queue.remove(old)
    old.first_token_us, old.waiting_since_us = 0, 2 * SECOND_US  # it ran, and was preempted
    queue.push(old)
    queue.push(request("new", arrival_us=2 * SECOND_US))
    assert names(queue, 2 * SECOND_US) == ["old", "new"] and not old.lost


def test_priority_goes_before_slack() -> None:
    queue = queue_of(slo())
    queue.push(request("tight", arrival_us=0))
    queue.push(request("urgent", arrival_us=0, priority=1, slo_class="patient"))
    assert names(queue) == ["urgent", "tight"]


def test_whoever_passes_a_head_that_waits_for_other_workers_makes_no_lost_one_sooner() -> None:
    queue = queue_of(slo())
    queue.push(request("lost", arrival_us=0))
    queue.push(request("head", arrival_us=2 * SECOND_US))
    for number in range(2 * LOST_SHARE):
        passer = request(f"passer{number}", arrival_us=3 * SECOND_US)
        queue.push(passer)
        assert names(queue, 2 * SECOND_US)[0] == "head"
        passer.passing = True
        queue.remove(passer)
