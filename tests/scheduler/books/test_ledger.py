"""Books and their sums, the price of holding, trials and switches."""

from __future__ import annotations

import pytest
from octavo_scheduler.books.book import NOBODY, Book, Who, length_name
from octavo_scheduler.books.holding import Holding
from octavo_scheduler.books.ledger import MAX_ROWS, OTHERS, Ledger
from octavo_scheduler.books.switches import ENOUGH, Switch, Switches
from octavo_scheduler.books.trial import TRIED, Trial, sampled_for
from octavo_scheduler.policy import Policy

from tests.scheduler.scenes import counters, done, make, run, run_until

HOUR_US = 3_600_000_000


def test_rows_add_up_to_the_books() -> None:
    ledger = Ledger()
    for tenant in ("a", "b"):
        for length in (2, 3):
            ledger.book("tier_load", Who(tenant, length), saved_ms=10, cost_ms=4, cost_bytes=7, hit_tokens=64)
    ledger.book("tier_load", cost_ms=1)
    total = Book()
    for (technique, _who), book in ledger.rows.items():
        assert technique == "tier_load"
        total.add(book)
    assert total == ledger.books["tier_load"]
    assert (total.entries, total.hits, total.hit_tokens, total.net_ms) == (5, 4, 256, 23)
    assert ("tier_load", NOBODY) in ledger.rows


def test_tenants_without_end_share_a_row() -> None:
    ledger = Ledger()
    for number in range(MAX_ROWS + 50):
        ledger.book("join", Who(f"t{number}", 4), saved_ms=1)
    assert len(ledger.rows) == MAX_ROWS + 1
    assert ledger.rows["join", Who(OTHERS, 4)].saved_ms == 50
    assert ledger.books["join"].saved_ms == MAX_ROWS + 50


def test_length_classes_have_names() -> None:
    assert [length_name(length) for length in (-1, 0, 1, 4)] == ["", "0-1", "2-7", "128-511"]


# -- holding -----------------------------------------------------------------------------------------------------------


def test_a_short_prefix_held_an_hour_in_a_full_pool_is_a_loss() -> None:
    holding, ledger = Holding(0), Ledger()
    owner = ("prefix_cache", Who("a", 2))
    holding.rest([7], owner)  # one block of 16 tokens
    holding.advance(HOUR_US, 1.0, 1000)
    assert holding.still_open()[owner] == pytest.approx(3600.0), "an hour of a thousandth of the pool"
    holding.leave([7])
    ledger.book("prefix_cache", owner[1], saved_ms=16 * 0.78, hit_tokens=16)
    for (technique, who), cost_ms in holding.take_due().items():
        ledger.book(technique, who, held_ms=cost_ms, entries=0)
    assert ledger.books["prefix_cache"].net_ms == pytest.approx(12.48 - 3600)
    assert not holding.take_due() and not holding.still_open()


def test_memory_that_nobody_wants_costs_nothing() -> None:
    holding = Holding(0)
    owner = ("prefix_cache", Who("a", 2))
    holding.rest([1, 2], owner)
    holding.advance(HOUR_US, 0.0, 100)
    holding.advance(HOUR_US + 1_000_000, 0.5, 100)
    assert holding.still_open()[owner] == pytest.approx(2 * 1000 * 0.5 / 100)
    holding.leave([1])
    assert holding.take_due()[owner] == pytest.approx(5.0)
    assert holding.still_open()[owner] == pytest.approx(5.0)
    other = ("prefix_cache", Who("b", 2))
    holding.rest([2], other)
    assert holding.take_due()[owner] == pytest.approx(5.0) and holding.still_open() == {other: 0.0}


def test_a_cell_books_what_its_cache_holds_while_others_wait() -> None:
    simulation, gateway = make(Policy(), num_blocks=17)
    first = simulation.submit(gateway, list(range(17)), 1)
    run_until(simulation, lambda: first.outcome)
    (worker,) = simulation.core.cell.fleet.workers.values()
    blocker = simulation.submit(gateway, [5] * 17, 40)  # most of the pool
    run_until(simulation, lambda: blocker.outcome)
    run(simulation, 400)
    simulation.submit(gateway, list(range(17)), 1)
    run_until(simulation, lambda: simulation.clients[-1].outcome)
    book = simulation.core.cell.ledger.books["prefix_cache"]
    assert book.held_ms > 0 and book.hits == 1 and 0 < book.hit_tokens <= 16 and book.asked_tokens > 50
    assert worker.holding.still_open()


# -- trials ------------------------------------------------------------------------------------------------------------


def test_one_of_a_hundred_goes_without_and_always_the_same_one() -> None:
    ids = [f"request-{number}" for number in range(20_000)]
    for name in TRIED:
        count = sum(name in sampled_for(item, 0.01) for item in ids)
        assert 150 < count < 250, name
    assert [sampled_for(item, 0.01) for item in ids[:500]] == [sampled_for(item, 0.01) for item in ids[:500]]
    assert sampled_for("request-1", 0.0) == ()
    assert sum(len(sampled_for(item, 0.01)) > 2 for item in ids[:5000]) < 5, "each for itself"


def test_calibration_is_what_is_measured_over_what_was_said() -> None:
    trial = Trial()
    assert trial.calibration is None
    for _ in range(50):
        trial.observe(True, took_us=60.0, predicted_us=100.0, said_us=50.0)
    assert trial.calibration is None, "nobody went without"
    for _ in range(5):
        trial.observe(False, took_us=90.0, predicted_us=100.0, said_us=50.0)
    assert trial.calibration == pytest.approx(0.6)  # 0.9 - 0.6 of the time, and half of it was said
    trial.observe(True, took_us=1.0, predicted_us=0.0, said_us=0.0)
    assert trial.with_it.seen == 50


def test_a_switch_turns_off_with_a_reason_and_returns() -> None:
    switch = Switch()
    assert not any(switch.observe(5.0, 50.0) for _ in range(ENOUGH - 1)) and not switch.off
    turned = [switch.observe(5.0, 50.0)]
    assert turned == [True] and switch.off and "loses: net -45.0 ms" in switch.why
    assert not switch.observe(5.0, 50.0), "one more loss changes nothing"
    tries = 0
    while switch.off:
        switch.observe(50.0, 5.0)
        tries += 1
    assert tries <= 4 and switch.why.startswith("wins again") and switch.changes == 2


def test_an_even_game_stays_on() -> None:
    switch = Switch()
    for number in range(200):
        switch.observe(10.0 + number % 3, 11.0)
    assert not switch.off


def test_a_switch_is_of_its_class_and_its_trial_goes_the_other_way() -> None:
    simulation, gateway = make()
    run_until(simulation, lambda: simulation.core.cell.fleet.workers)
    short, long = simulation.submit(gateway, [1] * 4, 1), simulation.submit(gateway, [1] * 80, 1)
    find = simulation.core.cell.registry.find
    a, b = find("default", short.request_id), find("default", long.request_id)
    assert a is not None and b is not None
    switches = Switches()
    assert switches.uses("join", a) and not switches.any_off
    for _ in range(ENOUGH + 1):
        switches.observe("join", a, 0.0, 10.0)
    assert switches.any_off and not switches.uses("join", a) and switches.uses("join", b)
    assert switches.reasons()[0][:2] == ("join", "2-7")
    a.sampled = b.sampled = ("join",)
    assert switches.uses("join", a) and not switches.uses("join", b)


# -- what is booked where ----------------------------------------------------------------------------------------------


def test_a_join_books_its_wait_and_what_it_spared() -> None:
    simulation, gateway = make(Policy(max_num_batched_tokens=8, max_num_batched_tokens_alone=8))
    prompt = list(range(41))
    clients = [simulation.submit(gateway, prompt, 3)]
    run(simulation, 2)
    clients.append(simulation.submit(gateway, prompt, 3))
    done(simulation, *clients)
    book = simulation.core.cell.ledger.books["join"]
    assert book.entries == 1 and book.hit_tokens > 0 and book.cost_ms > 0


def test_without_its_technique_a_sampled_request_computes_everything() -> None:
    policy = Policy(counterfactual_share=0.01)
    name = next(f"s{at}" for at in range(10_000) if sampled_for(f"s{at}", 0.01) == ("prefix_cache",))
    simulation, gateway = make(policy)
    prompt = list(range(33))
    first = simulation.submit(gateway, prompt, 2, request_id="plain-0")
    run_until(simulation, lambda: first.outcome)
    again = simulation.submit(gateway, prompt, 2, request_id=name)
    third = simulation.submit(gateway, prompt, 2, request_id="plain-2")
    done(simulation, first, again, third)
    assert again.cached_tokens == 0 and third.cached_tokens == 32
    trial = simulation.core.cell.switches.of("prefix_cache", 3).trial
    assert trial.without.seen == 1
    assert counters(simulation)["protocol_errors"] == 0
