"""The store: a DRAM tier over an NVMe tier over a shared one, behind one put, get, contains and delete.

A put lands in DRAM and is written to the tiers below behind it; a get looks in DRAM, in the queues between, then
below, and lifts what it finds there back into DRAM. What is pinned is evicted from nowhere. A key counts as held while any tier
or the queue has it, and each change of that is one numbered event; watchers hear of every tier.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.errors import OctavoError

from octavo_kvstore.block import DRAM, Block, bit_of, check_block, check_key
from octavo_kvstore.events import EventLog
from octavo_kvstore.holdings import Holdings
from octavo_kvstore.index import Clock
from octavo_kvstore.pins import PinTable
from octavo_kvstore.prefetch_marks import PrefetchMarks
from octavo_kvstore.tier import Lane, Put, Tier, TierStats
from octavo_kvstore.tiers.arena import SLOT_COUNTS, ArenaTier
from octavo_kvstore.writebehind import Release, WriteBehind

WRITE_BEHIND_BYTES = 64 * 2**20
CLOSE_FLUSH_S = 5.0
QUEUE_TIER = "queue"
LOSSY_KEYS = 1_000_000
PREFETCH_SHARE = 4
"""One hint may fill at most this part of DRAM, as 1/PREFETCH_SHARE."""

log = logging.getLogger("octavo.kvstore.store")


@dataclass(frozen=True, slots=True)
class Found:
    """A block that passed its checksum, and the tier that had it."""

    block: Block
    tier: str


class Store:
    """Thread-safe; methods that may touch the disk, or the network of a shared tier, say so. Any tier may be None.

    With `dram` None blocks go through the queues to the tiers below; without those they live in DRAM alone.
    """

    def __init__(
        self,
        dram: Tier | None,
        nvme: Tier | None,
        pins: PinTable,
        write_behind_bytes: int = WRITE_BEHIND_BYTES,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: Clock = time.time,
        shared: Tier | None = None,
    ) -> None:
        self._dram = dram
        self.arena = dram if isinstance(dram, ArenaTier) else None
        """The DRAM tier when it lies in shared memory."""
        self._pins = pins
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._lossy: dict[bytes, None] = {}  # keys that were given away in a lossy form, the oldest first
        self._erasures: list[tuple[Tier, bytes]] = []
        self.more_counters: list[Callable[[], Mapping[str, float]]] = []
        self.corrupt_puts = self.promotions = self.demotions = self.prefetched = 0
        self.marks = PrefetchMarks()
        below = [tier for tier in (nvme, shared) if tier is not None]
        self._below = [(tier, WriteBehind(tier, write_behind_bytes, self.reconcile)) for tier in below]
        self._tiers = [tier for tier in (dram, *below) if tier is not None]
        for tier in self._tiers:
            tier.on_lost = self.reconcile
        self.holdings = Holdings(self._tiers_of, self._parent_of)
        self.holdings.adopt(key for tier in below for key in tier.keys())  # noqa: SIM118

    def put(self, block: Block) -> Put:
        """Stores a block; STORED means that it can be read from now on, not that it is on disk. Never touches the disk.

        REFUSED: the payload does not have its checksum, is too large, or all that could make room is pinned.
        Raises ValueError for a key, parent, layout or namespace of a wrong length.
        """
        check_block(block)
        if self.contains(block.key, block.layout):
            self.note_known(block)
            return Put.KNOWN
        if not block.is_intact():
            self.corrupt_puts += 1
            return Put.REFUSED
        block = self.stamped(block)
        evicted: list[bytes] = []
        above = self._dram is not None and block.meta.may_lie_in(DRAM)
        if self._dram is not None and above:
            outcome, evicted = self._dram.put(block)
            self._note_demoted(evicted)
            if outcome is Put.REFUSED:
                self.reconcile(evicted)
                return Put.REFUSED
        return self.stored_above(block, evicted, above)

    def stamped(self, block: Block) -> Block:
        """The block with the time of its first put, and marked if its worker once got it here in a lossy form."""
        meta = block.meta
        stored_s, lossy = meta.stored_s or int(self._wall_s()), meta.lossy or block.key in self._lossy
        if (stored_s, lossy) == (meta.stored_s, meta.lossy):
            return block
        return replace(block, meta=replace(meta, stored_s=stored_s, lossy=lossy))

    def stored_above(
        self, block: Block, evicted: Sequence[bytes], above: bool = True, release: Release | None = None
    ) -> Put:
        """Sends a block that DRAM has (unless not `above`) on its way down, and says what has changed.

        `release` is called once for each lower tier, when it needs the payload no more.
        """
        queued: list[bool] = []
        for tier, queue in self._below:
            if block.meta.may_lie_in(bit_of(tier.name)):
                queued.append(queue.offer(block, release))
            elif release is not None:
                release()
        self.reconcile([block.key, *evicted])
        return Put.STORED if any(queued) or (above and self._dram is not None) else Put.REFUSED

    def note_known(self, block: Block) -> None:
        """A put of what is held already: a use, and its meta data."""
        for tier in self._tiers:
            tier.refresh(block.key, block.meta)
        self._touch(block.key)

    def get(self, key: bytes, layout: bytes, *, exact: bool = False) -> Found | None:
        """The block wherever it is held, or None. May read the disk: call it off the event loop.

        `exact`: a block that went through a lossy codec is a miss.
        """
        found = self._get(key, layout)
        if found is not None and found.block.meta.lossy:
            if exact:
                return None
            self._note_lossy(key)
        return found

    def _note_lossy(self, key: bytes) -> None:
        """A worker may hand the block down again after it was forgotten here: it must not pass for an exact one then."""
        self._lossy[key] = None
        while len(self._lossy) > LOSSY_KEYS:
            self._lossy.pop(next(iter(self._lossy)), None)

    def _get(self, key: bytes, layout: bytes) -> Found | None:
        check_key(key)
        if self._dram is not None and (block := self._dram.get(key, layout)) is not None:
            for tier, _ in self._below:
                tier.touch(key)  # what is hot above must not look cold below
            return Found(block, self._dram.name)
        found = self._get_below(key, layout)
        if found is None:
            if key in self.holdings:  # a tier lost it just now
                self.reconcile([key])
            return None
        if self._dram is not None and found.block.meta.may_lie_in(DRAM):
            outcome, evicted = self._dram.put(found.block)
            self.promotions += outcome is Put.STORED
            self._note_demoted(evicted)
            self.reconcile([key, *evicted])
        return found

    def _get_below(self, key: bytes, layout: bytes) -> Found | None:
        queued = self._queued_copy(key, layout)
        if queued is not None:
            return Found(queued, QUEUE_TIER)
        for tier, _ in self._below:
            block = tier.get(key, layout)
            if block is not None:
                return Found(block, tier.name)
        return None

    def _queued(self, key: bytes, layout: bytes) -> Block | None:
        """A block that is on its way down and can be read."""
        for _, queue in self._below:
            block = queue.get(key)
            if block is not None and block.layout == layout and not self._is_over(block):
                return block
        return None

    def _queued_copy(self, key: bytes, layout: bytes) -> Block | None:
        """The same with a payload of its own, checked after the copy: the queue's may be a slot that is filled anew once written."""
        block = self._queued(key, layout)
        if block is None:
            return None
        block = block if isinstance(block.payload, bytes) else replace(block, payload=bytes(block.payload))
        return block if block.is_intact() else None

    def _is_over(self, block: Block) -> bool:
        return block.meta.is_over(self._wall_s())

    def touch_chain(self, keys: Sequence[bytes]) -> None:
        """Counts a use of a whole chain, head last: whoever puts blocks without parents still loses ends before heads."""
        for key in reversed(keys):
            self._touch(key)

    def where(self, key: bytes, layout: bytes) -> str:
        """The first tier that holds the key under this layout; empty: a miss. Reads no payload."""
        check_key(key)
        if self._dram is not None and self._dram.contains(key, layout):
            return self._dram.name
        if self._queued(key, layout) is not None:
            return QUEUE_TIER
        return next((tier.name for tier, _ in self._below if tier.contains(key, layout)), "")

    def contains(self, key: bytes, layout: bytes) -> bool:
        """Whether the key is held under this layout, anywhere."""
        return bool(self.where(key, layout))

    def delete(self, key: bytes) -> bool:
        """Forgets a key everywhere, pinned or not, before it returns; True when it was held. May write to the disk."""
        check_key(key)
        # top down: a block on its way down has then landed before the tier below deletes it
        gone = self._dram is not None and self._dram.delete(key)
        for tier, queue in self._below:
            gone = queue.discard(key) or gone
            gone = tier.delete(key) or gone
        if self._dram is not None:
            gone = self._dram.delete(key) or gone  # a get may have lifted it meanwhile
        self.reconcile([key])
        return gone

    def delete_below(self, key: bytes) -> int:
        """Forgets a key and every key that is chained from it; returns how many were held. May write to the disk."""
        below = self.holdings.children()
        waiting, count = [key], 0
        while waiting:
            gone = waiting.pop()
            waiting += below.get(gone, ())
            count += self.delete(gone)
        return count

    def delete_namespace(self, namespace: bytes) -> int:
        """Forgets every block of a namespace in every tier; returns how many keys there were. May write to the disk.

        Where records are encrypted their key is destroyed first, so none of them can be read while the sweep goes on.
        """
        self._erasures += [(tier, namespace) for tier in self._tiers]
        self._erase_due()
        keys = {key for _, queue in self._below for key in queue.of_namespace(namespace)}
        keys.update(key for tier in self._tiers for key in tier.of_namespace(namespace))
        return sum(self.delete(key) for key in keys)

    def _erase_due(self) -> None:
        """Destroys the keys of namespaces that were forgotten; what cannot be done now is tried again at every sweep."""
        due, self._erasures = self._erasures, []
        for tier, namespace in due:
            try:
                tier.erase(namespace)
            except (OSError, OctavoError) as error:
                log.error("%s tier: the key of a namespace is not destroyed yet: %s", tier.name, error)
                self._erasures.append((tier, namespace))

    def pin(self, keys: Sequence[bytes], layout: bytes, limit_s: float, owner: int = 0) -> tuple[int, int]:
        """Leases the leading run of keys that is held: (lease, length); (0, 0) when there is none.

        With an `owner` the lease has no time of its own (PinTable).
        """
        self.marks.asked(keys)
        for key in keys:
            check_key(key)
        # pin first and look afterwards: what is seen then cannot be evicted any more
        lease = self._pins.acquire(keys, self._clock_s(), limit_s, owner)
        if not lease:
            return 0, 0
        held = 0
        while held < len(keys) and self.contains(keys[held], layout):
            held += 1
        if not held:
            self._pins.release(lease)
            return 0, 0
        self._pins.shrink(lease, held)
        self.touch_chain(keys[:held])
        return lease, held

    def unpin(self, lease: int) -> None:
        """Ends a lease; an unknown or ended one is a no-op."""
        self._pins.release(lease)

    def release_owner(self, owner: int) -> list[int]:
        """Ends the leases of an owner that is no more; returns their numbers."""
        return self._pins.release_owner(owner)

    def lift(self, key: bytes, layout: bytes, lane: Lane | None = None) -> Found | None:
        """Brings a block that only the tiers below hold into the arena; None when there is no such block, or no slot.

        The payload may be a view of the slot. Reads the disk.
        """
        if self.arena is None:
            return None
        found, evicted = None, list[bytes]()
        if queued := self._queued_copy(key, layout):
            outcome, evicted = self.arena.put(queued)
            found = Found(queued, QUEUE_TIER) if outcome is not Put.REFUSED else None
        else:
            holders = (tier for tier, _ in self._below if tier.contains(key, layout))
            if (tier := next(holders, None)) is not None:
                block, evicted = self.arena.lift(key, layout, tier, lane)
                found = Found(block, tier.name) if block is not None else None
        self.promotions += found is not None
        if found is not None and found.block.meta.lossy:
            self._note_lossy(key)
        self._note_demoted(evicted)
        self.reconcile([key, *evicted])
        return found

    def lane_of(self, keys: Sequence[bytes], layout: bytes) -> tuple[int, Lane | None]:
        """How many leading keys lie in a row on one tier below and nowhere above it, and the lane for lifting them; (0, None)."""
        if not keys or self.arena is None or self.arena.contains(keys[0]) or self._queued(keys[0], layout):
            return 0, None
        tier = next((tier for tier, _ in self._below if tier.contains(keys[0], layout)), None)
        return (0, None) if tier is None else (tier.in_a_row(keys, layout), tier.lane())

    def prefetch(self, keys: Sequence[bytes]) -> int:
        """Lifts the blocks of a chain that lie below DRAM, head first, as long as they fit beside each other; how many.

        For a request that still waits: its load then finds them in DRAM. Reads the disk.
        """
        if self._dram is None:
            return 0
        lifted, room, lane = 0, self._dram.stats().capacity_bytes // PREFETCH_SHARE, None
        try:
            for at, key in enumerate(keys):
                layout = next(filter(None, (tier.layout_of(key) for tier, _ in self._below)), b"")
                if self._dram.contains(key) or not layout:
                    continue
                if lane is None and not lifted:
                    run, lane = self.lane_of(keys[at:], layout)
                    lane = lane if run > 1 else None
                found = self.lift(key, layout, lane) if self.arena is not None else self.get(key, layout)
                if found is None:
                    break
                lifted += 1
                self.marks.lifted(key)
                room -= len(found.block.payload)
                if room < len(found.block.payload):
                    break
        finally:
            if lane is not None:
                lane.close()
        self.prefetched += lifted
        return lifted

    def set_pinned(self, keys: Sequence[bytes], *, pinned: bool) -> int:
        """Pins keys for good, or lets them go; returns how many of them are held. Writes a small file. Raises OSError."""
        for key in keys:
            check_key(key)
        self._pins.set_lasting(keys, pinned=pinned)
        return sum(bool(self._tiers_of(key)) for key in keys)

    def expire_pins(self) -> None:
        """Ends the leases whose time is over."""
        self._pins.expire(self._clock_s())

    def sweep(self) -> list[bytes]:
        """Gives back the room of what is unreadable for its age; returns those keys. May write to the disk."""
        if self._erasures:
            self._erase_due()
        gone = {key for tier in self._tiers for key in tier.sweep()}
        self.reconcile(gone)
        return list(gone)

    @property
    def events(self) -> EventLog:
        """Numbered changes of what is held in any tier."""
        return self.holdings.events

    def inventory(self) -> tuple[int, list[bytes]]:
        """(number of the last event, every key held as of that event)."""
        return self.holdings.inventory()

    def reconcile(self, keys: Iterable[bytes]) -> None:
        """Says what has changed of these keys (Holdings.reconcile)."""
        self.holdings.reconcile(keys)

    def _tiers_of(self, key: bytes) -> tuple[str, ...]:
        queued = [QUEUE_TIER] if any(queue.contains(key) for _, queue in self._below) else []
        above = [self._dram.name] if self._dram is not None and self._dram.contains(key) else []
        return (*above, *queued, *(tier.name for tier, _ in self._below if tier.contains(key)))

    def _parent_of(self, key: bytes) -> bytes:
        for _, queue in self._below:
            if (block := queue.get(key)) is not None:
                return block.parent
        return next(filter(None, (tier.parent_of(key) for tier in self._tiers)), b"")

    def _note_demoted(self, evicted: Sequence[bytes]) -> None:
        """Counts the blocks that left DRAM and are still held below it."""
        self.marks.gone(evicted)
        below = [place for pair in self._below for place in pair]
        self.demotions += sum(any(place.contains(key) for place in below) for key in evicted)

    def _touch(self, key: bytes) -> None:
        for tier in self._tiers:
            tier.touch(key)

    def tier_stats(self) -> list[TierStats]:
        """One entry per tier, fastest first."""
        return [tier.stats() for tier in self._tiers]

    @property
    def lower_tiers(self) -> int:
        """Into how many tiers blocks go further down than DRAM."""
        return len(self._below)

    def counters(self) -> dict[str, float]:
        """Counters and gauges beside those of the tiers."""
        queues = [queue for _, queue in self._below]
        return {
            "held_keys": float(len(self.holdings)),
            "events": float(self.holdings.events.number),
            "leases": float(len(self._pins)),
            "pinned_keys": float(self._pins.lasting),
            "corrupt_puts": float(self.corrupt_puts),
            "promotions": float(self.promotions),
            "demotions": float(self.demotions),
            "prefetched": float(self.prefetched),
            "prefetch_used": float(self.marks.used),
            "prefetch_wasted": float(self.marks.wasted),
            "erasures_due": float(len(self._erasures)),
            **{name: float(count) for name, count in self._slot_counts().items()},
            "write_behind_bytes": float(sum(queue.waiting_bytes for queue in queues)),
            "write_behind_written": float(sum(queue.written for queue in queues)),
            "write_behind_dropped": float(sum(queue.dropped for queue in queues)),
            "write_behind_refused": float(sum(queue.refused for queue in queues)),
            **{name: value for more in self.more_counters for name, value in more().items()},
        }

    def _slot_counts(self) -> dict[str, int]:
        return self.arena.slot_counts() if self.arena is not None else dict.fromkeys(SLOT_COUNTS, 0)

    def flush(self, timeout_s: float) -> bool:
        """Waits for the writes behind; blocks, for tests and for the drain."""
        return all([queue.flush(timeout_s) for _, queue in self._below])

    def close(self, flush_s: float = CLOSE_FLUSH_S) -> None:
        """Writes what waits within the time and closes the tiers; afterwards everything misses. Blocks. Idempotent."""
        for _, queue in self._below:
            queue.close(flush_s)
        for tier in self._tiers:
            tier.close()
