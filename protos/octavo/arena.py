"""The form of the shared-memory arena that a kvstore and the workers of its host map: a table of slot headers, then the slots.

    slot header, 64 bytes at slot * 64:
    offset  bytes  field
         0      8  generation, u64 little-endian: odd while the slot is being filled or is free, another one for every content
         8      8  payload length, u64
        16      8  xxh3-64 of the payload, u64
        24     32  key of the block
        56      8  zeros

A reader copies first and looks at the generation afterwards (a sequence lock: Lameter, "Effective synchronization on Linux/NUMA
systems", 2005); with the checksum over the copy that makes a copy of a slot that was filled anew meanwhile a miss.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections import OrderedDict
from pathlib import Path

HEADER_BYTES = 64
PAGE_BYTES = 4096
DRAFT_PREFIX = ".new-"
_HEADER = struct.Struct("<QQQ32s")
_GENERATION = struct.Struct("<Q")


def make_locked(path: Path) -> int:
    """Makes a file that this process keeps locked (flock) until it closes the descriptor that comes back, or dies.

    Nobody ever sees it unlocked: it is locked under another name first. Raises OSError.
    """
    draft = path.with_name(f"{DRAFT_PREFIX}{path.name}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(path)
    except OSError:
        os.close(fd)
        raise
    return fd


class ArenaMap:
    """A mapped arena. Slot `n` is `slot_bytes` long and begins at a page."""

    def __init__(self, path: Path, slots: int, slot_bytes: int, kept_bytes: int = 0) -> None:
        """`kept_bytes`: slots used last that may still count as this process's memory after `let_go`. Raises OSError when the file cannot be mapped, ValueError when it is shorter than it must be."""
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[int, None] = OrderedDict()
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.data_offset = data_offset(slots)
        size = arena_bytes(slots, slot_bytes)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size < size:
                raise ValueError(f"{path}: {os.fstat(fd).st_size} bytes, expected {size}")
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._view = memoryview(self._map)

    def slot(self, number: int) -> memoryview:
        """The bytes of a slot, writable. IndexError outside the arena."""
        self._check(number)
        start = self.data_offset + number * self.slot_bytes
        return self._view[start : start + self.slot_bytes]

    def let_go(self, number: int) -> None:
        """This process is done with the slot for now: it no longer counts as its memory once `kept_bytes` of others were
        used after it; the bytes stay, for everybody. A slot that is used again meanwhile costs no page faults.
        """
        self._check(number)
        self._kept.pop(number, None)
        self._kept[number] = None
        while len(self._kept) * self.slot_bytes > self._kept_bytes:
            oldest, _ = self._kept.popitem(last=False)
            self._map.madvise(mmap.MADV_DONTNEED, self.data_offset + oldest * self.slot_bytes, self.slot_bytes)

    def generation(self, number: int) -> int:
        """What stands in the slot's header now."""
        self._check(number)
        return int(_GENERATION.unpack_from(self._map, number * HEADER_BYTES)[0])

    def set_generation(self, number: int, generation: int) -> None:
        """Only for the owner of the arena."""
        self._check(number)
        _GENERATION.pack_into(self._map, number * HEADER_BYTES, generation)

    def set_header(self, number: int, generation: int, length: int, checksum: int, key: bytes) -> None:
        """Only for the owner of the arena; the generation is even."""
        self._check(number)
        _HEADER.pack_into(self._map, number * HEADER_BYTES, generation, length, checksum, key)

    def _check(self, number: int) -> None:
        if not 0 <= number < self.slots:
            raise IndexError(f"slot {number} is outside the arena of {self.slots} slots")


def data_offset(slots: int) -> int:
    """Where slot 0 begins."""
    return -(-slots * HEADER_BYTES // PAGE_BYTES) * PAGE_BYTES


def arena_bytes(slots: int, slot_bytes: int) -> int:
    """Size of the file."""
    return data_offset(slots) + slots * slot_bytes
