"""The arena: slots in shared memory, lent and reserved, and never lost whoever dies."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from octavo.arena import ArenaMap
from octavo.errors import OctavoError
from octavo.memory import Room
from octavo_kvstore import arena_file
from octavo_kvstore.arena_desk import ArenaDesk
from octavo_kvstore.arena_file import ArenaFile, ArenaFolder, is_dead
from octavo_kvstore.block import Block
from octavo_kvstore.pins import PinTable
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, is_right, key_of, make_block, payload_of
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers import arena as arena_tier
from octavo_kvstore.tiers.arena import ArenaTier, SlotRef
from octavo_kvstore.tiers.slab import SlabTier

SIZE = 8000
SLOTS = 8
CAPACITY = SLOTS * 8192
SHM = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> ArenaFolder:
    return ArenaFolder(tmp_path, CAPACITY)


def test_an_arena_takes_no_memory_that_is_left_for_others(
    folder: ArenaFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A volume in shared memory promises what a control group has not, and a process is killed for it."""
    room = [Room(2**31, 2**31)]
    monkeypatch.setattr(arena_file, "tightest", lambda: room[0])
    file = ArenaFile(folder, 5000, 8192)
    assert len(file.back()) == arena_file.RUN_BYTES // 8192
    room[0] = Room(2**28, 2**32)
    with caplog.at_level("WARNING"):
        assert file.back() == file.back() == range(0)
    assert caplog.text.count("the DRAM tier stays at 16 MiB") == 1
    room[0] = Room(2**31, 2**31)
    assert file.back() == range(2048, 4096)
    file.close()


@dataclass
class Client:
    """What a worker does, without the RPC: its lock, its mapping, its copies."""

    desk: ArenaDesk
    number: int = 0
    fd: int = -1
    reserved: list[tuple[SlotRef, bytes]] = field(default_factory=list)

    def attach(self, size: int = SIZE) -> Client:
        name = f"octavo-lease-{uuid.uuid4().hex}"
        self.fd = os.open(self.desk.folder.path / name, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        given = self.desk.attach(size, name)
        assert given is not None
        self.number = given.client
        self.map = ArenaMap(given.file.path, given.file.slots, given.file.slot_bytes)
        return self

    def die(self) -> None:
        os.close(self.fd)

    def fill(self, ref: SlotRef, number: int) -> tuple[SlotRef, Block]:
        block = make_block(number, SIZE)
        self.map.slot(ref.slot)[:SIZE] = block.payload
        return SlotRef(ref.slot, ref.generation, ref.length, block.checksum), Block(
            block.key, b"", LAYOUT, block.checksum, b""
        )

    def put(self, number: int) -> Put:
        refs = self.desk.reserve(self.number, [key_of(number)], LAYOUT, SIZE, b"")
        if not refs:
            return Put.REFUSED
        return Put.KNOWN if not refs[0].length else self.desk.commit(self.number, *self.fill(refs[0], number))

    def copy(self, ref: SlotRef, number: int) -> bool:
        """Whether the copy is what was promised; fails when it passes every check and is wrong."""
        payload = bytes(self.map.slot(ref.slot)[: ref.length])
        whole = self.map.generation(ref.slot) == ref.generation and xxhash.xxh3_64_intdigest(payload) == ref.checksum
        assert not whole or payload == payload_of(key_of(number) + LAYOUT, SIZE)
        return whole


def make(folder: ArenaFolder, nvme: SlabTier | None = None) -> tuple[Store, ArenaTier, ArenaDesk]:
    pins = PinTable()
    arena = ArenaTier(folder, CAPACITY, pins.is_pinned)
    store = Store(arena, nvme, pins, clock_s=lambda: 0.0)
    return store, arena, ArenaDesk(store, arena, folder)


def load(store: Store, desk: ArenaDesk, client: Client, numbers: list[int]) -> tuple[int, list[SlotRef]]:
    keys = [key_of(number) for number in numbers]
    lease, held = store.pin(keys, LAYOUT, 1.0, client.number)
    if not lease:
        return 0, []
    desk.begin_lease(client.number, lease)
    return lease, desk.lend(client.number, lease, keys[:held], LAYOUT)


def unpin(store: Store, desk: ArenaDesk, lease: int) -> None:
    desk.end_lease(lease)
    store.unpin(lease)


def test_blocks_go_in_and_out_through_shared_memory_alone(folder: ArenaFolder) -> None:
    store, arena, desk = make(folder)
    writer, reader = Client(desk).attach(), Client(desk).attach()
    assert [writer.put(number) for number in (1, 2, 1)] == [Put.STORED, Put.STORED, Put.KNOWN]
    lease, refs = load(store, desk, reader, [1, 2, 3])
    assert len(refs) == 2 and all(map(reader.copy, refs, (1, 2)))
    unpin(store, desk, lease)
    found = store.get(key_of(1), LAYOUT)
    assert found is not None and is_right(found.block)
    assert arena.audit() == [] and arena.slot_counts() == {"arena_slots": 8, "arena_reserved": 0, "arena_lent": 0}
    store.close()


def test_a_slot_that_is_lent_is_never_filled_anew(folder: ArenaFolder) -> None:
    store, arena, desk = make(folder)
    client = Client(desk).attach()
    client.put(0)
    lease, refs = load(store, desk, client, [0])
    store.delete(key_of(0))
    for number in range(1, 30):
        assert client.put(number) is Put.STORED
    assert client.copy(refs[0], 0), "deleted, and still readable by whom it was lent to"
    assert arena.audit() == []
    unpin(store, desk, lease)
    for number in range(30, 60):
        client.put(number)
    assert not client.copy(refs[0], 0), "generation and checksum tell that it is another block by now"
    assert arena.audit() == []


def test_a_commit_of_what_is_not_ones_own_or_not_whole_is_refused(folder: ArenaFolder) -> None:
    store, arena, desk = make(folder)
    mine, other = Client(desk).attach(), Client(desk).attach()
    (ref,) = desk.reserve(mine.number, [key_of(1)], LAYOUT, SIZE, b"")
    filled, block = mine.fill(ref, 1)
    assert desk.commit(other.number, filled, block) is Put.REFUSED
    assert desk.commit(mine.number, SlotRef(ref.slot, ref.generation + 2, SIZE, filled.checksum), block) is Put.REFUSED
    wrong = Block(key_of(2), b"", LAYOUT, filled.checksum, b"")
    assert desk.commit(mine.number, filled, wrong) is Put.REFUSED
    mine.map.slot(ref.slot)[5] ^= 1
    assert desk.commit(mine.number, filled, block) is Put.REFUSED and not store.contains(key_of(1), LAYOUT)
    assert desk.commit(mine.number, filled, block) is Put.REFUSED, "the slot went back with the first try"
    assert arena.audit() == []


def test_reserve_skips_what_is_held_and_stops_where_room_ends(folder: ArenaFolder) -> None:
    store, arena, desk = make(folder)
    client = Client(desk).attach()
    client.put(2)
    refs = desk.reserve(client.number, [key_of(n) for n in (1, 2, 3)], LAYOUT, SIZE, b"")
    assert [bool(ref.length) for ref in refs] == [True, False, True]
    more = desk.reserve(client.number, [key_of(n) for n in range(10, 30)], LAYOUT, SIZE, b"")
    assert len(more) == SLOTS - 2, "what is reserved is evicted by nobody"
    desk.give_up(client.number, [ref.slot for ref in (*refs, *more) if ref.length])
    assert arena.slot_counts()["arena_reserved"] == 0 and arena.audit() == []
    assert desk.reserve(client.number, [key_of(50)], LAYOUT, 9000, b"") == [], "larger than a slot"
    store.close()


def test_what_a_dead_client_had_comes_back(folder: ArenaFolder) -> None:
    store, arena, desk = make(folder)
    victim, other = Client(desk).attach(), Client(desk).attach()
    for number in range(4):
        other.put(number)
    desk.reserve(victim.number, [key_of(20), key_of(21)], LAYOUT, SIZE, b"")
    load(store, desk, victim, [0, 1])
    lease, refs = load(store, desk, other, [1, 2])
    assert desk.reap() == 0 and store.counters()["leases"] == 2
    victim.die()
    assert desk.reap() == 4
    assert store.counters()["leases"] == 1 and not desk.knows(victim.number) and desk.knows(other.number)
    assert arena.slot_counts() == {"arena_slots": 8, "arena_reserved": 0, "arena_lent": 2} and arena.audit() == []
    assert all(map(other.copy, refs, (1, 2)))
    unpin(store, desk, lease)
    store.close()


def test_a_process_killed_while_it_holds_slots_loses_them_without_a_timer(folder: ArenaFolder) -> None:
    store, arena, desk = make(folder)
    name = f"octavo-lease-{uuid.uuid4().hex}"
    code = (
        "import fcntl, os, sys, time; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.flock(fd, fcntl.LOCK_EX);"
        "print('locked', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(folder.path / name)], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"locked\n"
    given = desk.attach(SIZE, name)
    assert given is not None and len(desk.reserve(given.client, [key_of(1)], LAYOUT, SIZE, b"")) == 1
    assert desk.reap() == 0
    child.kill()
    child.wait()
    child.stdout.close()
    assert desk.reap() == 1 and arena.audit() == [] and not (folder.path / name).exists()
    store.close()


def test_what_a_dead_store_left_is_removed_and_a_live_ones_is_not(tmp_path: Path) -> None:
    folder = ArenaFolder(tmp_path, CAPACITY)
    _, arena, desk = make(folder)
    Client(desk).attach()
    (tmp_path / "octavo-arena-left").write_bytes(b"x")
    (tmp_path / "octavo-lease-left").write_bytes(b"")
    (tmp_path / "something else").write_bytes(b"")
    (tmp_path / ".new-octavo-arena-old").write_bytes(b"")
    (tmp_path / ".new-octavo-arena-fresh").write_bytes(b"")
    os.utime(tmp_path / ".new-octavo-arena-old", (0, 0))
    ArenaFolder(tmp_path, CAPACITY)
    left = sorted(path.name.partition("-left")[0][:12] for path in tmp_path.iterdir())
    assert left == [".new-octavo-", "octavo-arena", "octavo-lease", "something el"]
    assert (tmp_path / ".new-octavo-arena-fresh").exists(), "somebody is about to lock it"
    arena.close()
    assert not list(tmp_path.glob("octavo-arena-*"))


@pytest.mark.parametrize("name", ["", "octavo-arena-1", "octavo-lease-../x", "octavo-lease-missing"])
def test_a_lock_file_that_nobody_holds_is_refused(folder: ArenaFolder, name: str) -> None:
    _, _, desk = make(folder)
    with pytest.raises(ValueError, match="lock_name"):
        desk.attach(SIZE, name)


def test_a_volume_that_is_too_small_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(OctavoError, match=r"arena_path .* are free and cache.dram_bytes is 9223372036854775807"):
        ArenaFolder(tmp_path, 2**63 - 1)
    with pytest.raises(OctavoError, match="give a folder in shared memory"):
        ArenaFolder(tmp_path / "missing", 1)


def test_another_block_size_lays_the_arena_out_anew_when_nobody_has_it_mapped(folder: ArenaFolder) -> None:
    store, arena, desk = make(folder)
    small = Client(desk).attach()
    small.put(1)
    lease, _ = load(store, desk, small, [1])
    name = f"octavo-lease-{uuid.uuid4().hex}"
    fd = os.open(folder.path / name, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert desk.attach(16_000, name) is None, "this client's blocks travel in messages"
    unpin(store, desk, lease)
    assert desk.attach(16_000, name) is None, "the other one would copy from an arena that is gone"
    small.die()
    given = desk.attach(16_000, name)
    assert given is not None and given.file.slot_bytes == 16_384
    assert not store.contains(key_of(1), LAYOUT) and arena.audit() == [] and store.inventory()[1] == []
    assert desk.attach(CAPACITY, name) is None, "not even two slots"
    os.close(fd)


def test_blocks_from_below_are_lifted_into_slots_and_lent(folder: ArenaFolder, tmp_path: Path) -> None:
    nvme = SlabTier(tmp_path / "nvme", 4 * 2**20)
    store, arena, desk = make(folder, nvme)
    client = Client(desk).attach()
    for number in range(20):
        assert client.put(number) is Put.STORED
    assert store.flush(10)
    assert store.where(key_of(0), LAYOUT) == "nvme"
    found = store.lift(key_of(0), LAYOUT)
    assert found is not None and found.tier == "nvme" and is_right(found.block)
    lease, refs = load(store, desk, client, [0])
    assert len(refs) == 1 and client.copy(refs[0], 0)
    unpin(store, desk, lease)
    assert store.lift(key_of(99), LAYOUT) is None and arena.audit() == []
    assert store.prefetch([key_of(number) for number in range(1, 6)]) == 2, "a quarter of DRAM for one hint"
    assert store.where(key_of(1), LAYOUT) == "dram"
    store.close()


def test_a_folder_that_takes_no_file_leaves_the_heap(folder: ArenaFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arena_tier, "ArenaFile", no_file)
    store, arena, desk = make(folder)
    for number in range(30):
        assert store.put(make_block(number, SIZE)) is Put.STORED
    found = store.get(key_of(29), LAYOUT)
    assert found is not None and is_right(found.block) and arena.stats().used_bytes <= CAPACITY
    name = f"octavo-lease-{uuid.uuid4().hex}"
    fd = os.open(folder.path / name, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert desk.attach(SIZE, name) is None
    os.close(fd)
    store.close()


def test_a_volume_that_gives_less_than_it_promised_is_lived_with(
    folder: ArenaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = iter([range(3)])
    monkeypatch.setattr(ArenaFile, "back", lambda self: next(given, range(0)))
    store, arena, _ = make(folder)
    for number in range(20):
        assert store.put(make_block(number, SIZE)) is Put.STORED
    assert arena.stats().keys == 3 and arena.stats().capacity_bytes == 3 * 8192
    found = store.get(key_of(19), LAYOUT)
    assert found is not None and is_right(found.block)
    store.close()


class SlotMachine(RuleBasedStateMachine):
    """Random clients that reserve, commit, give up, load, unpin, die and come back: no slot is ever in two states, or in none."""

    def __init__(self) -> None:
        super().__init__()
        self.path = SHM / f"octavo-test-{uuid.uuid4().hex}"
        self.path.mkdir()
        folder = ArenaFolder(self.path, CAPACITY)
        self.nvme = SlabTier(self.path / "nvme", 2**20)
        self.store, self.arena, self.desk = make(folder, self.nvme)
        self.clients = [Client(self.desk).attach() for _ in range(2)]
        self.loads: dict[int, tuple[Client, list[SlotRef], list[int]]] = {}

    clients_at, numbers = st.integers(0, 1), st.integers(0, 15)

    @rule(at=clients_at, start=numbers, count=st.integers(1, 4))
    def reserve(self, at: int, start: int, count: int) -> None:
        client = self.clients[at]
        keys = [key_of(start + more) for more in range(count)]
        for ref, key in zip(self.desk.reserve(client.number, keys, LAYOUT, SIZE, b""), keys, strict=False):
            if ref.length:
                client.reserved.append((ref, key))

    @rule(at=clients_at, good=st.booleans())
    def commit(self, at: int, good: bool) -> None:
        client = self.clients[at]
        if client.reserved:
            ref, key = client.reserved.pop(0)
            number = next(number for number in range(20) if key_of(number) == key)
            filled, block = client.fill(ref, number)
            if not good:
                client.map.slot(ref.slot)[0] ^= 1
            outcome = self.desk.commit(client.number, filled, block)
            assert outcome in ((Put.STORED, Put.KNOWN) if good else (Put.REFUSED,))

    @rule(at=clients_at)
    def give_up(self, at: int) -> None:
        client = self.clients[at]
        self.desk.give_up(client.number, [ref.slot for ref, _ in client.reserved])
        client.reserved.clear()

    @rule(at=clients_at, start=numbers, count=st.integers(1, 4))
    def load(self, at: int, start: int, count: int) -> None:
        wanted = list(range(start, start + count))
        lease, refs = load(self.store, self.desk, self.clients[at], wanted)
        if lease:
            self.loads[lease] = (self.clients[at], refs, wanted)

    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        if self.loads:
            lease = data.draw(st.sampled_from(sorted(self.loads)))
            client, refs, wanted = self.loads.pop(lease)
            assert all(map(client.copy, refs, wanted)), "lent slots keep their bytes until the lease ends"
            unpin(self.store, self.desk, lease)

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        self.store.delete(key_of(number))

    @rule(number=numbers)
    def lift(self, number: int) -> None:
        self.store.flush(10)
        found = self.store.lift(key_of(number), LAYOUT)
        assert found is None or is_right(found.block)

    @rule(at=clients_at)
    def die(self, at: int) -> None:
        dead = self.clients[at]
        dead.die()
        self.desk.reap()
        self.loads = {lease: item for lease, item in self.loads.items() if item[0] is not dead}
        self.clients[at] = Client(self.desk).attach()

    @invariant()
    def every_slot_is_in_one_state(self) -> None:
        assert self.arena.audit() == []
        counts = self.arena.slot_counts()
        assert counts["arena_reserved"] == sum(len(client.reserved) for client in self.clients)
        lent = {ref.slot for _, refs, _ in self.loads.values() for ref in refs}
        assert counts["arena_lent"] == len(lent)

    def teardown(self) -> None:
        for client in self.clients:
            client.die()
        self.desk.reap()
        assert self.arena.audit() == [] and self.arena.slot_counts()["arena_lent"] == 0
        self.store.close()
        subprocess.run(["rm", "-rf", str(self.path)], check=True)


SlotMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestSlotMachine = SlotMachine.TestCase


def test_is_dead_says_what_flock_says(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert is_dead(path)
    path.touch()
    assert is_dead(path)
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert not is_dead(path)
    os.close(fd)
    assert is_dead(path)


def test_a_commit_whose_client_dies_meanwhile_never_takes_another_s_slot(
    folder: ArenaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, arena, desk = make(folder)
    victim, other = Client(desk).attach(), Client(desk).attach()
    (ref,) = desk.reserve(victim.number, [key_of(1)], LAYOUT, SIZE, b"")
    filled, block = victim.fill(ref, 1)
    taken: list[SlotRef] = []
    digest = xxhash.xxh3_64_intdigest

    def dies_while_it_is_checked(payload: bytes) -> int:
        if not taken:
            victim.die()
            assert desk.reap() == 1
            taken.extend(desk.reserve(other.number, [key_of(2)], LAYOUT, SIZE, b""))
            assert taken[0].slot == ref.slot
        return digest(payload)

    with monkeypatch.context() as patch:
        patch.setattr(xxhash, "xxh3_64_intdigest", dies_while_it_is_checked)
        assert desk.commit(victim.number, filled, block) is Put.REFUSED
    assert not store.contains(key_of(1), LAYOUT)
    assert desk.commit(other.number, *other.fill(taken[0], 2)) is Put.STORED and arena.audit() == []
    assert desk.reserve(victim.number, [key_of(3)], LAYOUT, SIZE, b"") == [], "the dead get nothing any more"
    lease, _held = store.pin([key_of(2)], LAYOUT, 1.0, victim.number)
    desk.begin_lease(victim.number, lease)
    assert desk.lend(victim.number, lease, [key_of(2)], LAYOUT) == [] and arena.slot_counts()["arena_lent"] == 0
    store.close()


def test_a_read_from_below_that_raises_gives_its_slot_back(folder: ArenaFolder, tmp_path: Path) -> None:
    nvme = SlabTier(tmp_path / "nvme", 4 * 2**20)
    store, arena, desk = make(folder, nvme)
    Client(desk).attach()

    class Broken:
        def read_into(self, key: bytes, layout: bytes, room: memoryview, lane: object = None) -> Block | None:
            raise MemoryError

    for _ in range(SLOTS + 1):
        with pytest.raises(MemoryError):
            arena.lift(key_of(1), LAYOUT, Broken())  # type: ignore[arg-type]
    assert arena.slot_counts()["arena_reserved"] == 0 and arena.audit() == []
    store.close()
