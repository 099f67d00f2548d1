"""Lifetimes: what ends when, and that long wishes of many requests leave nothing behind."""

from __future__ import annotations

import pytest
from octavo_scheduler.preloads.lifetimes import LEAST_COMPACTED, Lifetimes
from octavo_scheduler.preloads.rule import CacheRule

from tests.scheduler.scenes import make, run_until

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


def test_what_nobody_holds_is_forgotten_long_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo_scheduler.preloads.lifetimes.SWEEP_FIRST", 64)
    simulation, gateway = make(num_blocks=17)
    cell = simulation.core.cell
    cell.caching.lifetimes = Lifetimes()
    for number in range(60):
        prompt = [number * 20 + at for at in range(20)]
        client = simulation.submit(gateway, prompt, 1, cache=CacheRule(ttl_us=MONTH_US))
        run_until(simulation, lambda: client.outcome)  # noqa: B023
        simulation.advance(300_000)
    held = {key for worker in cell.fleet.workers.values() for key in worker.index.block_of}
    assert held and all(key in cell.caching.lifetimes for key in held), "what is there has its time yet"
    assert len(cell.caching.lifetimes) <= 64 + 8 * 5 < 60 * 5
