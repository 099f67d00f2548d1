"""SlabLane: slots that follow one another, read in order by one thread through the page cache.

The kernel reads on ahead of such a reader (8 MiB here) while it copies and checks; what O_DIRECT reads begins only when it is asked for.
Whole slots are asked for, with what lies between the payloads: a gap would end the kernel's run. What was read leaves the page
cache with the end of the lane: DRAM holds it by then.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from octavo_kvstore.tier import Lane
from octavo_kvstore.tiers.slab_space import PAGE_BYTES, Slot

log = logging.getLogger("octavo.kvstore.nvme")


class SlabLane(Lane):
    """One reader's; not thread-safe. Its descriptor is its own: two readers of one would end each other's run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pages = 0
        self._fd = -1
        self._first = self._end = 0
        self._between = bytearray()

    def read(self, slot: Slot, room: memoryview) -> int:
        """Fills `room`, of at most the slot's bytes, from its beginning; how many bytes came. 0: ask the medium itself."""
        try:
            return self._read(slot, room)
        except OSError as error:  # too many open files, or a folder that is gone: not for a lane to judge the tier by
            log.debug("a lane ended: %s", error)
            self.close()
            return 0

    def _read(self, slot: Slot, room: memoryview) -> int:
        if slot.pages != self._pages:
            self._open(slot.pages)
            self._first = slot.offset
        size = slot.pages * PAGE_BYTES
        rest = size - len(room)
        if len(self._between) < rest:
            self._between = bytearray(rest)
        done = os.preadv(self._fd, [room, memoryview(self._between)[:rest]], slot.offset)
        self._end = slot.offset + size
        return min(done, len(room))

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, self._first, max(0, self._end - self._first), os.POSIX_FADV_DONTNEED)
            os.close(self._fd)
            self._fd, self._pages = -1, 0

    def _open(self, pages: int) -> None:
        self.close()
        self._fd = os.open(self._folder / f"slab-{pages}.bin", os.O_RDONLY | os.O_CLOEXEC)
        self._pages = pages
