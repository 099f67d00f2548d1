"""The small decision modules, each alone: costs, ledger, slo, history, registry, tiers, placement, preemption."""

from __future__ import annotations

from array import array

import pytest
from octavo_scheduler.admission import blocks_for, least_blocks, margin_blocks
from octavo_scheduler.batching import step_policy, top_up
from octavo_scheduler.books.ledger import Ledger
from octavo_scheduler.costs import LinkCosts, StepCosts
from octavo_scheduler.events import Calibration, WorkerJoined
from octavo_scheduler.fleet import Worker
from octavo_scheduler.history import OutputHistory
from octavo_scheduler.policy import Policy
from octavo_scheduler.preemption import Prices, choose_victims, cost_to_bring_back
from octavo_scheduler.registry import Registry
from octavo_scheduler.request import Choice, Outcome, Phase, Request, Sequence
from octavo_scheduler.slo import deadline_outcome, parse_classes, resolve
from octavo_scheduler.tiers import Directory

KEYS = [bytes([number]) * 32 for number in range(8)]


def request(name: str = "r", prompt: int = 4, **options: object) -> Request:
    values: dict[str, object] = {"arrival_us": 0, "submitted_us": 0, "max_tokens": 100, **options}
    return Request(name, "t", array("I", range(prompt)), [], b"", -1, **values)  # type: ignore[arg-type]


def worker(num_blocks: int = 11, **policy: int) -> Worker:
    hello = WorkerJoined(0, 1, "w", num_blocks, 4, 8, 1000, calibration=Calibration(10_000.0, 100.0, 1000.0, 1.0))
    return Worker(hello, Policy(**policy))  # type: ignore[arg-type]


def seat(host: Worker, blocks: int, length: int, priority: int = 0) -> Sequence:
    owner = request(priority=priority)
    choice = Choice(owner, 0, 1, array("I"), Phase.RUNNING)
    number = len(host.sequences) + 1
    table = host.pool.take(blocks)
    made = Sequence(number, host.free_slots.pop(), number, 1, choice, table, length, length - 1, 0, 1000, 0)
    host.sequences[number] = host.slots[made.slot] = made  # type: ignore[assignment]
    return made


# -- costs and books -----------------------------------------------------------------------------------------------


def test_step_costs_approach_what_is_observed() -> None:
    costs = StepCosts(Calibration(1000.0, 10.0, 100.0, 0.1))
    for step in range(4000):
        prefill, decodes = (step % 5) * 64, step % 9
        truth = 3000 + 40 * prefill + 500 * decodes + 0.1 * 100 * decodes
        costs.observe(int(truth), 1, prefill, decodes, 100 * decodes)
    assert costs.predict_step_us(256, 4, 400) == pytest.approx(3000 + 40 * 256 + 500 * 4 + 40, rel=0.15)


def test_one_k_step_observation_has_the_mean_of_k() -> None:
    one, many = StepCosts(Calibration()), StepCosts(Calibration())
    one.observe(40_000, 4, 0, 2, 50)
    many.observe(10_000, 1, 0, 2, 50)
    assert one.step_us == many.step_us and one.fixed_us == many.fixed_us


def test_costs_ignore_reports_without_a_step_and_stay_positive() -> None:
    costs = StepCosts(Calibration())
    costs.observe(0, 0, 0, 0, 0)
    for _ in range(10_000):
        costs.observe(1, 1, 10, 1, 1)
    assert min(costs.fixed_us, costs.prefill_token_us, costs.decode_seq_us, costs.context_token_us) > 0


def test_link_costs_follow_transfers() -> None:
    link = LinkCosts(bytes_per_us=100, fixed_us=1000)
    for _ in range(100):
        link.observe(1_000_000, 50, 1000)
    assert link.predict_us(1_000_000) == pytest.approx(1050, rel=0.01)


def test_the_ledger_adds_up_and_knows_its_techniques() -> None:
    ledger = Ledger()
    ledger.book("tier_load", saved_ms=10, cost_ms=4, cost_bytes=100)
    ledger.book("tier_load", saved_ms=1, cost_ms=9)
    assert ledger.books["tier_load"].net_ms == -2
    assert ledger.counters()["ledger_tier_load_cost_bytes"] == 100
    with pytest.raises(KeyError):
        ledger.book("magic", saved_ms=1)


# -- slo and history -----------------------------------------------------------------------------------------------


def test_slo_classes_are_parsed_and_unknown_ones_named() -> None:
    classes = parse_classes({"default": {"ttft_ms": 1000.0}, "batch": {}})
    found = resolve("", "default", classes)
    assert found is not None and found.ttft_ms == 1000.0
    assert resolve("batch", "default", classes) is not None and resolve("gold", "default", classes) is None


def test_a_deadline_says_whether_work_was_done() -> None:
    assert deadline_outcome(False).reason == "rejected-deadline"
    assert deadline_outcome(True).reason == "evicted-deadline"


def test_history_finds_a_high_quantile_and_never_exceeds_max_tokens() -> None:
    history = OutputHistory(256)
    assert history.predict("new", 16) == 16 and history.predict("new", 9999) == 256
    for number in range(2000):
        history.observe("t", 10 + (number * 37) % 100)
    assert 70 <= history.predict("t", 9999) <= 105


# -- queue and registry --------------------------------------------------------------------------------------------


def test_registry_is_bounded_in_bytes_and_time() -> None:
    registry = Registry(ttl_us=100, max_bytes=2000)
    stored = [request(f"r{number}", outcome=Outcome("finished")) for number in range(5)]
    for at, item in enumerate(stored):
        registry.add(item)
        registry.store(item, at)
    assert registry.stored_bytes <= 2000 and registry.find("t", "r0") is None
    assert registry.find("t", "r4") is stored[4] and registry.find("other", "r4") is None
    registry.expire(10_000)
    assert len(registry) == 0 and registry.stored_bytes == 0


def test_registry_finds_by_key_and_a_new_owner_replaces_the_old() -> None:
    registry = Registry(100, 10_000)
    first = request("a", idempotency_key="k")
    registry.add(first)
    assert registry.find("t", "b", "k") is first and registry.live() == [first]
    second = request("a")
    registry.add(second)
    assert registry.find("t", "a") is second and registry.find("t", "", "k") is None


# -- directory -----------------------------------------------------------------------------------------------------


def test_directory_follows_numbers_and_a_gap_forgets() -> None:
    directory = Directory("s", 1)
    assert directory.change(1, [(KEYS[0], False)]) and len(directory) == 0  # not synced yet
    directory.inventory(5, KEYS[:2], last=False)
    directory.inventory(5, KEYS[2:3], last=True)
    assert directory.run(KEYS, 0, 8) == 3
    assert directory.change(6, [(KEYS[3], False), (KEYS[0], True)])
    assert directory.run(KEYS, 0, 8) == 0 and directory.run(KEYS, 1, 8) == 3
    assert directory.change(7, [(KEYS[0], False), (KEYS[4], False)])  # 7 is known, 8 is new
    assert KEYS[0] not in directory and KEYS[4] in directory
    assert not directory.change(20, [(KEYS[5], False)])
    assert len(directory) == 0 and not directory.synced


# -- placement, admission, batching, preemption --------------------------------------------------------------------


def test_sizes_in_blocks() -> None:
    assert [blocks_for(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    # 6 prompt tokens, 3 output: the last token's KV is never written, so 8 positions
    assert least_blocks(6, 3, 1, 4) == 2
    # a group starts with one shared block and one tail each
    assert least_blocks(6, 3, 5, 4) == 1 + 5


def test_margin_is_one_block_at_least() -> None:
    assert margin_blocks(worker(11), Policy()) == 1 and margin_blocks(worker(1001), Policy()) == 20


def test_grants_run_ahead_with_room_and_shrink_under_pressure() -> None:
    roomy = worker(101)
    first = seat(roomy, 1, 4)
    roomy.hungry[first] = None
    assert top_up(roomy, Policy(grant_ahead_us=200_000)) == []
    ahead = len(first.blocks)
    assert ahead > 3 and not roomy.hungry
    tight = worker(6)
    old, new = seat(tight, 2, 8), seat(tight, 2, 8)
    tight.hungry = {new: None, old: None}
    assert top_up(tight, Policy()) == [new]  # the oldest got the last block
    assert len(old.blocks) == 3 and tight.pool.free_blocks == 0 and new in tight.hungry


def test_step_policy_carries_two_budgets() -> None:
    given = Policy(max_num_batched_tokens=600, max_num_seqs=4)
    policy = step_policy(worker(max_num_batched_tokens=600, max_num_seqs=4), given)
    assert (policy.budget_with_decodes, policy.budget_alone) == (600, 2048)
    assert Policy(max_num_batched_tokens=4096).budget_alone == 4096
    assert Policy(max_num_batched_tokens=100).budget_alone == 400


def test_victims_are_the_latest_and_only_as_many_as_needed() -> None:
    host = worker(10)
    sequences = [seat(host, 3, 12) for _ in range(3)]
    assert choose_victims(host, [sequences[0]], Prices(Policy())) == [sequences[2]]
    assert choose_victims(host, [], Prices(Policy())) == []


def test_pending_releases_count_before_anyone_is_stopped() -> None:
    host = worker(10)
    sequences = [seat(host, 3, 12) for _ in range(3)]
    sequences[2].stopping = "cancel"
    assert choose_victims(host, [sequences[0], sequences[1]], Prices(Policy())) == []


def test_blocks_that_others_hold_do_not_count() -> None:
    host = worker(7)
    first = seat(host, 4, 16)
    second = seat(host, 2, 8)
    for block in second.blocks:
        host.pool.hold_transfer(block)
    third_table = list(first.blocks)
    for block in third_table:
        host.pool.share(block)
    shared = seat(host, 0, 16)
    shared.blocks = third_table
    # neither the sharing one nor the one under a transfer would free a block at once
    assert choose_victims(host, [first], Prices(Policy())) == []


def test_the_last_running_sequence_is_protected() -> None:
    host = worker(4)
    only = seat(host, 3, 12)
    assert choose_victims(host, [only], Prices(Policy())) == []


def test_an_unsplit_group_is_stopped_as_one() -> None:
    host = worker(10)
    first = seat(host, 3, 12)
    leader, sibling = seat(host, 3, 12), seat(host, 3, 12)
    leader.group = sibling.group = (leader, sibling)
    assert choose_victims(host, [first], Prices(Policy())) == [leader, sibling]


def test_low_priority_goes_before_late() -> None:
    host = worker(10)
    seat(host, 3, 12, priority=1)
    low, late = seat(host, 3, 12, priority=-1), seat(host, 3, 12)
    assert choose_victims(host, [late], Prices(Policy())) == [low]


def test_the_victim_that_comes_back_most_cheaply_goes_first() -> None:
    host = worker(12)
    old, long, short = seat(host, 3, 12), seat(host, 6, 24), seat(host, 2, 8)
    costs = [cost_to_bring_back(host, item, Policy()) for item in (old, long, short)]
    assert costs[1].us > costs[0].us > costs[2].us and costs[0].how == "recompute"
    assert choose_victims(host, [long], Prices(Policy())) == [short]  # the oldest is protected, whatever it costs


def test_blocks_that_stay_are_not_computed_again() -> None:
    host = worker(12)
    owner = seat(host, 4, 16)
    sharer = seat(host, 0, 16)
    sharer.blocks = owner.blocks[:3] + host.pool.take(1)
    for block in owner.blocks[:3]:
        host.pool.share(block)
    one_block_us = host.costs.predict_prefill_us(16 - 1 - 3 * 4, 2048)
    assert cost_to_bring_back(host, sharer, Policy()).us == one_block_us
