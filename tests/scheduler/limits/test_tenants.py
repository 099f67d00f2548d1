"""Token buckets, requests at once, and shares of the pool."""

from __future__ import annotations

from array import array

import pytest
from octavo_scheduler.beams.rule import BeamRule
from octavo_scheduler.beams.search import BeamSearch
from octavo_scheduler.events import WorkerJoined
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits.tenants import SWEEP_FIRST, Tenants, held_blocks
from octavo_scheduler.moves.pause import Pause
from octavo_scheduler.policy import SECOND_US, Policy
from octavo_scheduler.request import Choice, Phase, Request, Sequence

LIMITS = {"paid": {"rate_tokens_per_s": 100.0, "burst_tokens": 500.0, "concurrency": 2.0, "kv_share": 0.5}}


def request(tenant: str = "paid", prompt: int = 50, output: int = 0) -> Request:
    made = Request("r", tenant, array("I", range(prompt)), [], b"", -1, 100, 0, 0)
    made.choices = [Choice(made, 0, 1, array("I", range(output)))]
    made.work_done = bool(output)
    return made


def test_a_bucket_is_charged_at_the_door_and_corrected_at_the_end() -> None:
    tenants = Tenants(LIMITS)
    asked = request(output=10)
    tenants.open(asked, 300, 0)
    assert tenants.level("paid", 0) == 200.0 and tenants.level("paid", SECOND_US) == 300.0
    tenants.close(asked, SECOND_US)  # it took 60 and not 300
    assert tenants.level("paid", SECOND_US) == 500.0  # never above the burst
    costly = request(prompt=400, output=100)
    tenants.open(costly, 450, 2 * SECOND_US)
    tenants.close(costly, 2 * SECOND_US)
    assert tenants.level("paid", 2 * SECOND_US) == 0.0


def test_a_beam_search_takes_the_tokens_of_all_its_beams() -> None:
    """Not those of the best alone, which are all that its choices have said in the end."""
    tenants = Tenants(LIMITS)
    asked = request(output=10)
    asked.beams = BeamSearch(BeamRule(1), 4)
    asked.beams.steps = 12  # two more than the best hypothesis has
    tenants.open(asked, 400, 0)
    tenants.close(asked, 0)
    assert tenants.level("paid", 0) == 500.0 - 50 - 4 * 12


def test_a_request_without_work_is_given_back_whole_and_only_once() -> None:
    tenants = Tenants(LIMITS)
    dropped = request()
    tenants.open(dropped, 300, 0)
    tenants.close(dropped, 0)
    tenants.close(dropped, 0)
    assert tenants.level("paid", 0) == 500.0 and tenants.accounts["paid"].live == 0


def test_a_refusal_names_the_unit_and_when_the_bucket_has_refilled() -> None:
    tenants = Tenants(LIMITS)
    tenants.open(request(), 450, 0)
    assert tenants.refusal("paid", 50, 0) is None
    refused = tenants.refusal("paid", 250, 0)
    assert (
        refused is not None and refused.reason == "rejected-tenant-tokens" and refused.retry_after_us == 2 * SECOND_US
    )
    assert "rate_tokens_per_s 100" in refused.message
    # larger than the whole bucket: a full one is enough
    assert tenants.refusal("paid", 10_000, 5 * SECOND_US) is None


def test_concurrency_counts_what_is_under_way() -> None:
    tenants = Tenants(LIMITS)
    first, second = request(), request()
    tenants.open(first, 1, 0)
    tenants.open(second, 1, 0)
    refused = tenants.refusal("paid", 1, 0)
    assert (
        refused is not None and refused.reason == "rejected-tenant-concurrency" and "concurrency 2" in refused.message
    )
    tenants.close(first, 0)
    assert tenants.refusal("paid", 1, 0) is None


def test_a_tenant_without_a_name_has_the_limits_of_all_others_and_no_limit_leaves_no_account() -> None:
    tenants = Tenants({"*": {"concurrency": 1.0}, "free": {"kv_share": 1.0}})
    assert tenants.limits_of("anyone").concurrency == 1 and tenants.limits_of("free").concurrency == 0
    plain = Tenants({})
    asked = request("x")
    plain.open(asked, 10, 0)
    assert plain.names() == ["x"]
    plain.close(asked, 0)
    assert plain.accounts == {} and plain.refusal("x", 10**9, 0) is None


@pytest.mark.parametrize(("more", "over"), [(2, False), (3, True)])
def test_a_share_of_the_pool_bounds_what_a_tenant_holds(more: int, over: bool) -> None:
    tenants = Tenants(LIMITS)
    worker = Worker(WorkerJoined(0, 1, "w", 11, 4, 8, 1000), Policy())
    assert not tenants.over_share(worker, "paid", 100), "one request may always run"
    owner = request()
    choice = Choice(owner, 0, 1, array("I"), Phase.RUNNING)
    worker.sequences[1] = Sequence(1, 0, 1, 1, choice, worker.pool.take(3), 10, 9, 0, 100, 0)
    assert held_blocks(worker, "paid") == 3 and held_blocks(worker, "other") == 0
    assert tenants.over_share(worker, "paid", more) is over  # 5 of 10 at most
    assert not tenants.over_share(worker, "other", 100)


def test_what_is_kept_for_a_pause_counts_against_the_share() -> None:
    tenants = Tenants(LIMITS)
    worker = Worker(WorkerJoined(0, 1, "w", 11, 4, 8, 1000), Policy())
    worker.kept[Pause(request(), "t", 0, 0.0, 0, worker, [])] = worker.pool.take(4)
    assert held_blocks(worker, "paid") == 4 and held_blocks(worker, "other") == 0
    assert tenants.over_share(worker, "paid", 2) and not tenants.over_share(worker, "paid", 1)


def test_of_many_tenants_under_the_limits_of_all_others_only_those_that_differ_from_new_ones_are_kept() -> None:
    tenants = Tenants({"*": {"rate_tokens_per_s": 100.0, "burst_tokens": 500.0}, "named": {"concurrency": 2.0}})
    tenants.refused("named", 0)
    busy = request("busy")
    tenants.open(busy, 10, 0)
    for number in range(3 * SWEEP_FIRST):
        now_us = number * SECOND_US
        asked = request(f"t{number}", output=10)
        tenants.open(asked, 60, now_us)
        tenants.close(asked, now_us)
    assert len(tenants.accounts) <= 2 * SWEEP_FIRST
    assert tenants.accounts["busy"].live == 1 and tenants.accounts["named"].rejected == 1
    last = f"t{3 * SWEEP_FIRST - 1}"
    assert tenants.level(last, now_us) == 440.0, "who has used some of its bucket just now is remembered"


def test_who_is_in_debt_is_never_forgotten() -> None:
    tenants = Tenants({"*": {"rate_tokens_per_s": 1.0, "burst_tokens": 500.0}})
    for number in range(SWEEP_FIRST + 2):
        asked = request(f"t{number}", prompt=400, output=400)
        tenants.open(asked, 800, 0)
        tenants.close(asked, 0)
    assert len(tenants.accounts) == SWEEP_FIRST + 2 and tenants.refusal("t0", 1, 0) is not None
