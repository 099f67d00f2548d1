"""One suite over every tier, and over the store, which keeps the same promises."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from octavo_kvstore.arena_file import ArenaFolder
from octavo_kvstore.block import Block, BlockMeta
from octavo_kvstore.codecs.choice import Chooser
from octavo_kvstore.codecs.shapes import ShapeTable
from octavo_kvstore.encryption import FileKeyring, Vault
from octavo_kvstore.limits import TierLimits
from octavo_kvstore.pins import PinTable
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, OTHER_LAYOUT, is_right, key_of, make_block
from octavo_kvstore.testing_valkey import ValkeyServer, find_program
from octavo_kvstore.tier import Put, Tier, TierStats
from octavo_kvstore.tiers.arena import ArenaTier
from octavo_kvstore.tiers.coded import CodedTier
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.lmdb_values import LmdbTier
from octavo_kvstore.tiers.slab import SlabTier
from octavo_kvstore.tiers.valkey import PREFIX, ValkeyTier, connect

CAPACITY = 4 * 2**20
TENANT, OTHER, AGED = b"t" * 16, b"o" * 16, b"a" * 16
LIMITS = TierLimits({TENANT: 500_000}, {AGED: 60.0})
FLIP = bytes.maketrans(bytes(range(256)), bytes(value ^ 1 for value in range(256)))


class StoreAsTier(Tier):
    """The store behind the contract of a tier; every write waits for the write-behind."""

    name = "store"

    def __init__(self, store: Store, dram: HeapTier | ArenaTier, nvme: LmdbTier | SlabTier) -> None:
        self.store, self.dram, self.nvme = store, dram, nvme

    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        before = set(self.store.inventory()[1])
        outcomes = []
        for block in blocks:
            outcomes.append(self.store.put(block))
            self.store.flush(10)
        return outcomes, list(before - set(self.store.inventory()[1]))

    def get(self, key: bytes, layout: bytes) -> Block | None:
        found = self.store.get(key, layout)
        return found.block if found else None

    def contains(self, key: bytes, layout: bytes | None = None) -> bool:
        return bool(self.store.where(key, layout)) if layout else key in self.store.inventory()[1]

    def touch(self, key: bytes) -> None:
        self.dram.touch(key)
        self.nvme.touch(key)

    def delete(self, key: bytes) -> bool:
        return self.store.delete(key)

    def keys(self) -> list[bytes]:
        return self.store.inventory()[1]

    def refresh(self, key: bytes, meta: BlockMeta) -> None:
        self.dram.refresh(key, meta)
        self.nvme.refresh(key, meta)

    def sweep(self) -> list[bytes]:
        return self.store.sweep()

    def of_namespace(self, namespace: bytes) -> list[bytes]:
        return list({*self.dram.of_namespace(namespace), *self.nvme.of_namespace(namespace)})

    def layout_of(self, key: bytes) -> bytes:
        return self.dram.layout_of(key) or self.nvme.layout_of(key)

    def parent_of(self, key: bytes) -> bytes:
        return self.dram.parent_of(key) or self.nvme.parent_of(key)

    def stats(self) -> TierStats:
        both = self.store.tier_stats()
        return replace(both[1], corrupt=sum(tier.corrupt for tier in both), keys=len(self.keys()))

    def close(self) -> None:
        self.store.close()


def damage_heap(tier: HeapTier, key: bytes) -> None:
    entry = tier._index.raw(key)
    assert entry is not None
    entry.place = replace(entry.place, payload=bytes(entry.place.payload).translate(FLIP))


def damage_arena(tier: ArenaTier, key: bytes) -> None:
    entry = tier._index.raw(key)
    assert entry is not None and isinstance(entry.place, int) and tier._file is not None
    tier._file.map.slot(entry.place)[0] ^= 1


def damage_lmdb(tier: LmdbTier, key: bytes) -> None:
    assert tier._env is not None
    with tier._env.begin(write=True) as transaction:
        record = bytearray(transaction.get(key))
        record[-1] ^= 1
        transaction.put(key, bytes(record))


def damage_slab(tier: SlabTier, key: bytes) -> None:
    entry = tier._index.raw(key)
    assert entry is not None
    path = tier._folder.path / f"slab-{entry.place.pages}.bin"
    with path.open("r+b") as file:
        file.seek(entry.place.offset + entry.length - 1)
        last = file.read(1)
        file.seek(-1, 1)
        file.write(last.translate(FLIP))


def damage_valkey(server: ValkeyServer, key: bytes) -> None:
    client = connect(server.url, 5.0)
    record = client.get(PREFIX + key)
    assert isinstance(record, bytes)
    client.set(PREFIX + key, record[:-1] + bytes([record[-1] ^ 1]))


class Case:
    """A tier under test, what it pins, how its medium is damaged, and the time it goes by."""

    def __init__(self, kind: str, folder: Path, server: ValkeyServer | None = None) -> None:
        self.pinned: set[bytes] = set()
        self.kind = kind
        self.now_s = 1000.0
        given = {"is_pinned": self.is_pinned, "limits": LIMITS, "clock_s": lambda: self.now_s}
        folder.mkdir(exist_ok=True)
        arena = ArenaTier(ArenaFolder(folder, CAPACITY), CAPACITY, **given) if "arena" in kind else None
        heap = arena or HeapTier(CAPACITY, **given)
        lmdb_tier = LmdbTier(folder / "lmdb", CAPACITY, **given) if "lmdb" in kind else None
        slab = SlabTier(folder / "slab", CAPACITY, **given) if "slab" in kind else None
        lower = lmdb_tier or slab
        shared = ValkeyTier(connect(server.url, 5.0), CAPACITY, refresh_s=3600.0, **given) if server else None
        if shared is not None:
            self.tier: Tier = shared
        elif lower is None:
            self.tier = heap
        elif kind.startswith("coded"):
            vault = Vault(b"secret", FileKeyring(folder / "keyring.json"))
            self.tier = CodedTier(lower, Chooser("zstd"), ShapeTable(), vault)
        elif kind.startswith("store"):
            self.tier = StoreAsTier(Store(heap, lower, PinTable(), wall_s=lambda: self.now_s), heap, lower)
        else:
            self.tier = lower

        def damage(key: bytes) -> None:
            if server is not None:
                return damage_valkey(server, key)
            if isinstance(heap, ArenaTier):
                damage_arena(heap, key)
            elif lower is None or kind.startswith("store"):
                damage_heap(heap, key)
            if lmdb_tier is not None:
                damage_lmdb(lmdb_tier, key)
            if slab is not None:
                damage_slab(slab, key)

        self.damage: Callable[[bytes], None] = damage

    def is_pinned(self, key: bytes) -> bool:
        return key in self.pinned


KINDS = ("heap", "arena", "lmdb", "slab", "store-lmdb", "store-slab", "store-arena-slab", "coded-slab", "valkey")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer | None]:
    """None where none is installed, which CI does not accept."""
    if not find_program() and not os.environ.get("CI"):
        yield None
        return
    running = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    yield running
    running.kill()


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path, server: ValkeyServer | None) -> Iterator[Case]:
    shared = server if request.param == "valkey" else None
    if request.param == "valkey":
        if server is None:
            pytest.skip("needs valkey-server or redis-server")
        connect(server.url, 5.0).flushall()
    made = Case(request.param, tmp_path, shared)
    yield made
    made.tier.close()


def test_what_was_put_comes_back_whole(case: Case) -> None:
    head, next_one = make_block(1), make_block(2, parent=1)
    assert case.tier.put_many([head, next_one]) == ([Put.STORED, Put.STORED], [])
    assert case.tier.get(head.key, LAYOUT) == head
    assert case.tier.get(next_one.key, LAYOUT) == next_one
    assert set(case.tier.keys()) == {head.key, next_one.key}
    assert case.tier.stats().keys == 2


@pytest.mark.parametrize("size", [0, 1, 1900, 4096, 368_640])
def test_sizes(case: Case, size: int) -> None:
    block = make_block(7, size)
    assert case.tier.put(block)[0] is Put.STORED
    assert case.tier.get(block.key, LAYOUT) == block


def test_an_unknown_key_misses(case: Case) -> None:
    assert case.tier.get(key_of(1), LAYOUT) is None
    assert not case.tier.contains(key_of(1))
    assert not case.tier.delete(key_of(1))


def test_a_known_key_is_left_as_it_is(case: Case) -> None:
    block = make_block(1)
    case.tier.put(block)
    assert case.tier.put(block) == (Put.KNOWN, [])
    assert len(case.tier.keys()) == 1


def test_another_layout_misses_and_replaces(case: Case) -> None:
    block, other = make_block(1), make_block(1, layout=OTHER_LAYOUT)
    case.tier.put(block)
    assert case.tier.get(block.key, OTHER_LAYOUT) is None
    assert not case.tier.contains(block.key, OTHER_LAYOUT)
    assert case.tier.put(other)[0] is Put.STORED
    assert case.tier.get(block.key, LAYOUT) is None
    assert case.tier.get(block.key, OTHER_LAYOUT) == other


def test_delete_forgets_even_what_is_pinned(case: Case) -> None:
    block = make_block(1)
    case.tier.put(block)
    case.pinned.add(block.key)
    assert case.tier.delete(block.key)
    assert case.tier.get(block.key, LAYOUT) is None
    assert not case.tier.contains(block.key)
    assert case.tier.keys() == []


def test_it_stays_within_its_bytes_and_evicts_the_least_recently_used(case: Case) -> None:
    size, total = 100_000, 100
    for number in range(total):
        case.tier.put(make_block(number, size))
        if number < 90:
            assert case.tier.get(key_of(0), LAYOUT) is not None, "used all the time, so never the victim"
    stats = case.tier.stats()
    assert 0 < stats.used_bytes <= stats.capacity_bytes
    assert stats.evicted >= total - CAPACITY // size
    assert case.tier.contains(key_of(total - 1))
    assert not case.tier.contains(key_of(1))
    for key in list(case.tier.keys()):
        found = case.tier.get(key, LAYOUT)
        assert found is not None and is_right(found)


def test_a_chain_is_evicted_from_its_end(case: Case) -> None:
    size = 100_000
    for number in range(8):
        case.tier.put(make_block(number, size, parent=number - 1 if number else None))
    for number in range(100, 100 + CAPACITY // size - 4):
        case.tier.put(make_block(number, size))
    held = [case.tier.contains(key_of(number)) for number in range(8)]
    assert held == sorted(held, reverse=True), "a held block never lacks its parent"
    assert not all(held)


def test_what_is_pinned_stays(case: Case) -> None:
    case.pinned.add(key_of(0))
    for number in range(100):
        case.tier.put(make_block(number, 100_000))
    assert case.tier.get(key_of(0), LAYOUT) == make_block(0, 100_000)


def test_when_all_is_pinned_a_put_is_refused(case: Case) -> None:
    outcomes = []
    for number in range(100):
        case.pinned.add(key_of(number))
        outcomes.append(case.tier.put(make_block(number, 100_000))[0])
    assert outcomes[0] is Put.STORED and outcomes[-1] is Put.REFUSED
    for number, outcome in enumerate(outcomes):
        assert case.tier.contains(key_of(number)) == (outcome is Put.STORED)


def test_a_block_larger_than_the_tier_is_refused(case: Case) -> None:
    block = make_block(1, 2 * CAPACITY)
    case.tier.put(make_block(2))
    assert case.tier.put(block)[0] in (Put.REFUSED, Put.STORED)
    case.tier.put(make_block(3))
    assert case.tier.get(block.key, LAYOUT) is None
    assert case.tier.contains(key_of(2)), "nothing was evicted for what could never fit"


def test_a_damaged_record_is_a_miss_and_forgotten(case: Case) -> None:
    block, sound = make_block(1), make_block(2)
    case.tier.put_many([block, sound])
    case.damage(block.key)
    assert case.tier.get(block.key, LAYOUT) is None
    assert case.tier.stats().corrupt >= 1
    assert not case.tier.contains(block.key)
    assert case.tier.get(sound.key, LAYOUT) == sound
    assert case.tier.put(block)[0] is Put.STORED
    assert case.tier.get(block.key, LAYOUT) == block


def test_evicted_keys_are_named(case: Case) -> None:
    held: set[bytes] = set()
    for number in range(100):
        block = make_block(number, 100_000)
        outcome, evicted = case.tier.put(block)
        held -= set(evicted)
        if outcome is Put.STORED:
            held.add(block.key)
        assert held == set(case.tier.keys())


def test_after_close_everything_misses(case: Case) -> None:
    case.tier.put(make_block(1))
    case.tier.close()
    case.tier.close()
    assert case.tier.get(key_of(1), LAYOUT) is None
    assert case.tier.put(make_block(2))[0] is Put.REFUSED


@pytest.mark.parametrize(
    ("block", "field"),
    [
        (replace(make_block(1), key=b"short"), "key"),
        (replace(make_block(1), parent=b"short"), "parent"),
        (replace(make_block(1), layout=b""), "layout"),
    ],
)
def test_a_wrong_length_is_the_callers_bug(case: Case, block: Block, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        case.tier.put(block)


def test_many_threads(case: Case) -> None:
    """Readers, writers and deleters at once: whatever comes back is right."""
    wrong: list[str] = []

    def work(seed: int) -> None:
        for step in range(120):
            number = (seed * 31 + step * 7) % 60
            if step % 11 == seed:
                case.tier.delete(key_of(number))
            elif step % 3 == 0:
                case.tier.put(make_block(number, 100_000))
            else:
                found = case.tier.get(key_of(number), LAYOUT)
                if found is not None and not is_right(found):
                    wrong.append(f"{seed}/{step}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    stats = case.tier.stats()
    assert stats.used_bytes <= stats.capacity_bytes and stats.corrupt == 0


def test_meta_data_comes_back_with_the_block(case: Case) -> None:
    meta = BlockMeta(OTHER, expires_s=2000, stored_s=990, priority=-3, pinned=True, recompute_us=1234)
    block = make_block(1, meta=meta)
    case.tier.put(block)
    found = case.tier.get(block.key, LAYOUT)
    assert found is not None and found.meta == meta


def test_what_is_over_is_unreadable_at_once_and_swept_later(case: Case) -> None:
    mortal, immortal = make_block(1, meta=BlockMeta(expires_s=1100, stored_s=1000)), make_block(2)
    case.tier.put_many([mortal, immortal])
    case.now_s = 1099.0
    assert case.tier.contains(mortal.key) and case.tier.get(mortal.key, LAYOUT) == mortal
    case.now_s = 1100.0
    assert case.tier.get(mortal.key, LAYOUT) is None and not case.tier.contains(mortal.key, LAYOUT)
    assert case.tier.sweep() == [mortal.key]
    assert case.tier.keys() == [immortal.key]
    assert case.tier.stats().used_bytes < 2 * 4096 + 1024
    assert case.tier.put(replace(mortal, meta=BlockMeta(expires_s=1200, stored_s=1100)))[0] is Put.STORED
    assert case.tier.get(mortal.key, LAYOUT) is not None


def test_a_tenants_blocks_grow_no_older_than_its_limit(case: Case) -> None:
    aged, other = (make_block(n, meta=BlockMeta(tag, stored_s=1000)) for n, tag in ((1, AGED), (2, OTHER)))
    case.tier.put_many([aged, other])
    case.now_s = 1059.0
    assert case.tier.contains(aged.key, LAYOUT)
    case.now_s = 1060.0
    assert not case.tier.contains(aged.key, LAYOUT) and case.tier.get(aged.key, LAYOUT) is None
    assert case.tier.get(other.key, LAYOUT) == other


def test_a_clock_that_is_set_back_lengthens_no_life(case: Case) -> None:
    mortal, aged, immortal = (
        make_block(1, meta=BlockMeta(expires_s=100_100, stored_s=100_000)),
        make_block(2, meta=BlockMeta(AGED, stored_s=100_000)),
        make_block(3, meta=BlockMeta(stored_s=100_000)),
    )
    case.now_s = 100_000.0
    case.tier.put_many([mortal, aged, immortal])
    case.now_s -= 30.0  # a correction
    assert all(case.tier.contains(block.key, LAYOUT) for block in (mortal, aged, immortal))
    case.now_s -= 3600.0
    assert case.tier.get(mortal.key, LAYOUT) is None and case.tier.get(aged.key, LAYOUT) is None
    assert case.tier.get(immortal.key, LAYOUT) == immortal
    fresh = replace(mortal, meta=BlockMeta(expires_s=int(case.now_s) + 10, stored_s=int(case.now_s)))
    assert case.tier.put(fresh)[0] is Put.STORED
    assert case.tier.get(mortal.key, LAYOUT) is not None


def test_a_second_put_lengthens_a_life(case: Case) -> None:
    block = make_block(1, meta=BlockMeta(expires_s=1010, stored_s=1000))
    case.tier.put(block)
    assert case.tier.put(replace(block, meta=BlockMeta(expires_s=1500, stored_s=1000)))[0] is Put.KNOWN
    case.now_s = 1400.0
    assert case.tier.contains(block.key)
    assert case.tier.put(replace(block, meta=BlockMeta(stored_s=1000)))[0] is Put.KNOWN
    case.now_s = 9999.0
    assert case.tier.contains(block.key), "no limit outlasts any limit"


def test_a_tenant_above_its_quota_loses_its_own_blocks(case: Case) -> None:
    for number in range(10):
        case.tier.put(make_block(100 + number, 100_000, meta=BlockMeta(OTHER)))
    for number in range(10):
        assert case.tier.put(make_block(number, 100_000, meta=BlockMeta(TENANT)))[0] is Put.STORED
    held = [number for number in range(10) if case.tier.contains(key_of(number))]
    assert held == list(range(10 - len(held), 10)) and 1 <= len(held) <= 5
    assert all(case.tier.contains(key_of(100 + number)) for number in range(10)), "nobody else pays for it"
    assert set(case.tier.of_namespace(TENANT)) == {key_of(number) for number in held}


def test_a_block_above_the_quota_is_refused(case: Case) -> None:
    small = make_block(1, meta=BlockMeta(TENANT))
    case.tier.put(small)
    case.tier.put(make_block(2, 600_000, meta=BlockMeta(TENANT)))
    assert not case.tier.contains(key_of(2))
    assert case.tier.contains(small.key), "nothing was evicted for what could never fit"


def test_pinned_meta_data_keeps_a_block_and_priority_outranks_use(case: Case) -> None:
    case.tier.put(make_block(0, 100_000, meta=BlockMeta(pinned=True)))
    case.tier.put(make_block(1, 100_000, meta=BlockMeta(priority=1)))
    for number in range(10, 70):
        case.tier.put(make_block(number, 100_000))
    assert case.tier.contains(key_of(0)) and case.tier.contains(key_of(1))


def test_what_is_dear_to_compute_stays_longer(case: Case) -> None:
    for number in range(30):
        meta = BlockMeta(recompute_us=64_000 if number < 5 else 100)
        case.tier.put(make_block(number, 100_000, meta=meta))
    for number in range(30, 50):
        case.tier.put(make_block(number, 100_000, meta=BlockMeta(recompute_us=100)))
    assert all(case.tier.contains(key_of(number)) for number in range(5))
    assert not case.tier.contains(key_of(5))


def test_read_into_fills_the_room_it_is_given(case: Case) -> None:
    block = make_block(1, 10_000)
    case.tier.put(block)
    room = memoryview(mmap.mmap(-1, 16_384))
    found = case.tier.read_into(block.key, LAYOUT, room)
    assert found == block and room[:10_000] == block.payload
    small = memoryview(bytearray(10_001))
    assert case.tier.read_into(block.key, LAYOUT, small) == block, "room need not be aligned"
    assert case.tier.read_into(key_of(9), LAYOUT, room) is None
