"""Workers of one host that slow each other down."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from octavo_scheduler.events import WorkerJoined
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves.neighbours import ENOUGH, MOST, MOST_HOSTS, Neighbours
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellRun
from octavo_scheduler.simulate.hardware import given_models
from octavo_scheduler.simulate.workload import Row


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


def goodput(roles: tuple[str, ...], rate: float, prompt_tokens: int) -> float:
    """Of 80 requests on two simulated CPU workers: those within 1 s to the first token and 200 ms between tokens."""
    draw, at_s = Random(7), 0.0
    rows: list[Row] = []
    for number in range(80):
        at_s += draw.expovariate(rate)
        rows.append(Row(int(at_s * 1e6), ((f"own{number}", round(prompt_tokens * draw.uniform(0.6, 1.4))),), 32))
    classes = {"default": {"ttft_ms": 1000.0, "itl_p99_ms": 200.0}}
    hardware = replace(given_models()["this-cpu"], host_blocks=10_000)
    run = CellRun(Policy(slo_classes=classes), hardware, 2, list(enumerate(rows)), 1_000_000, roles=roles)
    return sum(tally.meets(1000.0, 200.0) for tally in run.run().tallies) / 80


@pytest.mark.parametrize("prompt_tokens", [100, 512])
def test_a_hybrid_of_two_is_as_good_as_two_for_both(prompt_tokens: int) -> None:
    """And better than one of each role, where handing over gains nothing."""
    both, hybrid, apart = (
        goodput(roles, 1.3, prompt_tokens) for roles in (("both", "both"), ("prefill", "both"), ("prefill", "decode"))
    )
    assert hybrid >= 0.95 * max(both, apart)


def test_hosts_that_come_and_go_are_forgotten() -> None:
    neighbours = Neighbours()
    for number in range(MOST_HOSTS + 10):
        worker = worker_of(number, f"host{number}")
        neighbours.observe(worker, [worker], 1.0)
    assert len(neighbours._of_host) == MOST_HOSTS
