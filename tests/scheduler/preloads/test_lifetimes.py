"""Lifetimes: what ends when, and that long wishes of many requests leave nothing behind."""

from __future__ import annotations

from octavo_scheduler.preloads.lifetimes import LEAST_COMPACTED, Lifetimes

MONTH_US = 30 * 86_400 * 10**6


def test_extending_for_ever_and_forgetting_keep_the_list_short() -> None:
    lifetimes, keys = Lifetimes(), [bytes([number]) for number in range(100)]
    for key in keys:
        lifetimes.begin(key, MONTH_US)
    for now_us in range(1, 2000):
        lifetimes.extend(keys, now_us + MONTH_US)
        gone = now_us.to_bytes(4)
        lifetimes.begin(gone, now_us + MONTH_US)
        lifetimes.forget(gone)
    assert lifetimes.entries <= 2 * LEAST_COMPACTED and len(lifetimes) == 100
    last_us = 1999 + MONTH_US
    assert lifetimes.due(last_us - 1) == [] and lifetimes.due(last_us) == keys and len(lifetimes) == 0
    assert lifetimes.next_us() == 0 and lifetimes.entries == 0
