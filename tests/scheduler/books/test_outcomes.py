"""What a technique comes to switches it: off for a class of requests when it loses there, on again when its trials win."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from octavo_scheduler.books import entries
from octavo_scheduler.books.switches import ENOUGH
from octavo_scheduler.books.trial import sampled_for
from octavo_scheduler.history import length_class
from octavo_scheduler.policy import Policy
from octavo_scheduler.request import Tried
from octavo_scheduler.simulate.cell_run import CellRun
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.workload import Row

from tests.scheduler.harness import Simulation
from tests.scheduler.moves.test_handoff import CHUNKS, PROMPT, pair
from tests.scheduler.moves.test_swap import SHORT
from tests.scheduler.scenes import counters, done, make, run, run_until

SHARE = 0.25
"""Of the trials here, so that they come soon."""


def switch_of(simulation: Simulation, technique: str, prompt_tokens: int) -> Any:
    return simulation.core.cell.switches.of(technique, length_class(prompt_tokens))


def test_swaps_whose_copies_take_long_stop_and_come_back() -> None:
    """The link says that it is fast, and is not: only what the swaps came to tells."""
    simulation, gateway = make(replace(SHORT, counterfactual_share=SHARE), store=True, num_blocks=17)
    simulation.add_store(simulation.links[0].worker.store)  # type: ignore[arg-type]
    worker, switch = simulation.links[0].worker, switch_of(simulation, "swap", 13)

    def crowd(number: int) -> float:
        # answers of one token, so that the next ones are taken on for as much and outgrow the pool
        done(
            simulation,
            *[simulation.submit(gateway, [7, number, seed] + [3] * 10, 1, tenant=f"t{number}") for seed in range(12)],
        )
        before = counters(simulation)["swaps"]
        done(
            simulation,
            *[simulation.submit(gateway, [number, seed] + [3] * 11, 40, tenant=f"t{number}") for seed in (1, 2, 3)],
        )
        return counters(simulation)["swaps"] - before

    worker.calm_steps = 40
    crowds = 0
    while not switch.off:
        crowds += 1
        assert crowds < 40
        crowd(crowds)
    assert "loses" in switch.why
    assert simulation.core.cell.switches.reasons()[0][0] == "swap"
    preempted = counters(simulation)["preemptions"]
    swaps = sum(crowd(100 + number) for number in range(4))
    assert 2 * swaps <= counters(simulation)["preemptions"] - preempted, "the sampled ones alone"
    worker.calm_steps = 1
    crowds = 0
    while switch.off:
        crowds += 1
        assert crowds < 60
        crowd(200 + crowds)
    assert "wins again" in switch.why and switch.changes == 2


def test_handoffs_whose_copies_take_long_stop_and_come_back() -> None:
    simulation, gateway = pair(
        replace(CHUNKS, counterfactual_share=SHARE), roles=("both", "prefill"), blocks=257, seqs=6
    )
    switch = switch_of(simulation, "handoff", len(PROMPT))
    streams: list[Any] = []
    cell = simulation.core.cell

    def one(number: int) -> None:
        cell.fleet.workers[simulation.links[1].epoch].prefill_share = 0.9  # it keeps nothing to decode
        streams[:] = [client for client in streams if not client.outcome]
        while len(streams) < 3:
            streams.append(simulation.submit(gateway, [9, len(streams), number % 50], 200))
            run(simulation, 2)
        client = simulation.submit(gateway, [number % 60, number // 60, *PROMPT[2:]], 3)
        run_until(simulation, lambda: client.outcome)

    for link in simulation.links:
        link.worker.calm_steps = 60
    number = 0
    while not switch.off:
        number += 1
        assert number < 60, counters(simulation)
        one(number)
    assert "loses" in switch.why
    started = counters(simulation)["handoffs_started"]
    for more in range(20):
        one(100 + more)
    assert counters(simulation)["handoffs_started"] - started < 12, "the sampled ones alone"
    for link in simulation.links:
        link.worker.calm_steps = 1
    number = 0
    while switch.off:
        number += 1
        assert number < 100
        one(200 + number)
    assert "wins again" in switch.why


def test_pauses_that_hold_what_others_want_stop_and_come_back() -> None:
    policy = Policy(pause="keep", default_output_tokens=4, counterfactual_share=SHARE)
    simulation, gateway = make(policy, num_blocks=33)
    switch = switch_of(simulation, "pause", len(PROMPT))

    def turn(number: int, away: int) -> None:
        prompt = [number % 60, number // 60, *PROMPT[2:]]
        client = simulation.submit(gateway, prompt, 4, pause=("t", 1_000_000))
        run_until(simulation, lambda: client.outcome)
        others = [simulation.submit(gateway, [5, number % 50], 30) for _ in range(4)] if away > 10 else []
        run(simulation, away)
        again = simulation.submit(gateway, [*prompt, *client.got[0], 7], 1, resumes=client.request_id)
        run_until(simulation, lambda: again.outcome and all(other.outcome for other in others))

    number = 0
    while not switch.off:
        number += 1
        assert number < 40
        turn(number, 500)
    assert "loses" in switch.why
    kept = counters(simulation)["pauses_keep"]
    for more in range(12):
        turn(100 + more, 2)
        if not switch.off:
            break
    assert counters(simulation)["pauses_keep"] - kept <= 8, "the sampled ones alone"
    while switch.off:
        number += 1
        assert number < 100
        turn(200 + number, 2)
    assert "wins again" in switch.why


# -- chunking ----------------------------------------------------------------------------------------------------------

HARDWARE = Hardware("w", 8000.0, 50.0, 200.0, 0.02, num_blocks=4001, block_bytes=1000, max_model_len=8192)
MORE_AT, PROMPTS, APART_US = 40, 240, 100_000


@pytest.mark.parametrize("itl_ms", [0.0, 1000.0])
def test_chunking_stops_beside_one_stream_and_comes_back_beside_five(itl_ms: float) -> None:
    """Prompts of 512 in steps of 64 tokens: a delay of 70 ms for them, against a gap of 25 ms for each stream."""
    rows = [
        Row(at * APART_US + number, ((f"s{at}.{number}", 32),), 3900)
        for at, many in ((0, 1), (MORE_AT, 4))
        for number in range(many)
    ]
    rows += [Row(50_000 + number * APART_US, ((f"p{number}", 512),), 1) for number in range(PROMPTS)]
    rows.sort(key=lambda row: row.at_us)
    classes: Any = {"default": {"itl_p99_ms": itl_ms}}
    policy = Policy(order="fcfs", max_num_batched_tokens=64, slo_classes=classes, counterfactual_share=0.1)
    run_ = CellRun(policy, HARDWARE, 1, list(enumerate(rows)), 1_000_000)
    switch = run_.core.cell.switches.of("chunking", length_class(512))
    seen: list[tuple[int, bool]] = []
    for number in range(1, PROMPTS):
        run_.at(50_000 + number * APART_US - 1000, lambda worker, number=number: seen.append((number, switch.off)))
    result = run_.run()
    off = dict(seen)
    if itl_ms:
        assert run_.core.cell.counters["mixed_steps"] > 6 * PROMPTS, (
            "a target is kept by cutting, whatever that comes to"
        )
        return
    assert any(off[number] for number in range(ENOUGH, MORE_AT)), "it delays them more than it spares the one"
    assert not off[PROMPTS - 1] and "wins again" in switch.why, "whole prompts would hold the streams up"
    ttft_ms = {tally.row.pieces[0][0]: tally.ttft_us / 1000 for tally in result.tallies if tally.row.output_tokens == 1}
    whole = [number for number in range(ENOUGH, MORE_AT - 1) if off[number]]
    cut = range(2, ENOUGH)
    assert sum(ttft_ms[f"p{number}"] for number in whole) / len(whole) < 0.75 * sum(
        ttft_ms[f"p{number}"] for number in cut
    ) / len(cut)
    book = run_.core.cell.ledger.books["chunking"]
    assert book.saved_ms > 0 and book.cost_ms > 0
    trial = switch.trial
    assert trial.with_it.seen and trial.without.seen and trial.calibration is not None


# -- routing and offload -----------------------------------------------------------------------------------------------


def test_a_choice_of_workers_that_comes_to_nothing_is_given_up() -> None:
    simulation, gateway = make(workers=2)
    client = simulation.submit(gateway, PROMPT, 30)
    run_until(simulation, lambda: client.got[0])
    cell = simulation.core.cell
    worker, sequence = next(
        (worker, item) for worker in cell.fleet.workers.values() for item in worker.sequences.values()
    )
    took_us = cell.now_us - sequence.admitted_us
    switch = switch_of(simulation, "routing", len(PROMPT))
    for _ in range(ENOUGH + 1):
        sequence.tried.append(Tried("routing", True, 0.5 * took_us, 0.4 * took_us))
        entries.first_token(cell, worker, sequence)
    assert switch.off
    while switch.off:
        sequence.tried.append(Tried("routing", True, 2.0 * took_us, took_us))
        entries.first_token(cell, worker, sequence)
    assert switch.changes == 2
    done(simulation, client)


@pytest.mark.parametrize("sampled", [False, True])
def test_what_is_not_offloaded_is_missed_later(sampled: bool) -> None:
    name = next(f"o{at}" for at in range(10_000) if sampled_for(f"o{at}", 0.01) == (("offload",) if sampled else ()))
    simulation, gateway = make(Policy(counterfactual_share=0.01, load_path="load"), store=True, num_blocks=33)
    store = simulation.links[0].worker.store
    assert store is not None
    simulation.add_store(store)
    first = simulation.submit(gateway, PROMPT, 2, request_id=name)
    done(simulation, first)
    simulation.flush_store("host")
    assert bool(store.held) is not sampled and bool(len(simulation.core.cell.withheld)) is sampled
    (worker,) = simulation.core.cell.fleet.workers.values()
    for key in worker.index.heads():
        worker.index.drop(key)
    before = simulation.links[0].worker.computed_tokens
    done(simulation, simulation.submit(gateway, [*PROMPT, 8], 1, request_id="plain-1"))
    trial = switch_of(simulation, "offload", len(PROMPT)).trial
    assert trial.without.seen == sampled
    assert (simulation.links[0].worker.computed_tokens - before > len(PROMPT)) is sampled
