"""Errors of predictions, and the correction that is learned from them."""

from __future__ import annotations

import pytest
from octavo_scheduler.limits.accuracy import KEPT, Correction, Errors
from octavo_scheduler.limits.drain import LEAST_RETRY_US, MOST_RETRY_US, DrainRate, bounded
from octavo_scheduler.policy import SECOND_US


def test_errors_are_relative_and_only_the_latest_count() -> None:
    errors = Errors()
    assert errors.quantile(0.9) == 0.0
    assert errors.observe(150.0, 100.0) == pytest.approx(0.5) and errors.observe(50.0, 100.0) == pytest.approx(0.5)
    for _ in range(KEPT):
        errors.observe(110.0, 100.0)
    assert errors.quantile(0.5) == pytest.approx(0.1) and errors.count == KEPT + 2


def test_a_correction_approaches_the_bias_and_is_bounded() -> None:
    correction = Correction()
    assert correction.factor == 1.0
    for _ in range(500):
        correction.observe(100.0, 150.0)
    assert correction.factor == pytest.approx(1.5, rel=0.01)
    for _ in range(500):
        correction.observe(1.0, 1e9)
    assert correction.factor <= 4.0


def test_the_drain_rate_says_when_so_much_has_left() -> None:
    drain = DrainRate()
    assert drain.retry_us("requests", 5, 0) == SECOND_US  # nothing is known
    for number in range(400):  # 10 per second
        drain.admitted(100, 150, number * SECOND_US // 10)
    now_us = 40 * SECOND_US
    assert drain.retry_us("requests", 20, now_us) == pytest.approx(2 * SECOND_US, rel=0.1)
    assert drain.retry_us("prompt_tokens", 1000, now_us) == pytest.approx(SECOND_US, rel=0.1)
    assert drain.retry_us("kv_tokens", 1500, now_us) == pytest.approx(SECOND_US, rel=0.1)
    assert drain.retry_us("requests", 1e-9, now_us) == LEAST_RETRY_US
    assert bounded(1e12) == MOST_RETRY_US
