"""What each tier holds, change by change, for whoever rebuilds the directory: any number of watchers, none of which slows the store."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

MAX_BEHIND = 65_536
"""Changes kept for a watcher; one that is further behind begins anew with an inventory."""


@dataclass(frozen=True, slots=True)
class TierChange:
    """A key came into a tier, or left it."""

    key: bytes
    parent: bytes
    tier: str
    removed: bool


class Watcher:
    """One follower. `on_change` is called after each change, from any thread; it must not block."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._changes: deque[TierChange] = deque()
        self._restart = True
        self._on_change = on_change

    def tell(self, changes: Iterable[TierChange]) -> None:
        with self._lock:
            if not self._restart:
                self._changes.extend(changes)
                if len(self._changes) > MAX_BEHIND:
                    self._changes.clear()
                    self._restart = True
        self._on_change()

    def begin(self) -> None:
        """An inventory is taken right now: what is told from here on follows it."""
        with self._lock:
            self._restart = False
            self._changes.clear()

    @property
    def needs_inventory(self) -> bool:
        """Whether what it has said so far is of no use any more, or nothing was said yet."""
        return self._restart

    def take(self, limit: int) -> list[TierChange]:
        """Up to `limit` changes in order."""
        with self._lock:
            return [self._changes.popleft() for _ in range(min(limit, len(self._changes)))]
