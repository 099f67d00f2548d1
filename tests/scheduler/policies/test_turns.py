"""The order of prefills on a worker: short ones pass a long one, for a bounded time."""

from __future__ import annotations

import pytest
from octavo_scheduler.policies.turns import MAX_PRIORITY, STRETCH, overtaking_us, prefill_turn
from octavo_scheduler.policy import Policy

from tests.scheduler.policies.scenes import outlook_of, policy_of, request
from tests.scheduler.simulate.scenes import ROUND, row, run

MS = 1000


def turn(policy: Policy, prefill_ms: float, at_ms: float, number: int = 0, **options: object) -> int:
    beside = int(options.pop("beside", 0))  # type: ignore[call-overload]
    prompt = max(1, int(prefill_ms * 10))  # as the scenes' cost model has it, but for the step
    asked = request("r", prompt=min(prompt, 100_000), **{"arrival_us": int(at_ms * MS), **options})  # type: ignore[arg-type]
    return prefill_turn(policy.order, outlook_of(policy), asked, prefill_ms * MS, beside, int(at_ms * MS), number)


def test_a_short_prompt_passes_a_long_one_until_that_has_waited_its_share() -> None:
    policy = policy_of("sjf")
    long = turn(policy, 1000, 0)
    assert turn(policy, 10, STRETCH * 990 - 1) < long < turn(policy, 10, STRETCH * 990 + 1)


def test_a_tenant_that_runs_much_lets_a_newcomers_prefill_pass() -> None:
    for order, passes in (("fair", True), ("slo-fair", True), ("sjf", False), ("fcfs", False)):
        policy = policy_of(order)
        assert (turn(policy, 100, 90, 2) < turn(policy, 100, 0, 1, beside=7)) == passes, order


def test_under_slo_policies_the_least_slack_goes_first_and_what_is_lost_last() -> None:
    classes = {"default": {"ttft_ms": 1000.0}, "patient": {"ttft_ms": 5000.0}, "batch": {}}
    for order in ("slo", "slo-fair"):
        policy = policy_of(order, slo_classes=classes)
        tight, loose = turn(policy, 600, 0), turn(policy, 10, 0)
        patient, lost = turn(policy, 600, 0, slo_class="patient"), turn(policy, 1500, 0)
        batch, late = turn(policy, 10, 0, slo_class="batch"), turn(policy, 10, 5000, arrival_us=0)
        begun = turn(policy, 1500, 0, first_token_us=0)
        assert begun < tight < loose < patient < batch < lost < late, order


def test_first_come_first_served_means_prefills_too() -> None:
    policy = policy_of("fcfs")
    assert turn(policy, 1000, 0, 1) < turn(policy, 10, 0, 2) < turn(policy, 10, 1, 3)


def test_priority_counts_where_the_policy_goes_by_it() -> None:
    for order, counts in (("priority", True), ("slo", True), ("slo-fair", False), ("fair", False), ("sjf", False)):
        policy = policy_of(order)
        urgent, plain = turn(policy, 1000, 500, 2, priority=1), turn(policy, 10, 0, 1)
        assert (urgent < plain) == counts, order


def test_turns_fit_the_field_however_old_the_cell_and_extreme_the_priority() -> None:
    policy = policy_of("priority")
    year_us = 365 * 24 * 3600 * 1_000_000
    for priority in (-(2**31), 2**31 - 1):
        assert 0 < turn(policy, 1e6, 100 * year_us / MS, 2**70, priority=priority) < 2**64
    assert MAX_PRIORITY == 1000


@pytest.mark.parametrize("order", ["slo-fair", "sjf", "fair"])
def test_a_long_prefill_does_not_starve_short_ones(order: str) -> None:
    """A prompt of 8,000 tokens takes 0.8 s alone in chunks; a short one that comes meanwhile answers soon."""
    rows = [row(0, prompt=32, output=400, name="stream"), row(100, prompt=8000, output=4)]
    rows += [row(150 + 100 * number, prompt=32, output=4) for number in range(6)]
    options = {"max_num_batched_tokens": 256, "slo_classes": {"default": {}}}
    tallies = run(rows, policy=Policy(order=order, **options)).tallies  # type: ignore[arg-type]
    plain = run(rows, policy=Policy(order="fcfs", **options)).tallies  # type: ignore[arg-type]
    step_us = ROUND.step_us(256, 2, 0)
    shorts = [tally.ttft_us for tally in sorted(tallies, key=lambda item: item.number)[2:]]
    assert max(shorts) <= 3 * step_us
    assert max(tally.ttft_us for tally in plain if tally.number >= 2) > 10 * step_us
    # and the long one loses what the short ones took, no more
    lost_us = tallies[1].ttft_us - plain[1].ttft_us
    assert lost_us <= 6 * 2 * step_us


@pytest.mark.parametrize("beside", [0, 4])
@pytest.mark.parametrize("order", ["fcfs", "sjf", "priority", "slo", "fair", "slo-fair"])
def test_for_how_long_a_prefill_is_overtaken_is_what_the_turns_say(order: str, beside: int) -> None:
    policy, passed = policy_of(order, slo_classes={"default": {"ttft_ms": 60_000.0}}), 0
    for own_ms, other_ms in ((400, 100), (100, 400), (200, 200)):
        first = turn(policy, own_ms, 0, beside=beside)
        until_ms = overtaking_us(order, own_ms * MS, other_ms * MS, beside) / MS
        overtakers = [at_ms for at_ms in range(1, 4000, 10) if turn(policy, other_ms, at_ms, 1, beside=beside) < first]
        # the scenes' prefills have the step's fixed part beside the tokens
        assert len(overtakers) * 10 == pytest.approx(min(until_ms, 4000), abs=25), (order, own_ms, other_ms)
        passed += bool(overtakers)
    assert passed == (order != "fcfs")
