"""Numbered changes of what the store holds in any tier: the scheduler's directory follows them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

MAX_BACKLOG = 65_536
"""Events kept for a reader; older ones fall out, and the reader sends an inventory instead."""


@dataclass(frozen=True, slots=True)
class HoldingEvent:
    number: int
    """1, 2, 3, ...: consecutive."""
    key: bytes
    removed: bool
    """False: the key is held now and was not before."""
    tier: str
    """Where it was stored; empty for a removal."""


class EventLog:
    """A bounded log with one reader. Thread-safe.

    `on_event` is called after each append, from the appending thread and without locks; it must not block.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[HoldingEvent] = deque(maxlen=MAX_BACKLOG)
        self._number = 0
        self.on_event: Callable[[], None] = lambda: None

    @property
    def number(self) -> int:
        """The number of the last event; 0: none yet."""
        return self._number

    def append(self, key: bytes, *, removed: bool, tier: str) -> None:
        with self._lock:
            self._number += 1
            self._events.append(HoldingEvent(self._number, key, removed, tier))
        self.on_event()

    def after(self, number: int, limit: int) -> list[HoldingEvent] | None:
        """Up to `limit` events that follow `number`, and forgets those before; None when some of them were lost."""
        with self._lock:
            while self._events and self._events[0].number <= number:
                self._events.popleft()
            if number < self._number and (not self._events or self._events[0].number != number + 1):
                return None
            return [self._events[i] for i in range(min(limit, len(self._events)))]
