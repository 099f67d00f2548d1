"""Hints carried out: blocks lie in DRAM before anybody asks, and nothing that goes wrong with a hint matters."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from octavo_kvstore.pins import PinTable
from octavo_kvstore.prefetcher import MAX_HINTS, Prefetcher
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, key_of, make_block
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.slab import SlabTier

SIZE = 50_000


def make(folder: Path) -> Store:
    pins = PinTable()
    return Store(HeapTier(20 * (SIZE + 512), pins.is_pinned), SlabTier(folder, 8 * 2**20, pins.is_pinned), pins)


def test_what_is_hinted_lies_in_dram_afterwards(tmp_path: Path) -> None:
    store = make(tmp_path)
    for number in range(60):
        store.put(make_block(number, SIZE))
    assert store.flush(10) and store.where(key_of(0), LAYOUT) == "nvme"
    prefetcher = Prefetcher(store)
    prefetcher.hint([key_of(number) for number in range(4)])
    assert prefetcher.flush(10)
    assert [store.where(key_of(number), LAYOUT) for number in range(4)] == ["dram"] * 4
    assert store.counters()["prefetched"] == 4
    store.pin([key_of(number) for number in range(3)], LAYOUT, 1.0)
    assert (store.counters()["prefetch_used"], store.counters()["prefetch_wasted"]) == (3, 0)
    prefetcher.hint([key_of(number) for number in range(10, 40)])
    assert prefetcher.flush(10)
    assert store.counters()["prefetched"] - 4 <= 5, "one hint takes a quarter of DRAM at most"
    prefetcher.hint([key_of(500), b"k" * 32])
    assert prefetcher.flush(10) and store.counters()["prefetched"] <= 9
    prefetcher.close()
    prefetcher.close()
    store.close()


def test_a_hint_that_fails_costs_the_hint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = make(tmp_path)
    prefetcher = Prefetcher(store)
    done: list[int] = []

    def prefetch(keys: list[bytes]) -> int:
        if len(keys) == 1:
            raise OSError("no disk")
        done.append(len(keys))
        return 0

    monkeypatch.setattr(store, "prefetch", prefetch)
    with caplog.at_level(logging.ERROR):
        prefetcher.hint([key_of(1)])
        prefetcher.hint([key_of(1), key_of(2)])
        assert prefetcher.flush(10)
    assert done == [2] and "could not be carried out" in caplog.text
    prefetcher.close()
    store.close()


def test_old_hints_fall_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path)
    entered, gate, seen = threading.Event(), threading.Event(), list[int]()

    def prefetch(keys: list[bytes]) -> int:
        entered.set()
        assert gate.wait(10)
        seen.append(len(keys))
        return 0

    monkeypatch.setattr(store, "prefetch", prefetch)
    prefetcher = Prefetcher(store)
    prefetcher.hint([b""])
    assert entered.wait(10)
    for length in range(1, 3 * MAX_HINTS):
        prefetcher.hint([b""] * length)
    gate.set()
    assert prefetcher.flush(10)
    assert seen == [1, *range(2 * MAX_HINTS, 3 * MAX_HINTS)]
    prefetcher.close()
    store.close()
