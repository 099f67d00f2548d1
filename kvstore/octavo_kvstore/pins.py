"""Keys that must not be evicted: while a transfer runs (leases), or until somebody lets them go (lasting pins)."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_kvstore.block import KEY_BYTES

DEFAULT_LIMIT_S = 5.0
MAX_LIMIT_S = 60.0
MAX_LEASES = 4096

log = logging.getLogger("octavo.kvstore.pins")


@dataclass(frozen=True, slots=True)
class _Lease:
    keys: tuple[bytes, ...]
    ends_at_s: float
    owner: int


class PinTable:
    """Counts the leases that hold each key. Thread-safe; `is_pinned` takes no lock, so a tier may ask under its own.

    A lease ends with `release` or when its time is over, whichever is first: a client that died holds nothing for long. The lease
    of an `owner` has no time: it ends with `release_owner`, which whoever watches the owner's life calls.
    """

    def __init__(self, file: Path | None = None) -> None:
        """`file` keeps the lasting pins over restarts; absent: they end with the process."""
        self._lock = threading.Lock()
        self._leases: dict[int, _Lease] = {}
        self._counts: dict[bytes, int] = {}
        # anywhere, so that a number of an earlier life of this store means nothing in this one
        self._next = int.from_bytes(os.urandom(5), "little") + 1
        self._file = file
        self._lasting: set[bytes] = _read_keys(file) if file is not None else set()

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def lasting(self) -> int:
        """How many keys are pinned for good."""
        return len(self._lasting)

    def acquire(self, keys: Sequence[bytes], now_s: float, limit_s: float, owner: int = 0) -> int:
        """Pins keys, held or not, and returns the lease's number; 0 when there are too many leases."""
        self.expire(now_s)
        with self._lock:
            if len(self._leases) >= MAX_LEASES:
                return 0
            lease, self._next = self._next, self._next + 1
            limit = DEFAULT_LIMIT_S if limit_s <= 0 else min(limit_s, MAX_LIMIT_S)
            self._leases[lease] = _Lease(tuple(keys), math.inf if owner else now_s + limit, owner)
            for key in keys:
                self._counts[key] = self._counts.get(key, 0) + 1
            return lease

    def shrink(self, lease: int, length: int) -> None:
        """Keeps the first `length` keys of a lease; an unknown lease is a no-op."""
        with self._lock:
            held = self._leases.get(lease)
            if held is None:
                return
            self._uncount(held.keys[length:])
            self._leases[lease] = _Lease(held.keys[:length], held.ends_at_s, held.owner)

    def release(self, lease: int) -> None:
        """Ends a lease; an unknown or ended one is a no-op."""
        with self._lock:
            held = self._leases.pop(lease, None)
            if held is not None:
                self._uncount(held.keys)

    def release_owner(self, owner: int) -> list[int]:
        """Ends every lease of an owner that is no more; returns their numbers."""
        with self._lock:
            over = [lease for lease, held in self._leases.items() if held.owner == owner]
            for lease in over:
                self._uncount(self._leases.pop(lease).keys)
            return over

    def expire(self, now_s: float) -> None:
        """Ends the leases whose time is over."""
        with self._lock:
            over = [lease for lease, held in self._leases.items() if held.ends_at_s <= now_s]
            for lease in over:
                self._uncount(self._leases.pop(lease).keys)

    def set_lasting(self, keys: Sequence[bytes], *, pinned: bool) -> None:
        """Pins keys for good, held or not, or lets them go; written to the file before it returns. Raises OSError."""
        with self._lock:
            after = self._lasting | set(keys) if pinned else self._lasting - set(keys)
            if after == self._lasting:
                return
            if self._file is not None:
                fresh = self._file.with_suffix(".new")
                fresh.write_bytes(b"".join(sorted(after)))
                fresh.replace(self._file)
            self._lasting = after  # a new set: `is_pinned` reads without the lock

    def is_pinned(self, key: bytes) -> bool:
        """Whether any lease holds the key, or it is pinned for good."""
        return key in self._counts or key in self._lasting

    def _uncount(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]


def _read_keys(file: Path) -> set[bytes]:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return set()
    except OSError as error:
        log.warning("lasting pins cannot be read from %s: %s", file, error)
        return set()
    return {data[at : at + KEY_BYTES] for at in range(0, len(data) - KEY_BYTES + 1, KEY_BYTES)}
