"""The NVMe tier with payloads in slab files: LMDB is the directory, key -> slot, generation, length, checksum.

A value of 368,640 bytes inside LMDB needs 91 contiguous pages, and churn makes its list of free pages long and slow; a
fixed slot never fragments. Order of a write: the deleting commit, then the slots' bytes, then the commit that names them. So
after any kill -9 a committed row names bytes that were written whole, and bytes without a row are a free slot. A row
that outlived its bytes (a machine crash, a directory from a backup) is found by the checksum.

Payloads are written with O_DIRECT: 2.5 GB/s against 0.3 to 6, since the buffered form stalls once dirty pages pile up. They are read
with it too, but for those that lie in a row (slab_lane.py); read_ways.py says which is the faster way of reading those.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from octavo_kvstore.block import Block, Payload
from octavo_kvstore.index import Clock, Entry, IsPinned
from octavo_kvstore.limits import NO_LIMITS, TierLimits
from octavo_kvstore.record import HEADER_BYTES, Header, encode_header
from octavo_kvstore.tier import Lane
from octavo_kvstore.tiers.nvme import PAGE_BYTES, NvmeTier, log
from octavo_kvstore.tiers.slab_lane import SlabLane
from octavo_kvstore.tiers.slab_space import SlabSpace, Slot, reserve, slot_pages

_ROW = struct.Struct("<IIQ")
"""Behind the header of a row: pages of the slot, its number, generation (the use number of the write)."""
LEAST_MAP_BYTES = 256 * 2**10
DIRECTORY_SHARE = 64
LOCK_FILE_BYTES = 16 * 2**10
"""Room for LMDB's table of readers, which lies beside the directory."""


def directory_bytes(capacity_bytes: int) -> int:
    """What the directory may take of the tier's capacity: a sixty-fourth, some twenty times what 368,640-byte blocks need."""
    return max(LEAST_MAP_BYTES, capacity_bytes // DIRECTORY_SHARE)


class SlabTier(NvmeTier[Slot]):
    """Bounded by `capacity_bytes` on disk, directory included."""

    backend = "slab"

    def __init__(
        self,
        path: Path,
        capacity_bytes: int,
        is_pinned: IsPinned = lambda key: False,
        boot_id: str | None = None,
        limits: TierLimits = NO_LIMITS,
        clock_s: Clock = time.time,
    ) -> None:
        """See NvmeTier."""
        map_bytes = directory_bytes(capacity_bytes)
        payload_bytes = max(0, capacity_bytes - map_bytes)
        self._space = SlabSpace(path, payload_bytes)
        self._taken: list[Slot] = []
        self._buffer = mmap.mmap(-1, PAGE_BYTES)
        super().__init__(path, payload_bytes, map_bytes, is_pinned, boot_id, limits, clock_s)

    def _size_on_disk(self, payload_bytes: int) -> int:
        return slot_pages(payload_bytes) * PAGE_BYTES

    def _load_record(self, key: bytes, value: memoryview, header: Header) -> tuple[Slot, int] | None:
        if len(value) != HEADER_BYTES + _ROW.size:
            return None
        pages, number, _generation = _ROW.unpack_from(value, HEADER_BYTES)
        if pages != slot_pages(header.length) or number >= self._space.whole_slots(pages):
            return None
        slot = Slot(pages, number)
        self._taken.append(slot)
        return slot, pages * PAGE_BYTES

    def _opened(self) -> None:
        # on a disk that others fill a commit needs no new page then: what is held stays, and freed slots are used again
        path, volume = self._folder.data_path, os.statvfs(self._folder.path)
        held_bytes = path.stat().st_blocks * 512
        # of the disk no more than the directory is of the tier: a capacity that no disk here has would take all of it
        share_bytes = (volume.f_bavail * volume.f_frsize + held_bytes) // DIRECTORY_SHARE
        most_bytes = self._map_bytes - LOCK_FILE_BYTES
        if not reserve(path, min(most_bytes, max(held_bytes, share_bytes, LEAST_MAP_BYTES - LOCK_FILE_BYTES))):
            log.info("nvme tier: no room can be set aside for the directory; a full disk will empty the tier")

    def _index_read(self) -> None:
        self._space.open(self._taken)
        self._taken = []

    def in_a_row(self, keys: Sequence[bytes], layout: bytes) -> int:
        first = self._index.find(keys[0], layout) if keys else None
        if first is None:
            return 0
        count, (pages, number) = 1, first.place
        while count < len(keys):
            entry = self._index.find(keys[count], layout)
            if entry is None or entry.place != (pages, number + count):
                break
            count += 1
        return count

    def lane(self) -> SlabLane:
        return SlabLane(self._folder.path)

    def _read_payload(
        self, key: bytes, entry: Entry[Slot], room: memoryview | None, lane: Lane | None
    ) -> Payload | None:
        length = entry.length
        whole = -(-length // PAGE_BYTES) * PAGE_BYTES
        buffer = room[:whole] if room is not None and len(room) >= whole else _aligned(whole)
        if isinstance(lane, SlabLane) and room is not None and len(room) >= whole > 0:
            done = lane.read(entry.place, buffer)
            if done >= length and xxhash.xxh3_64_intdigest(buffer[:length]) == entry.checksum:
                return buffer[:length]
            # pages that were read ahead while the slot was written: the medium itself decides
        done = os.preadv(self._space.fd(entry.place), [buffer], entry.place.offset) if whole else 0
        if done < length:
            return None  # truncated
        payload = buffer[:length]
        if xxhash.xxh3_64_intdigest(payload) != entry.checksum:
            return None
        if room is not None and len(room) < whole:
            room[:length] = payload
            return room[:length]
        return payload

    def _write_records(self, drops: dict[bytes, Entry[Slot]], fresh: Sequence[tuple[int, Block]]) -> list[Slot]:
        assert self._env is not None
        if drops:
            with self._env.begin(write=True) as transaction:
                for key in drops:
                    transaction.delete(key)
            self._settle(drops)
            for entry in drops.values():  # a slot is used again only after the commit that deleted its row
                self._space.give_back(entry.place)
        slots: list[Slot] = []
        try:
            for _, block in fresh:
                slots.append(self._space.take(slot_pages(len(block.payload))))
                self._write_payload(slots[-1], block.payload)
            if fresh:
                with self._env.begin(write=True) as transaction:
                    for (number, block), slot in zip(fresh, slots, strict=True):
                        row = encode_header(block, number) + _ROW.pack(slot.pages, slot.number, number)
                        transaction.put(block.key, row)
        except BaseException:
            for slot in slots:
                self._space.give_back(slot)
            raise
        return slots

    def _write_payload(self, slot: Slot, payload: Payload) -> None:
        whole = -(-len(payload) // PAGE_BYTES) * PAGE_BYTES
        if isinstance(payload, memoryview) and len(payload) == whole > 0 and _is_aligned(payload):
            if os.pwrite(self._space.fd(slot), payload, slot.offset) < whole:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        if len(self._buffer) < whole:
            self._buffer = mmap.mmap(-1, slot.pages * PAGE_BYTES)
        self._buffer[: len(payload)] = payload
        with memoryview(self._buffer) as view:
            done = os.pwrite(self._space.fd(slot), view[:whole], slot.offset) if whole else 0
        if done < whole:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _closing(self) -> None:
        self._space.sync()
        self._space.close()


def _is_aligned(view: memoryview) -> bool:
    return bool(np.frombuffer(view, np.uint8).ctypes.data % PAGE_BYTES == 0)


def _aligned(length: int) -> memoryview:
    """Fresh memory that begins at a page."""
    memory = np.empty(length + PAGE_BYTES, np.uint8)
    start = -memory.ctypes.data % PAGE_BYTES
    return memory[start : start + length].data
