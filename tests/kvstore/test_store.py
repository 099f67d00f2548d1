"""The store against a dict: random puts, gets, deletes, pins, evictions and restarts."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from octavo_kvstore.index import OVERHEAD_BYTES
from octavo_kvstore.pins import PinTable
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, OTHER_LAYOUT, is_right, key_of, make_block
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.slab import SlabTier

SIZE = 50_000
DRAM_BLOCKS = 4
MAP_BYTES = 2**20
numbers = st.integers(0, 29)


def make_store(folder: Path, dram: bool = True, nvme: bool = True) -> tuple[Store, PinTable]:
    pins = PinTable()
    upper = HeapTier(DRAM_BLOCKS * (SIZE + OVERHEAD_BYTES), pins.is_pinned) if dram else None
    lower = SlabTier(folder, MAP_BYTES, pins.is_pinned, boot_id="boot") if nvme else None
    return Store(upper, lower, pins, clock_s=lambda: 0.0), pins


class StoreMachine(RuleBasedStateMachine):
    """`may_hold` is what was put and not deleted: the store holds some of it, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.may_hold: set[int] = set()
        self.leases: dict[int, list[int]] = {}
        self.follower: set[bytes] = set()
        self.seen = 0

    @initialize(dram=st.booleans(), nvme=st.booleans())
    def start(self, dram: bool, nvme: bool) -> None:
        self.tiers = (dram or not nvme, nvme)
        self.store, self.pins = make_store(self.folder, *self.tiers)

    @rule(number=numbers, parent=st.none() | numbers)
    def put(self, number: int, parent: int | None) -> None:
        block = make_block(number, SIZE, None if parent == number else parent)
        before = self.store.contains(block.key, LAYOUT)
        outcome = self.store.put(block)
        assert (outcome is Put.KNOWN) == before
        if outcome is Put.STORED:
            self.may_hold.add(number)
            if self.tiers[0]:
                assert self.store.contains(block.key, LAYOUT)

    @rule(number=numbers)
    def put_damaged(self, number: int) -> None:
        key = key_of(number)
        before = self.store.contains(key, LAYOUT)
        assert self.store.put(replace(make_block(number, SIZE), checksum=1)) is (Put.KNOWN if before else Put.REFUSED)

    @rule(number=numbers)
    def get(self, number: int) -> None:
        found = self.store.get(key_of(number), LAYOUT)
        if found is not None:
            assert number in self.may_hold and is_right(found.block) and len(found.block.payload) == SIZE
        assert self.store.get(key_of(number), OTHER_LAYOUT) is None

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        self.store.delete(key_of(number))
        self.may_hold.discard(number)
        for held in self.leases.values():
            if number in held:
                held.remove(number)
        assert self.store.get(key_of(number), LAYOUT) is None

    @rule(start=numbers, length=st.integers(1, 3))
    def pin(self, start: int, length: int) -> None:
        wanted = list(range(start, start + length))
        self.store.flush(10)
        lease, held = self.store.pin([key_of(number) for number in wanted], LAYOUT, 1.0)
        assert bool(lease) == bool(held)
        if held:
            self.leases[lease] = wanted[:held]

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        self.store.unpin(lease)
        del self.leases[lease]

    @rule()
    def restart(self) -> None:
        self.store.flush(10)
        self.store.close()
        self.store, self.pins = make_store(self.folder, *self.tiers)
        self.leases.clear()
        self.seen, keys = self.store.inventory()
        self.follower = set(keys)
        if not self.tiers[1]:
            assert not keys
            self.may_hold.clear()

    @invariant()
    def what_is_pinned_is_held(self) -> None:
        for held in getattr(self, "leases", {}).values():
            for number in held:
                assert self.store.contains(key_of(number), LAYOUT)

    @invariant()
    def the_events_tell_the_inventory(self) -> None:
        if not hasattr(self, "store"):
            return
        self.store.flush(10)
        if self.store.counters()["write_behind_bytes"] == 0:
            # the writer says what it wrote after the flush is seen; ask for its keys once more
            self.store.reconcile([key_of(number) for number in range(33)])
        events = self.store.events.after(self.seen, 10_000)
        assert events is not None
        for event in events:
            self.seen += 1
            assert event.number == self.seen
            assert (event.key in self.follower) == event.removed
            (self.follower.discard if event.removed else self.follower.add)(event.key)
        number, keys = self.store.inventory()
        assert number == self.seen and set(keys) == self.follower
        assert self.follower == {key_of(n) for n in range(33) if self.store.contains(key_of(n), LAYOUT)}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestStoreMachine = StoreMachine.TestCase


def test_what_dram_evicts_comes_back_from_nvme_and_is_lifted(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path)
    for number in range(10):
        store.put(make_block(number, SIZE))
    assert store.flush(10)
    found = store.get(key_of(0), LAYOUT)
    assert found is not None and found.tier == "nvme" and found.block == make_block(0, SIZE)
    again = store.get(key_of(0), LAYOUT)
    assert again is not None and again.tier == "dram"
    assert store.where(key_of(1), LAYOUT) == "nvme"
    store.close()


def test_a_lost_medium_is_said_to_the_follower(tmp_path: Path) -> None:
    store, _ = make_store(tmp_path, dram=False)
    for number in range(5):
        store.put(make_block(number, SIZE))
    assert store.flush(10)
    nvme, _ = store._below[0]
    with nvme._write_lock:  # type: ignore[attr-defined]
        nvme._reset("test")  # type: ignore[attr-defined]
    events = store.events.after(0, 100)
    assert events is not None
    assert [event.removed for event in events].count(True) == 5
    assert store.inventory()[1] == []
    store.close()
