"""The waiting queue. A policy is a sort key that never changes while a request waits, so the queue stays sorted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from octavo_scheduler.limits.load import QueueLoad
from octavo_scheduler.request import Request

ITERATION_CHUNK = 16
SPARE_HOLES = 64

SortKey = tuple[int, int, int, int]
Order = Callable[[Request], SortKey]


def fcfs(request: Request) -> SortKey:
    """Resubmits of the recovery grace, then arrival; priority breaks ties."""
    return (0 if request.resubmitted else 1, request.arrival_us, -request.priority, request.queue_number)


def by_priority(request: Request) -> SortKey:
    """Resubmits of the recovery grace, then larger priority, then arrival."""
    return (0 if request.resubmitted else 1, -request.priority, request.arrival_us, request.queue_number)


ORDERS: dict[str, Order] = {"fcfs": fcfs, "priority": by_priority}


class WaitingQueue:
    """Requests with at least one choice that wants a residency, in the order of one policy.

    Removing leaves a hole, and what lies before the first request is cut off now and then: however many wait, taking
    the head or adding at the end moves nothing.
    """

    __slots__ = ("_head", "_keys", "_live", "_next_number", "_order", "_requests", "load")

    def __init__(self, order: str) -> None:
        self._order = ORDERS[order]
        self._keys: list[SortKey] = []
        self._requests: list[Request | None] = []  # beside its key; None: a hole
        self._head = 0  # only holes before
        self._live = 0
        self._next_number = 0
        self.load = QueueLoad()

    def __len__(self) -> int:
        return self._live

    def __iter__(self) -> Iterator[Request]:
        """In order; adding and removing while iterating is safe. Looking at the head does not touch the rest."""
        at = self._head
        while at < len(self._keys):
            chunk = self._requests[at : at + ITERATION_CHUNK]
            last = self._keys[at + len(chunk) - 1]
            for request in chunk:
                if request is not None and request.queued:
                    yield request
            at = bisect_right(self._keys, last)

    def push(self, request: Request) -> None:
        """Adds a request that is not in the queue; a preempted one finds its old place by its arrival."""
        if request.queued:
            return
        if not request.queue_number:
            self._next_number += 1
            request.queue_number = self._next_number
        request.queued = True
        self._live += 1
        self.load.add(request)
        key = self._order(request)
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._keys[at] == key:  # keys hold the queue number: its own hole
            self._requests[at] = request
        else:
            self._keys.insert(at, key)
            self._requests.insert(at, request)
        self._head = min(self._head, at)

    def remove(self, request: Request) -> None:
        """Takes a request out; a no-op when it is not in."""
        if not request.queued:
            return
        at = bisect_left(self._keys, self._order(request))
        if at == len(self._keys) or self._requests[at] is not request:
            raise ValueError(f"the queue lost {request.request_id}: its sort key changed while it waited")
        self._requests[at] = None
        request.queued = False
        self._live -= 1
        self.load.take(request)
        if at == self._head:
            while self._head < len(self._requests) and self._requests[self._head] is None:
                self._head += 1
        if len(self._keys) > 2 * self._live + SPARE_HOLES:
            self._close_holes()

    def _close_holes(self) -> None:
        kept = [(key, request) for key, request in zip(self._keys, self._requests, strict=True) if request is not None]
        self._keys = [key for key, _request in kept]
        self._requests = [request for _key, request in kept]
        self._head = 0

    @property
    def prompt_tokens(self) -> int:
        """Of all that wait."""
        return self.load.total.prompt_tokens
