"""Slots in preallocated files: one file per slot size, grown in runs, given back to the disk only when another size needs the room.

Slot sizes are 4..7 x 2^k pages, so that a payload of any length wastes at most a quarter and mostly far less; blocks of one
model are all of one size. Knows bytes and offsets, nothing of keys.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = 4096
RUN_SLOTS = 16
"""Slots that are allocated at once."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate(2)
_libc = ctypes.CDLL(None, use_errno=True)


class Slot(NamedTuple):
    """A slot of `pages` pages, the `number`-th of its file."""

    pages: int
    number: int

    @property
    def offset(self) -> int:
        return self.pages * self.number * PAGE_BYTES


def slot_pages(payload_bytes: int) -> int:
    """Pages of the slot for a payload: the least 1..7, or m x 2^k with m in 4..7, that holds it."""
    pages = max(1, -(-payload_bytes // PAGE_BYTES))
    shift = max(0, pages.bit_length() - 3)
    step = 1 << shift
    return -(-pages // step) * step


def reserve(path: Path, length: int) -> bool:
    """Sets disk space aside for the first `length` bytes of a file whose size stays as it is; False where that cannot be.

    Gives back what was set aside beyond before. Raises OSError.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_blocks * 512 > length:
            os.ftruncate(fd, status.st_size)
        return not _libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(length))
    finally:
        os.close(fd)


@dataclass(slots=True)
class _File:
    path: Path
    fd: int
    direct_fd: int
    """With O_DIRECT, or the same as fd where the file system has none."""
    slots: int = 0
    """Slots up to the end of the file."""
    free: list[int] = field(default_factory=list)
    """On disk and unused."""
    holes: list[int] = field(default_factory=list)
    """Given back to the disk."""


class SlabSpace:
    """Every slot of a folder. Not thread-safe: the tier's writer has it to itself; reading through `fd` needs no lock."""

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        self._folder = folder
        self._capacity_bytes = capacity_bytes
        self._files: dict[int, _File] = {}
        self.allocated_bytes = 0

    def open(self, used: Iterable[Slot]) -> None:
        """Takes over what lies in the folder: these slots are used, everything else goes back to the disk. Raises OSError."""
        by_pages: dict[int, set[int]] = {}
        for slot in used:
            by_pages.setdefault(slot.pages, set()).add(slot.number)
        for path in self._folder.glob("slab-*.bin"):
            name = path.stem.removeprefix("slab-")
            if not name.isdecimal() or int(name) not in by_pages:
                path.unlink()  # a copy of somebody's too: what is here belongs to the tier
        for pages, numbers in by_pages.items():
            file = self._file(pages)
            file.slots = max(numbers) + 1
            os.ftruncate(file.fd, file.slots * pages * PAGE_BYTES)
            self.allocated_bytes += len(numbers) * pages * PAGE_BYTES
            for number in range(file.slots):
                if number not in numbers:
                    self.allocated_bytes += pages * PAGE_BYTES
                    if not self._punch(pages, file, number):
                        file.free.append(number)

    def whole_slots(self, pages: int) -> int:
        """How many slots of a size lie wholly within their file; for records found at start, before `open`."""
        try:
            return (self._folder / f"slab-{pages}.bin").stat().st_size // (pages * PAGE_BYTES)
        except OSError:
            return 0

    def take(self, pages: int) -> Slot:
        """A slot that nobody uses; OSError(ENOSPC) when the disk, or the capacity, has none."""
        file = self._file(pages)
        if not file.free:
            self._grow(pages, file)
        return Slot(pages, file.free.pop())

    def give_back(self, slot: Slot) -> None:
        """The slot's record is gone for good; it may be used again."""
        file = self._files[slot.pages]
        # above the capacity where that is smaller than it was at the last start
        over = self.allocated_bytes > self._capacity_bytes
        if not over or not self._punch(slot.pages, file, slot.number):
            file.free.append(slot.number)

    def fd(self, slot: Slot) -> int:
        """The file, with O_DIRECT where there is such a thing: offsets, lengths and addresses must be whole pages."""
        return self._file(slot.pages).direct_fd

    def close(self) -> None:
        for file in self._files.values():
            for fd in {file.fd, file.direct_fd}:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._files.clear()
        self.allocated_bytes = 0

    def sync(self) -> None:
        """Makes the payloads durable. Raises OSError."""
        for file in self._files.values():
            os.fsync(file.fd)

    def _file(self, pages: int) -> _File:
        file = self._files.get(pages)
        if file is None:
            path = self._folder / f"slab-{pages}.bin"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                direct_fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                direct_fd = fd
            file = self._files[pages] = _File(path, fd, direct_fd)
        return file

    def _grow(self, pages: int, file: _File) -> None:
        size = pages * PAGE_BYTES
        for slots in (RUN_SLOTS, 1):
            count = min(slots, (self._capacity_bytes - self.allocated_bytes) // size) if slots > 1 else 1
            self._reclaim(count * size, pages)
            if count < 1 or self.allocated_bytes + count * size > self._capacity_bytes:
                continue
            try:
                self._allocate(pages, file, count)
            except OSError:
                if slots == 1:
                    raise
                continue
            return
        raise OSError(errno.ENOSPC, "every slot is taken")

    def _allocate(self, pages: int, file: _File, count: int) -> None:
        size = pages * PAGE_BYTES
        if file.holes:
            number = file.holes[-1]
            os.posix_fallocate(file.fd, number * size, size)
            file.holes.pop()
            file.free.append(number)
            self.allocated_bytes += size
            return
        os.posix_fallocate(file.fd, file.slots * size, count * size)
        # last first: `take` pops from the end, and slots in order make runs on disk
        file.free.extend(reversed(range(file.slots, file.slots + count)))
        file.slots += count
        self.allocated_bytes += count * size

    def _reclaim(self, need: int, pages: int) -> None:
        """Gives free slots of other sizes back to the disk until `need` more bytes fit into the capacity."""
        for other_pages, other in self._files.items():
            while other_pages != pages and other.free and self.allocated_bytes + need > self._capacity_bytes:
                if not self._punch(other_pages, other, other.free[-1]):
                    break
                other.free.pop()

    def _punch(self, pages: int, file: _File, number: int) -> bool:
        """Gives a slot back to the disk; False where the file system cannot: it keeps its bytes then."""
        size = pages * PAGE_BYTES
        mode, offset = _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(number * size)
        if _libc.fallocate(file.fd, mode, offset, ctypes.c_long(size)):
            return False
        file.holes.append(number)
        self.allocated_bytes -= size
        return True
