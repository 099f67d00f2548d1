"""Leases: keys that must not be evicted while a transfer runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_LIMIT_S = 5.0
MAX_LIMIT_S = 60.0
MAX_LEASES = 4096


@dataclass(frozen=True, slots=True)
class _Lease:
    keys: tuple[bytes, ...]
    ends_at_s: float


class PinTable:
    """Counts the leases that hold each key. Thread-safe; `is_pinned` takes no lock, so a tier may ask under its own.

    A lease ends with `release` or when its time is over, whichever is first: a client that died holds nothing for long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[int, _Lease] = {}
        self._counts: dict[bytes, int] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._leases)

    def acquire(self, keys: Sequence[bytes], now_s: float, limit_s: float) -> int:
        """Pins keys, held or not, and returns the lease's number; 0 when there are too many leases."""
        self.expire(now_s)
        with self._lock:
            if len(self._leases) >= MAX_LEASES:
                return 0
            lease, self._next = self._next, self._next + 1
            limit = DEFAULT_LIMIT_S if limit_s <= 0 else min(limit_s, MAX_LIMIT_S)
            self._leases[lease] = _Lease(tuple(keys), now_s + limit)
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
            self._leases[lease] = _Lease(held.keys[:length], held.ends_at_s)

    def release(self, lease: int) -> None:
        """Ends a lease; an unknown or ended one is a no-op."""
        with self._lock:
            held = self._leases.pop(lease, None)
            if held is not None:
                self._uncount(held.keys)

    def expire(self, now_s: float) -> None:
        """Ends the leases whose time is over."""
        with self._lock:
            over = [lease for lease, held in self._leases.items() if held.ends_at_s <= now_s]
            for lease in over:
                self._uncount(self._leases.pop(lease).keys)

    def is_pinned(self, key: bytes) -> bool:
        """Whether any lease holds the key."""
        return key in self._counts

    def _uncount(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
