"""What was written behind is wanted again, or not: the switch of `offload`."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from octavo_scheduler.books.bets import LOST_US, Bets, Told
from octavo_scheduler.books.switches import Switch
from octavo_scheduler.history import length_class
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellRun
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.workload import Row

KEYS = [bytes([number]) * 4 for number in range(40)]


def copied(count: int = 40, start_us: int = 0) -> Bets:
    bets = Bets()
    for key in KEYS[:count]:
        bets.left(key, 3)
    assert bets.copied(KEYS[:count], 2.0 * count, start_us) == [], "nothing is known yet"
    return bets


def next_copy(bets: Bets, now_us: int = 0) -> Told:
    bets.left(b"next", 3)
    (told,) = bets.copied([b"next"], 2.0, now_us)
    assert (told.length, told.spent_ms) == (3, 2.0)
    return told


def test_a_copy_is_worth_what_those_before_it_have_come_to() -> None:
    bets = copied()
    bets.came(KEYS, 80.0)
    assert next_copy(bets).saved_ms == pytest.approx(2.0), "each was found once"
    bets.came(KEYS, 80.0)
    assert next_copy(bets).saved_ms == pytest.approx(4.0, rel=0.05), "... twice"
    bets.came([b"unknown", *KEYS], 500.0)
    assert next_copy(bets).saved_ms == pytest.approx(4.0, rel=0.05), "a gap in what is found"
    for _ in range(30):
        bets.came(KEYS, -3.0)
    assert next_copy(bets).saved_ms < 1.0, "found, and computing is quicker"


def test_what_nobody_wants_for_long_is_lost() -> None:
    bets = copied()
    bets.came(KEYS[:4], 40.0)
    assert next_copy_none(bets, LOST_US - 1)
    assert next_copy(bets, LOST_US).saved_ms == pytest.approx(10.0 * 4 / 40, rel=0.5)


def next_copy_none(bets: Bets, now_us: int) -> bool:
    bets.left(b"early", 3)
    return bets.copied([b"early"], 2.0, now_us) == []


def test_while_its_class_is_off_only_trials_count() -> None:
    bets = copied()
    bets.came(KEYS, 80.0)
    before = next_copy(bets).saved_ms
    bets.came(KEYS, 800.0, frozenset({3}))
    assert next_copy(bets).saved_ms == pytest.approx(before, rel=0.05)
    bets.left(b"tried", 3, trial=True)
    bets.copied([b"tried"], 1.0, 0)
    for _ in range(20):
        bets.came([b"tried"], 20.0, frozenset({3}))
    assert next_copy(bets).saved_ms > 2 * before


def test_one_gain_pays_for_many_losses() -> None:
    """By its sum: by shares nine losses of ten would switch it off."""
    switch = Switch(pooled=True)
    for number in range(200):
        switch.observe(500.0 if number % 10 == 0 else 0.0, 10.0)
    assert not switch.off
    for _ in range(40):
        switch.observe(0.0, 100.0)
    assert switch.off and "loses" in switch.why
    switch.observe(5000.0, 10.0)
    assert not switch.off and "wins again" in switch.why


HARDWARE = Hardware(
    "w", 4000.0, 50.0, 200.0, 0.02, num_blocks=151, block_bytes=1_000_000, host_blocks=200_000,
    tier_bytes_per_us=20_000.0, tier_fixed_us=300.0, max_model_len=8192,
)  # fmt: skip
APART_US = 150_000
DOCUMENTS, SLOW_AT, BACK_AT, REQUESTS = 12, 100, 300, 900


@pytest.mark.parametrize("slow", [False, True])
def test_a_slow_link_ends_writing_behind_and_a_quick_one_brings_it_back(slow: bool) -> None:
    """Documents of 1,024 tokens, more than the pool holds, are asked about by turns; half of them are new, so that there
    is always something to copy. The link is 1,000 times slower in between."""
    draw = Random(5)
    rows = [
        Row(
            number * APART_US,
            ((f"d{draw.randrange(DOCUMENTS)}" if number % 2 else f"new{number // 6 * 6}", 1024), (f"q{number}", 16)),
            1,
        )
        for number in range(REQUESTS)
    ]
    policy = Policy(order="fcfs", counterfactual_share=0.1)
    run = CellRun(policy, HARDWARE, 1, list(enumerate(rows)), 1_000_000)
    switch = run.core.cell.switches.of("offload", length_class(1040))
    off: dict[int, bool] = {}
    copies: dict[int, float] = {}

    def note(number: int) -> None:
        off[number], copies[number] = switch.off, run.core.cell.counters["offloaded_blocks"]

    for number in range(REQUESTS):
        run.at(number * APART_US - 1, lambda worker, number=number: note(number))
    if slow:
        for at, factor in ((SLOW_AT, 0.001), (BACK_AT, 1.0)):
            speed = factor * HARDWARE.tier_bytes_per_us
            run.at(
                at * APART_US,
                lambda worker, speed=speed: setattr(worker, "hardware", replace(HARDWARE, tier_bytes_per_us=speed)),
            )
    run.run()
    if not slow:
        assert not any(off.values()), switch.why
        return
    assert not any(off[number] for number in range(SLOW_AT))
    assert all(off[number] for number in range(SLOW_AT + 50, BACK_AT)), switch.why
    before, meanwhile = copies[SLOW_AT] / SLOW_AT, (copies[BACK_AT] - copies[SLOW_AT + 50]) / (BACK_AT - SLOW_AT - 50)
    assert meanwhile < 0.3 * before, "the sampled ones alone"
    assert not off[REQUESTS - 1] and "wins again" in switch.why
