"""A line: waiting requests in the order of one policy, as a heap whose keys never change while a request waits.

Whatever a policy makes of time (aging, slack) is written into the key once, as a time: an event costs O(log n) however
many wait. Taking a request out leaves its entry behind; stale entries are dropped when they come up, and all together
once they outnumber the live ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from octavo_scheduler.policies.account import Account
from octavo_scheduler.request import QueueKey, Request

SPARE_ENTRIES = 64

Head = tuple[QueueKey, Request]
KeyOf = Callable[[Request], QueueKey]


class Line(Protocol):
    """What the waiting queue asks of a policy. Keys of one policy compare with each other."""

    def push(self, request: Request) -> tuple[Account, ...]:
        """Adds a request; returns the accounts that its service is charged to."""

    def enter(self, request: Request, now_us: int) -> tuple[Account, ...]:
        """As `push` into an empty line, of one that is likely to start in this very event: `left` follows then, else `push`."""

    def left(self, request: Request) -> None:
        """It has started."""

    def peek(self, now_us: int) -> Head | None:
        """Who is next, and its key; None when nobody is in sight."""

    def park(self, request: Request) -> None:
        """Takes the request that `peek` just returned out of sight for the rest of a turn."""

    def unpark(self, request: Request) -> None:
        """Puts a parked request back to its place."""

    def park_tenant(self, request: Request) -> bool:
        """Parks everyone of its tenant beside it in one go; False: this line cannot, and nothing has changed."""

    def unpark_tenant(self, request: Request) -> None:
        """The reverse."""

    def remove(self, request: Request) -> None:
        """Forgets a request, in sight or parked. Its `queued` is False already."""


class OrderedLine:
    """The smallest key first."""

    __slots__ = ("_entries", "_key_of", "_live", "_pushes")

    def __init__(self, key_of: KeyOf) -> None:
        self._key_of = key_of
        self._entries: list[tuple[QueueKey, int, Request]] = []
        self._live = 0  # the parked ones included
        self._pushes = 0

    def __len__(self) -> int:
        return self._live

    def push(self, request: Request) -> tuple[Account, ...]:
        request.queue_key = self._key_of(request)
        self._live += 1
        self._enter(request)
        return ()

    def enter(self, request: Request, now_us: int) -> tuple[Account, ...]:
        return ()

    def left(self, request: Request) -> None:
        pass

    def peek(self, now_us: int) -> Head | None:
        entries = self._entries
        while entries:
            key, _number, request = entries[0]
            # a request that left and came back has a new key: the old entry is stale
            if request.queued and request.queue_key is key:
                return key, request
            heapq.heappop(entries)
        return None

    def park(self, request: Request) -> None:
        if heapq.heappop(self._entries)[2] is not request:
            raise ValueError(f"{request.request_id} is parked and was not the head of its line")

    def unpark(self, request: Request) -> None:
        self._enter(request)

    def park_tenant(self, request: Request) -> bool:
        return False

    def unpark_tenant(self, request: Request) -> None:
        raise ValueError(f"{request.request_id}: no tenant is parked in a line that has none")

    def remove(self, request: Request) -> None:
        self._live -= 1
        if not self._live:
            self._entries.clear()  # a tenant that is gone for days must not keep what it asked for
        elif len(self._entries) > 2 * self._live + SPARE_ENTRIES:
            self._entries = [entry for entry in self._entries if entry[2].queued and entry[2].queue_key is entry[0]]
            heapq.heapify(self._entries)

    def _enter(self, request: Request) -> None:
        self._pushes += 1  # equal keys come up in the order in which they were pushed
        heapq.heappush(self._entries, (request.queue_key, self._pushes, request))
