"""The hint to a refused client: by the rate at which the queue drains, and no sooner than it has stood."""

from __future__ import annotations

from octavo_scheduler.limits.drain import LEAST_RETRY_US, MOST_RETRY_US, DrainRate
from octavo_scheduler.policy import SECOND_US


def test_no_rate_is_a_second() -> None:
    assert DrainRate().retry_us("requests", 1, 0) == SECOND_US


def test_by_the_rate_of_each_unit() -> None:
    drain = DrainRate()
    for at in range(11):
        drain.admitted(100, 400, at * SECOND_US // 10)
    requests_us = drain.retry_us("requests", 5, SECOND_US)
    assert 0.4 * SECOND_US < requests_us < 0.6 * SECOND_US  # ten a second
    assert (
        drain.retry_us("prompt_tokens", 500, SECOND_US) == requests_us == drain.retry_us("kv_tokens", 2000, SECOND_US)
    )


def test_a_queue_that_stands_is_expected_to_stand_as_long_again() -> None:
    drain = DrainRate()
    for at in range(1000):
        drain.admitted(1, 1, at * 1000)
    assert drain.retry_us("requests", 1, SECOND_US) == LEAST_RETRY_US
    assert drain.retry_us("requests", 1, 4 * SECOND_US) >= 3 * SECOND_US


def test_never_longer_than_a_minute() -> None:
    drain = DrainRate()
    drain.admitted(1, 1, 0)
    assert drain.retry_us("requests", 1e9, 5 * SECOND_US) == MOST_RETRY_US
