"""Workers of one host that slow each other down."""

from __future__ import annotations

import pytest
from octavo_scheduler.events import WorkerJoined
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves.neighbours import ENOUGH, MOST, Neighbours
from octavo_scheduler.policy import Policy


def worker_of(epoch: int, store: str = "host") -> Worker:
    return Worker(WorkerJoined(0, epoch, f"w{epoch}", 65, 16, 8, 1024, store_id=store), Policy())


def seen(beside: float, alone: float, times: int = 40) -> tuple[Neighbours, Worker, Worker]:
    """Decode steps of one of two workers, by turns beside a prefill of the other and without."""
    neighbours, one, other = Neighbours(), worker_of(1), worker_of(2)
    for number in range(times):
        other.backlog = 100 * (number % 2)
        neighbours.observe(one, [one, other], beside if other.backlog else alone)
    return neighbours, one, other


def test_what_a_prefill_takes_from_the_other_is_learned() -> None:
    neighbours, one, other = seen(1.6, 0.8)
    assert neighbours.taken_share(other, one) == neighbours.taken_share(one, other) == pytest.approx(0.5)


def test_workers_with_cores_of_their_own_take_nothing() -> None:
    neighbours, one, other = seen(1.0, 1.0)
    assert neighbours.taken_share(other, one) == 0
    neighbours, one, other = seen(0.9, 1.1)
    assert neighbours.taken_share(other, one) == 0


def test_too_little_is_no_news_and_other_hosts_share_nothing() -> None:
    neighbours, one, other = seen(2.0, 1.0, 2 * ENOUGH - 2)
    assert neighbours.taken_share(other, one) == 0
    neighbours, one, other = seen(2.0, 1.0)
    assert neighbours.taken_share(worker_of(3, "elsewhere"), one) == 0


def test_one_stall_is_no_rule() -> None:
    neighbours, one, other = seen(100.0, 0.01)
    assert neighbours.taken_share(other, one) <= MOST
