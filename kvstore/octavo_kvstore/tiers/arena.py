"""The DRAM tier in shared memory: fixed slots that workers of this host copy from and to, with no copy in between.

States of a slot: free; reserved (a client fills it); held (a block lies there); lent out (held, and a client may be copying from
it); orphaned (its block is gone, but a client may still be copying). Only free slots are filled. Reserved and lent slots
belong to a client and go back when it says so or when its process is dead; no timer takes them.
Blocks that do not fit into a slot lie on the heap, within the same capacity.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import xxhash

from octavo_kvstore.arena_file import ArenaFile, ArenaFolder
from octavo_kvstore.block import Block, Payload, check_block, check_key
from octavo_kvstore.index import OVERHEAD_BYTES, Clock, Entry, IsPinned, TierIndex
from octavo_kvstore.limits import NO_LIMITS, TierLimits
from octavo_kvstore.tier import IndexedTier, Lane, Put, Tier

log = logging.getLogger("octavo.kvstore.arena")

PAGE_BYTES = 4096
MIN_SLOTS = 2
KEPT_SHARE = 4
"""Of the slots, as 1/KEPT_SHARE, that may be kept for the tiers below; payloads are copied for them beyond."""
OWNER = 0
"""Among clients: this store."""
Release = Callable[[], None]
SLOT_COUNTS = ("arena_slots", "arena_reserved", "arena_lent")


@dataclass(frozen=True, slots=True)
class SlotRef:
    """What a client needs to copy a block: where it lies, and how it will know that it got it."""

    slot: int
    generation: int
    length: int
    checksum: int


@dataclass(frozen=True, slots=True)
class _Reserved:
    client: int
    key: bytes
    length: int


class ArenaTier(IndexedTier[int | Payload]):
    """A place is the number of a slot, or the payload itself when that lies on the heap."""

    name = "dram"

    def __init__(
        self,
        folder: ArenaFolder,
        capacity_bytes: int,
        is_pinned: IsPinned = lambda key: False,
        limits: TierLimits = NO_LIMITS,
        clock_s: Clock = time.time,
    ) -> None:
        super().__init__(TierIndex(capacity_bytes, is_pinned, limits, clock_s))
        self._folder = folder
        self._capacity_bytes = capacity_bytes
        self._file: ArenaFile | None = None
        self._free: list[int] = []
        self._generations: list[int] = []
        self._reserved: dict[int, _Reserved] = {}
        self._lent: dict[int, Counter[int]] = {}  # slot -> times lent out, by client
        self._orphans: set[int] = set()
        self._kept: dict[int, int] = {}  # slot -> how many still write it down; lent to OWNER meanwhile
        self._closed = False

    # the file

    def lay_out(self, block_bytes: int, *, anew: bool) -> ArenaFile | None:
        """The arena with slots for blocks of this size; None when there is none that fits.

        The first caller decides the size. Another size empties the tier, and only when `anew`: nobody has the old one mapped.
        Raises OSError.
        """
        lost: list[bytes] = []
        with self._lock:
            file = self._file
            if file is not None and not anew and _slot_bytes(block_bytes) != file.slot_bytes:
                return None
            file = self._lay_out(block_bytes, lost)
        if lost:
            self.on_lost(lost)
        return file

    def _lay_out(self, block_bytes: int, lost: list[bytes]) -> ArenaFile | None:
        slot_bytes = _slot_bytes(block_bytes)
        file = self._file
        if file is not None and slot_bytes == file.slot_bytes:
            return file
        slots = self._capacity_bytes // slot_bytes
        in_use = self._reserved or self._lent.keys() - self._kept.keys()
        if self._closed or slots < MIN_SLOTS or (file is not None and in_use):
            return None
        fresh = ArenaFile(self._folder, slots, slot_bytes)
        for key, entry in self._index.entries():
            if isinstance(entry.place, int):
                self._index.leave(key)
                lost.append(key)
        if file is not None:
            file.close()
        self._file = fresh
        self._lent.clear()
        self._kept.clear()
        self._orphans.clear()
        self._free, self._generations = [], [1] * slots
        return self._file

    # slots; under _lock

    def _take(self, namespace: bytes, evicted: list[bytes]) -> int | None:
        """A free slot, evicting for it; its generation is odd from here on. None: nothing may be evicted."""
        file = self._file
        if file is None or self._closed:
            return None
        victims: list[tuple[bytes, Entry[int | Payload]]] = []
        index = self._index
        while True:
            # what is reserved or orphaned is not in the index and takes room all the same
            busy = (len(self._reserved) + len(self._orphans)) * file.slot_bytes
            index.allowed_bytes = index.capacity_bytes - busy
            fits = index.make_room({namespace: file.slot_bytes}, victims) and (
                index.used_bytes + file.slot_bytes <= index.allowed_bytes
            )
            orphans = len(self._orphans)
            self._let_go(victims, evicted)
            if not fits:
                return None
            if len(self._orphans) > orphans:
                continue  # what was evicted is still copied from: its slot is no room yet
            if self._free:
                break
            self._free.extend(reversed(file.back()))
            if not self._free:  # the volume gave less than it had promised, or memory is short
                if not len(index):
                    return None
                index.allowed_bytes = index.capacity_bytes = index.used_bytes
        slot = self._free.pop()
        self._generations[slot] += 1 if self._generations[slot] % 2 == 0 else 2
        file.map.set_generation(slot, self._generations[slot])
        return slot

    def _let_go(self, victims: list[tuple[bytes, Entry[int | Payload]]], evicted: list[bytes]) -> None:
        for key, entry in victims:
            self._release(entry)
            evicted.append(key)
        victims.clear()

    def _release(self, entry: Entry[int | Payload]) -> None:
        """The block of an entry that has left the index: its slot is free, or an orphan while somebody copies from it."""
        if isinstance(entry.place, int):
            if entry.place in self._lent:
                self._orphans.add(entry.place)
            else:
                self._free.append(entry.place)

    def _fill(self, slot: int, block: Block) -> None:
        """The slot's bytes are `block.payload` by now: from here on it can be read."""
        file = self._file
        assert file is not None
        self._generations[slot] += 1
        file.map.set_header(slot, self._generations[slot], len(block.payload), block.checksum, block.key)
        self._enter(block, slot, file.slot_bytes)

    def _enter(self, block: Block, place: int | Payload, size: int) -> None:
        length = len(block.payload)
        self._index.enter(block.key, Entry(block.parent, block.layout, block.checksum, length, size, block.meta, place))

    def _ref(self, entry: Entry[int | Payload]) -> SlotRef:
        assert isinstance(entry.place, int)
        return SlotRef(entry.place, self._generations[entry.place], entry.length, entry.checksum)

    # the contract

    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        for block in blocks:
            check_block(block)
        evicted: list[bytes] = []
        with self._lock:
            outcomes = [self._put_locked(block, evicted) for block in blocks]
            self._index.refused += outcomes.count(Put.REFUSED)
            return outcomes, [key for key in evicted if key not in self._index]

    def _put_locked(self, block: Block, evicted: list[bytes]) -> Put:
        if self._index.known(block):
            return Put.KNOWN
        if block.key in self._index:  # under another layout, or its time is over
            self._release(self._index.leave(block.key))
        length = len(block.payload)
        if self._file is None and length:
            try:
                self._lay_out(length, [])
            except OSError as error:
                log.warning("no arena, blocks lie on the heap: %s", error)
        if self._file is None or length > self._file.slot_bytes:
            return self._put_on_heap(block, evicted)
        slot = self._take(block.meta.namespace, evicted)
        if slot is None:
            return Put.REFUSED
        self._file.map.slot(slot)[:length] = block.payload
        self._fill(slot, block)
        return Put.STORED

    def _put_on_heap(self, block: Block, evicted: list[bytes]) -> Put:
        size = len(block.payload) + OVERHEAD_BYTES
        victims: list[tuple[bytes, Entry[int | Payload]]] = []
        fits = not self._closed and self._index.make_room({block.meta.namespace: size}, victims)
        self._let_go(victims, evicted)
        if not fits:
            return Put.REFUSED
        self._enter(block, bytes(block.payload), size)
        return Put.STORED

    def get(self, key: bytes, layout: bytes) -> Block | None:
        """See Tier; the payload is a copy."""
        check_key(key)
        with self._lock:
            entry = self._index.find(key, layout)
            if entry is None:
                self._index.misses += 1
                return None
            self._index.touch(key)
            payload = bytes(self._bytes_of(entry))
        if xxhash.xxh3_64_intdigest(payload) == entry.checksum:
            with self._lock:
                self._index.hits += 1
            return Block(key, entry.parent, entry.layout, entry.checksum, payload, entry.meta)
        self._forget_corrupt(key, entry)
        return None

    def _bytes_of(self, entry: Entry[int | Payload]) -> Payload:
        if not isinstance(entry.place, int):
            return entry.place
        assert self._file is not None
        return self._file.map.slot(entry.place)[: entry.length]

    def _forget_corrupt(self, key: bytes, entry: Entry[int | Payload]) -> None:
        with self._lock:
            self._index.misses += 1
            if self._index.raw(key) is entry:
                self._index.corrupt += 1
                self._release(self._index.leave(key))

    def lift(
        self, key: bytes, layout: bytes, below: Tier, lane: Lane | None = None
    ) -> tuple[Block | None, list[bytes]]:
        """Reads a block of the tier below into a slot of its own; (the block without payload bytes of its own, evicted keys).

        The payload is a view of the slot and valid only while the key is pinned. (None, ...) when that was no hit, or there was
        no slot for it: ask `below` itself then. Reads the disk.
        """
        evicted: list[bytes] = []
        with self._lock:
            file = self._file
            slot = self._take(b"", evicted) if file is not None and key not in self._index else None
            if slot is not None:
                self._reserved[slot] = _Reserved(0, key, 0)
        if slot is None or file is None:
            return None, evicted
        try:
            block = below.read_into(key, layout, file.map.slot(slot), lane)
        except BaseException:
            with self._lock:
                del self._reserved[slot]
                self._free.append(slot)
            raise
        with self._lock:
            del self._reserved[slot]
            # the read wrote nothing outside of its slot; the namespace's quota is looked at now that it is known
            if block is None or self._closed or block.key in self._index or not self._quota_fits(block, evicted):
                self._free.append(slot)
                return None, evicted
            self._fill(slot, block)
        return block, evicted

    def _quota_fits(self, block: Block, evicted: list[bytes]) -> bool:
        assert self._file is not None
        victims: list[tuple[bytes, Entry[int | Payload]]] = []
        fits = self._index.make_room({block.meta.namespace: self._file.slot_bytes}, victims)
        self._let_go(victims, evicted)
        return fits

    def delete(self, key: bytes) -> bool:
        check_key(key)
        with self._lock:
            if key not in self._index:
                return False
            self._release(self._index.leave(key))
            return True

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._index.clear()
            self._free.clear()
            if self._file is not None:
                self._file.close()

    # what clients do

    def lend(self, client: int, keys: Sequence[bytes], layout: bytes, *, exact: bool = False) -> list[SlotRef]:
        """Slots of the leading run of keys that lies in the arena, lent out until `take_back`. Pin the keys first.

        `exact`: a block that went through a lossy codec ends the run.
        """
        refs: list[SlotRef] = []
        with self._lock:
            for key in keys:
                entry = self._index.find(key, layout)
                if entry is None or not isinstance(entry.place, int) or (exact and entry.meta.lossy):
                    break
                refs.append(self._ref(entry))
                self._lent.setdefault(entry.place, Counter())[client] += 1
                self._index.hits += 1
        return refs

    def take_back(self, client: int, slots: Sequence[int]) -> None:
        """The client copies from these no more, as often as it got them."""
        with self._lock:
            for slot in slots:
                self._take_back(client, slot)

    def _take_back(self, client: int, slot: int) -> None:
        clients = self._lent.get(slot)
        if clients is None or not clients[client]:
            return
        clients[client] -= 1
        if not clients[client]:
            del clients[client]
        if not clients:
            del self._lent[slot]
            if slot in self._orphans:
                self._orphans.remove(slot)
                self._free.append(slot)

    def reserve(
        self, client: int, keys: Sequence[bytes], length: int, namespace: bytes
    ) -> tuple[list[SlotRef], list[bytes]]:
        """Slots for the client to fill, one for each leading key as long as there is room; and the keys evicted for them."""
        refs: list[SlotRef] = []
        evicted: list[bytes] = []
        with self._lock:
            if self._file is None or length > self._file.slot_bytes:
                return [], []
            for key in keys:
                slot = self._take(namespace, evicted)
                if slot is None:
                    break
                self._reserved[slot] = _Reserved(client, key, length)
                refs.append(SlotRef(slot, self._generations[slot], length, 0))
            return refs, [key for key in evicted if key not in self._index]

    def commit(
        self, client: int, ref: SlotRef, block: Block, *, readers: int = 0
    ) -> tuple[Put, list[bytes], Block | None, Release | None]:
        """Takes over a slot that the client filled with `block` (whose payload is ignored).

        REFUSED: it is not the client's, was reserved for another key or length, or its bytes do not have the checksum. The block
        that comes back, None unless STORED, is for `readers` who write it further down: its payload is the slot itself,
        which is filled by nobody until each of them has called the last value; where too many slots are kept so, a copy
        and None.
        """
        check_block(block)
        with self._lock:
            reserved = self._reserved.get(ref.slot)
            file = self._file
            if file is None or reserved is None or reserved.client != client or reserved.key != block.key:
                return Put.REFUSED, [], None, None
            if self._generations[ref.slot] != ref.generation or reserved.length != ref.length:
                return Put.REFUSED, [], None, None
            keep = readers > 0 and len(self._kept) < file.slots // KEPT_SHARE
        payload: Payload = file.map.slot(ref.slot)[: ref.length]
        if readers and not keep:
            payload = bytes(payload)  # first, and checked afterwards: the client can still write
        intact = xxhash.xxh3_64_intdigest(payload) == block.checksum
        whole = replace(block, payload=payload)
        evicted: list[bytes] = []
        with self._lock:
            if self._reserved.get(ref.slot) is not reserved or self._closed:
                return (
                    Put.REFUSED,
                    [],
                    None,
                    None,
                )  # its client was found dead meanwhile; the slot may be another's by now
            del self._reserved[ref.slot]
            if not intact or self._index.known(whole) or not self._quota_fits(whole, evicted):
                self._free.append(ref.slot)
                return (Put.KNOWN if intact and block.key in self._index else Put.REFUSED), evicted, None, None
            if block.key in self._index:
                self._release(self._index.leave(block.key))
            self._fill(ref.slot, whole)
            if not keep:
                return Put.STORED, evicted, whole, None
            self._kept[ref.slot] = readers
            self._lent.setdefault(ref.slot, Counter())[OWNER] += 1
        return Put.STORED, evicted, whole, partial(self._read_to_end, file, ref.slot)

    def _read_to_end(self, file: ArenaFile, slot: int) -> None:
        """One who wrote the slot's block further down is done with it."""
        with self._lock:
            if self._file is not file or slot not in self._kept:
                return
            self._kept[slot] -= 1
            if not self._kept[slot]:
                del self._kept[slot]
                self._take_back(OWNER, slot)

    def give_up(self, client: int, slots: Sequence[int]) -> None:
        """The client fills these reserved slots no more."""
        with self._lock:
            for slot in slots:
                reserved = self._reserved.get(slot)
                if reserved is not None and reserved.client == client:
                    del self._reserved[slot]
                    self._free.append(slot)

    def reclaim(self, client: int) -> int:
        """The client is dead: everything it had comes back; how many slots."""
        with self._lock:
            reserved = [slot for slot, item in self._reserved.items() if item.client == client]
            for slot in reserved:
                del self._reserved[slot]
                self._free.append(slot)
            lent = [slot for slot, clients in self._lent.items() if clients[client]]
            for slot in lent:
                self._lent[slot][client] = 1
                self._take_back(client, slot)
            return len(reserved) + len(lent)

    def audit(self) -> list[str]:
        """What is wrong with the slots: each is in exactly one state. For tests and the idle check; empty when all is well."""
        with self._lock:
            file = self._file
            if file is None or self._closed:
                return []
            held = [entry.place for _, entry in self._index.entries() if isinstance(entry.place, int)]
            every = Counter([*self._free, *self._reserved, *self._orphans, *held])
            wrong = [f"slot {slot} is in {count} states" for slot, count in every.items() if count != 1]
            backed = file.backed
            if len(every) != backed:
                wrong.append(f"{backed} slots are backed and {len(every)} are accounted for")
            wrong += [f"slot {slot} is lent out and free" for slot in self._lent if slot in self._free]
            return wrong

    def slot_counts(self) -> dict[str, int]:
        """How many slots there are, and how many clients have."""
        with self._lock:
            total = self._file.slots if self._file is not None else 0
            lent = sum(any(client != OWNER for client in clients) for clients in self._lent.values())
            return dict(zip(SLOT_COUNTS, (total, len(self._reserved), lent), strict=True))


def _slot_bytes(block_bytes: int) -> int:
    return max(1, -(-block_bytes // PAGE_BYTES)) * PAGE_BYTES
