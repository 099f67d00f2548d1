"""GetLive and GetTimeline: what people see of a cell, and what they must not see."""

from __future__ import annotations

import asyncio
import logging
from array import array

from octavo.v1 import scheduler_pb2 as pb
from octavo_scheduler import live_wire
from octavo_scheduler.blocks import BlockPool
from octavo_scheduler.driver import Driver
from octavo_scheduler.events import ChoiceStart, GatewayJoined, Reported, StoreJoined, Submitted, WorkerJoined
from octavo_scheduler.journal import MAX_FACTS, MAX_REQUESTS, Journal
from octavo_scheduler.observer import Observer
from octavo_scheduler.orders import Fact
from octavo_scheduler.policy import Policy

SECRET = 424242
TRACE = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def make_driver() -> tuple[Driver, list[int]]:
    """A driver on a hand-turned clock with one worker of 600 blocks."""
    clock = [1_000_000]
    log = logging.getLogger("test")

    async def build() -> Driver:
        return Driver(Policy(), Observer(None, log), log, clock_us=lambda: clock[0])

    driver = asyncio.run(build())
    driver.feed(GatewayJoined(clock[0], 1, "gw"))
    driver.feed(WorkerJoined(clock[0], 7, "w0", 601, 16, 4, 4096, block_bytes=1000))
    return driver, clock


def submit(driver: Driver, name: str, tenant: str = "default", prompt: int = 40, n: int = 1) -> None:
    driver.feed(
        Submitted(
            driver.clock_us(), 1, name, array("I", [SECRET] * prompt), 30, [ChoiceStart(i) for i in range(n)],
            tenant=tenant, traceparent=TRACE,
        )
    )  # fmt: skip


def step(driver: Driver, clock: list[int], computed: int, tokens: list[int], wall_us: int = 5000) -> None:
    clock[0] += 10_000
    driver.feed(
        Reported(clock[0], 7, step=1, steps=1, slots=[0], counts=[len(tokens)], tokens=array("I", tokens),
                 computed_len=[computed], wall_us=wall_us)
    )  # fmt: skip


def test_a_request_goes_through_its_phases_and_shows_no_token() -> None:
    driver, clock = make_driver()
    submit(driver, "r1")
    (running,) = live_wire.live(driver, 0).running
    assert (running.phase, running.prompt_tokens, running.trace_id) == ("prefill", 40, "ab" * 16)
    step(driver, clock, 40, [SECRET])
    answer = live_wire.live(driver, 0)
    (running,) = answer.running
    assert (running.phase, running.output_tokens, running.max_tokens) == ("decode", 1, 30)
    assert running.cost.prefill_device_us == 5000 and running.cost.kv_pool_byte_s > 0
    assert running.first_token_us == 10_000
    assert str(SECRET) not in str(answer)
    (worker,) = answer.workers
    assert worker.blocks_total == 600 and len(worker.block_map) == 300 and worker.blocks_per_cell == 2
    assert set(worker.block_map) == {0, 2}


def test_the_lists_are_bounded_and_the_counts_are_not() -> None:
    driver, _ = make_driver()
    for number in range(12):
        submit(driver, f"r{number}")
    answer = live_wire.live(driver, 3)
    assert (len(answer.running), len(answer.waiting)) == (3, 3)
    assert (answer.requests_running, answer.requests_waiting) == (4, 8)
    assert answer.waiting_prompt_tokens == 8 * 40


def test_a_tenant_with_thousands_hides_nobody() -> None:
    driver, _ = make_driver()
    for number in range(40):
        submit(driver, f"flood{number}", tenant="loud")
    submit(driver, "quiet1", tenant="quiet")
    waiting = live_wire.live(driver, 3).waiting
    assert [item.tenant for item in waiting] == ["loud", "loud", "loud", "quiet"]
    assert [item.request_id for item in waiting][3] == "quiet1"


def test_a_timeline_of_a_running_and_of_an_ended_request() -> None:
    driver, clock = make_driver()
    submit(driver, "r1")
    step(driver, clock, 40, [1])
    clock[0] += 50_000
    answer = live_wire.timeline(driver, "r1", "default")
    assert answer.found and [span.name for span in answer.spans] == ["queue", "prefill", "decode"]
    prefill, decode = answer.spans[1:]
    assert (prefill.start_us, prefill.end_us, decode.start_us, decode.end_us) == (0, 10_000, 10_000, 60_000)
    assert decode.running and not prefill.running
    assert not live_wire.timeline(driver, "r1", "stranger").found
    assert not live_wire.timeline(driver, "unknown", "default").found


def test_an_ended_request_is_remembered_with_its_cost() -> None:
    from octavo_scheduler.events import Finish, Released

    driver, clock = make_driver()
    submit(driver, "acme/r1", tenant="acme")
    step(driver, clock, 40, [1])
    clock[0] += 10_000
    seq = next(iter(driver.core.cell.fleet.workers[7].sequences))
    driver.feed(
        Reported(clock[0], 7, step=2, steps=1, slots=[0], counts=[1], tokens=array("I", [2]), computed_len=[41],
                 finishes=[Finish(0, seq, "stop", 2)], released=[Released(seq, 42, 41)], wall_us=3000)
    )  # fmt: skip
    clock[0] += 1_000_000
    answer = live_wire.live(driver, 0)
    assert not answer.running
    (ended,) = answer.recent
    assert (ended.outcome, ended.tenant, ended.output_tokens, ended.ended_us_ago) == ("finished", "acme", 2, 1_000_000)
    assert (ended.cost.prefill_device_us, ended.cost.decode_device_us) == (5000, 3000)
    timeline = live_wire.timeline(driver, "acme/r1", "acme")
    assert [span.name for span in timeline.spans] == ["queue", "prefill", "decode"]
    assert not any(span.running for span in timeline.spans)
    assert not live_wire.timeline(driver, "acme/r1", "default").found


def test_a_store_shows_the_tiers_that_it_told_of() -> None:
    from octavo_scheduler.connections import StoreConnection

    driver, _ = make_driver()

    async def connect() -> StoreConnection:
        return StoreConnection(5, "host0")

    connection = driver.stores["host0"] = asyncio.run(connect())
    driver.feed(StoreJoined(driver.clock_us(), "host0", 5))
    message = pb.StoreTiers()
    message.tiers.add(name="dram", capacity_bytes=100, used_bytes=40, keys=4, hits=3, misses=2)
    connection.tiers = live_wire.read_tiers(message)
    (store,) = live_wire.live(driver, 0).stores
    assert (store.store_id, store.tiers[0].name, store.tiers[0].used_bytes) == ("host0", "dram", 40)


def test_block_states() -> None:
    pool = BlockPool(7, lambda block: None)
    held, shared, moving, cached = pool.take(4)
    pool.share(shared)
    pool.hold_transfer(moving)
    pool.hold_index(cached)
    pool.drop(cached)
    states = pool.states()
    assert len(states) == 6
    assert [states[block - 1] for block in (held, shared, moving, cached)] == [2, 3, 4, 1]
    assert sorted(states) == [0, 0, 1, 2, 3, 4]


def fact(name: str, request_id: str) -> Fact:
    return Fact(name, "", 0, 1, {"octavo.request_id": request_id, "tenant": "default"})


def test_the_journal_is_bounded_and_begins_anew_for_a_used_id() -> None:
    journal = Journal()
    for number in range(MAX_REQUESTS + 5):
        journal.record([fact("queue", f"r{number}"), fact("request_end", f"r{number}")])
    assert journal.facts("r0") == [] and journal.end_of("r0") is None
    latest = [str(item.attributes["octavo.request_id"]) for item in journal.ended(2)]
    assert latest == [f"r{MAX_REQUESTS + 4}", f"r{MAX_REQUESTS + 3}"]
    journal.record([fact("preempted", "busy")] * (MAX_FACTS + 9))
    assert len(journal.facts("busy")) == MAX_FACTS
    journal.record([fact("queue", "r900")])
    assert [item.name for item in journal.facts("r900")] == ["queue"] and journal.end_of("r900") is None
