"""The step budget: what fits the ITL target beside the decodes, ordered seldom."""

from __future__ import annotations

from random import Random

import pytest
from octavo_scheduler.costs import StepCosts
from octavo_scheduler.events import Calibration
from octavo_scheduler.policies.pace import HEADROOM, LEAST_TOKENS, RAISE_AFTER_US, Pace, fitting_budget
from octavo_scheduler.policy import Policy

COSTS = StepCosts(Calibration(fixed_us=10_000.0, prefill_token_us=100.0, decode_seq_us=1000.0, context_token_us=0.0))
POLICY = Policy(max_num_batched_tokens=512)


def paced(*targets_us: int) -> Pace:
    pace = Pace(POLICY.max_num_batched_tokens)
    for target_us in targets_us:
        pace.join(target_us)
    return pace


def test_the_predicted_step_stays_inside_the_target() -> None:
    budget = fitting_budget(50_000, COSTS, 8, 0, 4096)
    assert budget == 8 + 220  # 40 ms less 18 ms of decodes, at 0.1 ms a token
    assert COSTS.predict_step_us(budget - 8, 8, 0) <= HEADROOM * 50_000


def test_without_a_target_or_with_a_loose_one_the_limit_holds() -> None:
    assert fitting_budget(0, COSTS, 8, 0, 512) == 512
    assert fitting_budget(1_000_000, COSTS, 8, 0, 512) == 512


def test_a_target_that_no_budget_saves_leaves_prefill_its_floor() -> None:
    # 64 decodes take 74 ms: half as much again goes to prefill
    assert fitting_budget(20_000, COSTS, 64, 0, 512) == 64 + 370
    cheap = StepCosts(Calibration(10.0, 100.0, 1.0, 0.0001))
    assert fitting_budget(1, cheap, 1, 0, 512) == 1 + LEAST_TOKENS


def test_the_strictest_of_those_that_run_decides() -> None:
    pace = Pace(512)
    assert [pace.join(target_us) for target_us in (200_000, 0, 50_000, 50_000, 60_000)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    pace = paced(200_000, 50_000, 0)
    assert pace.target_us() == 50_000
    pace.leave(50_000)
    pace.leave(0)
    assert pace.target_us() == 200_000
    pace.leave(200_000)
    assert pace.target_us() == 0


def test_a_lower_budget_is_ordered_at_once_and_a_higher_one_when_it_lasts() -> None:
    pace = paced(50_000)
    assert pace.adjust(COSTS, 8, 0, POLICY, 0) and pace.budget == 228
    pace.leave(50_000)
    assert not pace.adjust(COSTS, 8, 0, POLICY, 1000)
    assert not pace.adjust(COSTS, 8, 0, POLICY, RAISE_AFTER_US)
    assert pace.adjust(COSTS, 8, 0, POLICY, 1000 + RAISE_AFTER_US) and pace.budget == 512


def test_a_step_without_decodes_says_nothing() -> None:
    pace = paced(50_000)
    assert not pace.adjust(COSTS, 0, 0, POLICY, 0) and pace.budget == 512


def test_small_changes_are_not_ordered() -> None:
    pace = paced(50_000)
    pace.adjust(COSTS, 8, 0, POLICY, 0)
    assert not pace.adjust(COSTS, 9, 0, POLICY, 10_000) and not pace.adjust(COSTS, 7, 0, POLICY, 2 * RAISE_AFTER_US)


def test_streams_that_come_and_go_do_not_make_the_budget_swing() -> None:
    draw, pace = Random(1), paced(60_000)
    orders = 0
    for report in range(5000):
        wobble = StepCosts(Calibration(10_000.0 * draw.uniform(0.8, 1.2), 100.0, 1000.0, 0.0001))
        orders += pace.adjust(wobble, draw.choice((12, 16, 20, 24)), 0, POLICY, report * 30_000)
    assert 1 <= orders <= 3


def test_gaps_that_miss_the_target_too_often_lower_the_headroom_and_it_comes_back() -> None:
    pace = Pace(512)
    pace.felt(99_000.0, 1000.0)
    assert pace.headroom == HEADROOM, "without a target there is none to miss"
    pace.join(10_000)
    for number in range(20_000):  # one gap in twenty is twice as long
        pace.felt(20_000.0 * pace.headroom if number % 20 == 0 else 10_000.0 * pace.headroom, 2000.0)
    assert pace.headroom == pytest.approx(0.5, abs=0.02), "as low as lets nearly all of them meet it"
    for number in range(40_000):  # one in two hundred is as rare as the target allows
        pace.felt(20_000.0 if number % 200 == 0 else 5000.0, 2000.0)
    assert pace.headroom == pytest.approx(HEADROOM, abs=0.02)
    pace.headroom = 0.7
    pace.felt(30_000.0, 9000.0)
    assert pace.headroom == 0.7, "decodes that take that long alone say nothing of the budget"
