"""The arena's file in shared memory, and the life of the processes that map it.

Everything in the folder belongs to a process as long as that process holds its file lock (flock), which the kernel drops when the
process dies. So a kvstore that starts removes what dead ones left, and a dead worker's slots are found without a timer.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
import uuid
from pathlib import Path

from octavo.arena import DRAFT_PREFIX, ArenaMap, arena_bytes, data_offset, make_locked
from octavo.errors import OctavoError
from octavo.manifest import ManifestError
from octavo.memory import tightest

ARENA_PATTERN, LOCK_PATTERN = "octavo-arena-*", "octavo-lease-*"
DRAFT_S = 60.0
"""A file that is made and not locked yet belongs to somebody; after this long its maker is dead."""
RUN_BYTES = 16 * 2**20
"""How much of the file is backed with memory at once."""

log = logging.getLogger("octavo.kvstore.arena")


class ArenaFolder:
    """Where arenas and the lock files of their clients lie."""

    def __init__(self, path: Path, capacity_bytes: int) -> None:
        """Raises OctavoError when the folder cannot be used or its volume is smaller than the tier."""
        self.path = path
        probe = path / f"octavo-lease-{uuid.uuid4().hex}"
        try:
            probe.touch(0o600)
            probe.unlink()
            self._remove_dead()
            volume = os.statvfs(path)
        except OSError as error:
            raise ManifestError(
                f"kvstore.arena_path {path}: {error.strerror}; give a folder in shared memory that can be written, or none",
                field="kvstore.arena_path",
            ) from error
        free_bytes = volume.f_bavail * volume.f_frsize
        if free_bytes < capacity_bytes:
            raise OctavoError(
                f"kvstore.arena_path {path}: {free_bytes} bytes are free and cache.dram_bytes is {capacity_bytes}; "
                "enlarge the volume, lower cache.dram_bytes, or leave kvstore.arena_path empty",
                field="kvstore.arena_path",
            )

    def _remove_dead(self) -> None:
        for pattern in (ARENA_PATTERN, LOCK_PATTERN, f"{DRAFT_PREFIX}octavo-*"):
            for path in self.path.glob(pattern):
                is_draft = path.name.startswith(DRAFT_PREFIX)
                if is_dead(path) and (not is_draft or time.time() - path.stat().st_mtime > DRAFT_S):
                    with contextlib.suppress(OSError):
                        path.unlink()

    def lock_file(self, name: str) -> Path | None:
        """The lock file of a client, or None when that is no name of one."""
        path = self.path / name
        return path if name.startswith("octavo-lease-") and path.name == name else None


def is_dead(path: Path) -> bool:
    """Whether nobody holds the lock of this file: its owner died, or it is gone. What cannot be opened counts as alive."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


class ArenaFile:
    """One arena: a locked file, backed with memory run by run, mapped here."""

    def __init__(self, folder: ArenaFolder, slots: int, slot_bytes: int) -> None:
        """Raises OSError."""
        self.path = folder.path / f"octavo-arena-{uuid.uuid4().hex}"
        self.slots, self.slot_bytes = slots, slot_bytes
        self._fd = make_locked(self.path)
        os.ftruncate(self._fd, arena_bytes(slots, slot_bytes))
        os.posix_fallocate(self._fd, 0, data_offset(slots))
        self.map = ArenaMap(self.path, slots, slot_bytes)
        self.backed = 0
        """Slots that have memory, from the first on."""
        self._short = False  # at the last look, and said so

    def back(self) -> range:
        """Backs another run of slots with memory, so that touching them can never be SIGBUS; which ones. Empty: no more, for want of
        room in the volume or of memory that may be taken.
        """
        count = min(max(1, RUN_BYTES // self.slot_bytes), self.slots - self.backed)
        short = count > 0 and tightest().spare_bytes < count * self.slot_bytes
        if short:  # the system would give it, and kill a process for it
            if not self._short:
                size = self.backed * self.slot_bytes / 2**20
                log.warning("memory is short: the DRAM tier stays at %.0f MiB; lower cache.dram_bytes", size)
            count = 0
        self._short = short
        while count > 0:
            offset = data_offset(self.slots) + self.backed * self.slot_bytes
            try:
                os.posix_fallocate(self._fd, offset, count * self.slot_bytes)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                count //= 2
                continue
            self.backed += count
            return range(self.backed - count, self.backed)
        return range(0)

    def close(self) -> None:
        """Removes the file; who has it mapped keeps the memory until it lets go."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        with contextlib.suppress(OSError):
            os.close(self._fd)
