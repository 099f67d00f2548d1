"""Which packed files stay in the cache: those in use, those of the last weeks, and no more bytes than a bound.

A process that maps a packed file holds a shared lock on it, which lives as long as the map (mmap keeps a duplicate of the
descriptor, and flock belongs to what both refer to). A file is removed only under the exclusive lock, so never one in use; who
opens it in that very moment still maps the whole file, which is then its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from pathlib import Path
from typing import BinaryIO, Final

KEEP_BYTES: Final = 16 * 2**30
"""Packed files in all; one that was just made stays, however large."""
KEEP_S: Final = 30 * 24 * 3600.0
"""Since a file was last opened."""

log = logging.getLogger(__name__)


def hold(file: BinaryIO) -> None:
    """Marks an open packed file as in use, and as used now; both are left out where the file system has no such thing."""
    with contextlib.suppress(OSError):  # without locks nothing is ever removed
        fcntl.flock(file, fcntl.LOCK_SH)
    with contextlib.suppress(OSError):  # a cache that is mounted read-only
        os.utime(file.fileno())


def prune(cache: Path, *, keep: Path, now_s: float | None = None, most_bytes: int = KEEP_BYTES) -> list[Path]:
    """Removes packed files that nobody maps: those not opened for KEEP_S, then the oldest until all are `most_bytes` at most.

    Returns what was removed; a file that cannot be removed stays, and the log says so.
    """
    now_s = time.time() if now_s is None else now_s
    found = []
    for path in cache.glob("*.octpack"):
        with contextlib.suppress(FileNotFoundError):  # another process prunes too
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    removed = []
    for used_s, size, path in sorted(found):
        if path == keep or (now_s - used_s <= KEEP_S and total <= most_bytes):
            continue
        if _remove(path):
            removed.append(path)
            total -= size
    return removed


def _remove(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except BlockingIOError:
        return False  # in use
    except OSError as error:
        log.warning("%s is old and cannot be removed: %s", path, error)
        return False
    log.info("removed %s: packed weights that were not used for long, or beyond the cache's bound", path)
    return True
