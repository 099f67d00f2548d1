"""A cell in simulated time: latencies that follow from the cost model, sharing, preemption, conversations, stores."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from octavo.step import Step, compose
from octavo_scheduler.events import Event, Reported, Submitted, Tick
from octavo_scheduler.orders import Effects, Load
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import UNSENT, CellRun, SimulationBroke
from octavo_scheduler.simulate.worker import SimulatedWorker
from octavo_scheduler.simulate.workload import Row

from tests.scheduler.simulate.scenes import ROUND, row, run


def test_one_request_takes_what_the_cost_model_says() -> None:
    (tally,) = run([row(0, prompt=32, output=4)]).tallies
    # one prefill step of 32 tokens, then three decode steps of 11 ms
    assert tally.ttft_us == 10_000 + 32 * 100
    assert tally.itl_max_us == tally.itl_p99_us == 11_000
    assert tally.e2e_us == tally.ttft_us + 3 * 11_000
    assert (tally.outcome, tally.tokens, tally.preemptions, tally.cached_tokens) == ("finished", 4, 0, 0)


def test_links_and_edges_are_in_the_latency() -> None:
    hardware = replace(ROUND, link_us=500, front_us=2000, back_us=300)
    (tally,) = run([row(0)], hardware).tallies
    # submitted at the core after the front; admit down, report up; back to the client
    assert tally.ttft_us == 2000 + 500 + 13_200 + 500 + 300
    assert tally.itl_max_us == 11_000


def test_a_long_prompt_is_chunked_beside_decodes() -> None:
    policy = Policy(max_num_batched_tokens=64)
    first, second = run([row(0, output=40), row(20, prompt=640)], policy=policy).tallies
    # 640 tokens beside one decode: 63 a step, so eleven steps
    steps = -(-640 // 63)
    assert 10 <= steps <= 11
    assert second.ttft_us >= steps * (10_000 + 1000) + 640 * 100
    assert first.itl_max_us == 10_000 + 1000 + 63 * 100


def test_a_worker_may_still_report_who_has_ended_meanwhile() -> None:
    """A step of seconds outlasts the deadline, and the collect after it that tells the end."""
    late = row(0, prompt=300, output=50, name="late", deadline_us=8_000_000)
    slow = replace(ROUND, prefill_token_us=10_000.0)
    long = [row(100 + 10 * i, prompt=200, output=5, name=f"long{i}") for i in range(4)]
    tallies = run([late, *long], slow).tallies
    assert tallies[0].outcome == "deadline" and 0 < tallies[0].tokens < 50
    assert {tally.outcome for tally in tallies[1:]} == {"finished"}
    assert all(tally.tokens == 5 for tally in tallies[1:])


def test_a_shared_prefix_is_computed_once() -> None:
    rows = [row(0, prompt=160, name="system"), row(500, prompt=160, name="system"), row(1000, prompt=160, name="other")]
    first, second, third = run(rows).tallies
    assert (first.cached_tokens, third.cached_tokens) == (0, 0)
    assert second.cached_tokens == 144  # all full blocks but the one that holds the last token
    assert second.ttft_us < first.ttft_us == third.ttft_us


def test_requests_queue_when_the_slots_are_taken() -> None:
    result = run([row(0, output=20, name=f"p{i}") for i in range(3)], policy=Policy(max_num_seqs=1))
    first, second, third = result.tallies
    assert first.queue_us == 0 < second.queue_us < third.queue_us
    assert max(sample.waiting for sample in result.samples) == 2


def test_too_small_a_pool_preempts_and_everybody_finishes() -> None:
    policy = Policy(default_output_tokens=1)  # admission expects next to nothing, and is wrong
    hardware = replace(ROUND, num_blocks=25)
    result = run([row(i, output=120, name=f"p{i}") for i in range(4)], hardware, policy)
    assert {tally.outcome for tally in result.tallies} == {"finished"}
    assert {tally.tokens for tally in result.tallies} == {120}
    assert result.counters["preemptions"] > 0 and sum(tally.preemptions for tally in result.tallies) > 0
    assert max(sample.kv_share for sample in result.samples) > 0.8


def test_what_never_fits_or_comes_too_late_is_told_apart() -> None:
    rows = [row(0, prompt=20_000), row(1, output=500, deadline_us=100_000)]
    never, late = run(rows).tallies
    assert (never.outcome, never.reason, never.ttft_us) == ("rejected", "rejected-never-fits", -1)
    assert (late.outcome, late.reason) == ("deadline", "evicted-deadline")
    assert 0 < late.tokens < 500


def test_a_model_that_stops_early_is_let_go() -> None:
    (tally,) = run([row(0, output=3, max_tokens=500)]).tallies
    assert (tally.outcome, tally.tokens) == ("finished", 3)


def test_a_conversation_waits_for_its_turn_and_finds_its_blocks() -> None:
    rows = [row(0, prompt=64, output=32), Row(50_000, (("more", 16),), 4, after=0), Row(0, (("and", 8),), 2, after=1)]
    first, second, third = run(rows).tallies
    assert second.submitted_us == first.submitted_us + first.e2e_us + 50_000
    assert second.prompt_tokens == 64 + 32 + 16 and third.prompt_tokens == second.prompt_tokens + 4 + 8
    assert second.cached_tokens == 80  # five of the six blocks said so far; the last token's KV was never written
    assert third.cached_tokens > second.cached_tokens


def test_the_turns_after_a_refusal_are_not_sent() -> None:
    rows = [row(0, prompt=20_000), Row(0, (("a", 4),), 4, after=0), Row(0, (("b", 4),), 4, after=1), row(1)]
    outcomes = {tally.number: tally.outcome for tally in run(rows).tallies}
    assert outcomes == {0: "rejected", 1: UNSENT, 2: UNSENT, 3: "finished"}


def test_blocks_come_back_from_the_hosts_store() -> None:
    hardware = replace(ROUND, num_blocks=41, host_blocks=1000, tier_fixed_us=100.0, tier_bytes_per_us=1000.0)
    loads: list[Load] = []

    def watch(event: Event, effects: Effects) -> None:
        loads.extend(order for _epoch, batch in effects.orders for order in batch if isinstance(order, Load))

    # the others push the prefix out of the pool; its blocks are in the store by then
    rows = [
        row(0, prompt=320, name="kept"),
        *(row(1000 * i, prompt=320) for i in range(1, 4)),
        row(9000, prompt=320, name="kept"),
    ]
    result = CellRun(Policy(), hardware, 1, list(enumerate(rows)), 100_000, watch).run()
    assert len(loads) == 1 and result.tallies[-1].cached_tokens == 304
    assert result.counters["loaded_blocks"] == 19
    assert result.tallies[-1].ttft_us < result.tallies[0].ttft_us


def test_tenants_that_wait_while_another_is_served_show_as_a_service_gap() -> None:
    rows = [row(0, prompt=512, output=50, tenant="flood", name=f"f{i}") for i in range(12)]
    rows += [row(5, output=4, tenant="small", name="s")]
    unfair = run(rows, policy=Policy(order="fcfs", max_num_seqs=1)).max_service_gap_ms
    fair = run(rows, policy=Policy(order="fair", max_num_seqs=1)).max_service_gap_ms
    alone = run(rows[:12], policy=Policy(max_num_seqs=1)).max_service_gap_ms
    assert alone == 0.0 and unfair > 12 * 50  # at least the flood's prefills
    assert fair < 3 * 50  # what ran when the small one came, and its own


def test_the_core_gets_what_the_driver_gives_it() -> None:
    seen: list[Event] = []
    rows = [row(i, name=f"p{i}") for i in range(20)]
    CellRun(Policy(), ROUND, 2, list(enumerate(rows)), 10_000, lambda event, _effects: seen.append(event)).run()
    assert {type(event) for event in seen} >= {Submitted, Reported, Tick}
    times = [event.now_us for event in seen]
    assert times == sorted(times)


def test_a_worker_that_the_core_drops_is_an_error() -> None:
    cell = CellRun(Policy(), ROUND, 1, list(enumerate([row(0, output=50)])), 10_000)
    worker = cell._workers[1]
    take = worker._take

    def lie(now_us: int) -> tuple[Reported, list[str]]:
        report, owners = take(now_us)
        report.computed_len = [length + 10_000 for length in report.computed_len]
        return report, owners

    type(worker)._take = lambda self, now_us: lie(now_us)  # type: ignore[method-assign]
    try:
        with pytest.raises(SimulationBroke, match="the core closed worker w0: protocol error"):
            cell.run()
    finally:
        type(worker)._take = take.__func__  # type: ignore[attr-defined,method-assign]


def test_random_worlds_end_clean() -> None:
    """Every request ends, every token is counted, and the core's own invariants hold at the end."""
    for seed in range(12):
        draw = Random(seed)
        hardware = replace(
            ROUND,
            num_blocks=draw.choice((60, 200, 1000)),
            fixed_us=draw.choice((300.0, 10_000.0)),  # short steps are merged into one report
            host_blocks=draw.choice((0, 100)),
            link_us=draw.choice((0, 3000)),
        )
        rows: list[Row] = []
        for number in range(60):
            pieces = ((f"shared{draw.randint(0, 3)}", draw.randint(1, 200)), (f"own{number}", draw.randint(1, 60)))
            after = draw.randrange(number) if number and draw.random() < 0.2 else -1
            at_us = draw.randint(0, 30_000) if after >= 0 else number * draw.choice((2000, 20_000))
            at_us = max(at_us, *(0, *(item.at_us for item in rows if item.after < 0))) if after < 0 else at_us
            rows.append(Row(at_us, pieces, draw.randint(1, 60), max_tokens=draw.choice((0, 100)), after=after))
        cell = CellRun(Policy(max_num_seqs=6, default_output_tokens=8), hardware, 2, list(enumerate(rows)), 50_000)
        result = cell.run()
        assert len(result.tallies) == len(rows)
        for tally in result.tallies:
            if tally.outcome == "finished":
                assert tally.tokens == tally.row.output_tokens, (seed, tally)
        for worker in cell.core.cell.fleet.workers.values():
            assert worker.check_integrity() == []


def test_a_step_that_goes_on_is_the_one_that_compose_would_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortcut of a worker that only decodes on changes nothing: with it and without, every figure is the same."""
    draw = Random(4)
    rows = [
        row(draw.random() * 2000, prompt=draw.randint(1, 300), output=draw.randint(1, 60), name=f"r{number}")
        for number in range(60)
    ]
    rows.sort(key=lambda item: item.at_us)
    tight = replace(ROUND, num_blocks=60, max_num_seqs=8)
    with_it = run(rows, tight)
    kept: list[object] = []
    end_step = SimulatedWorker._end_step

    def ended(worker: SimulatedWorker, step: Step, now_us: int) -> None:
        end_step(worker, step, now_us)
        if worker._steady is not None:
            worker._stir()
            kept.append(None)
            again = compose(worker._by_seq.values(), worker.budget)
            assert again == worker._steady
            worker._steady = None

    monkeypatch.setattr(SimulatedWorker, "_end_step", ended)
    without = run(rows, tight)
    assert kept and [tally.e2e_us for tally in without.tallies] == [tally.e2e_us for tally in with_it.tallies]
    assert without.counters["preemptions"] == with_it.counters["preemptions"]
