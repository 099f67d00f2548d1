"""The waiting queue. A policy is a sort key that never changes while a request waits, so the queue stays sorted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from octavo_scheduler.request import Request

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
    """Requests with at least one choice that wants a residency, in the order of one policy."""

    __slots__ = ("_entries", "_next_number", "_order", "prompt_tokens")

    def __init__(self, order: str) -> None:
        self._order = ORDERS[order]
        self._entries: list[tuple[SortKey, Request]] = []
        self._next_number = 0
        self.prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """A snapshot in order: admitting while iterating is safe."""
        return iter([request for _, request in self._entries])

    def push(self, request: Request) -> None:
        """Adds a request that is not in the queue; a preempted one finds its old place by its arrival."""
        if request.queued:
            return
        if not request.queue_number:
            self._next_number += 1
            request.queue_number = self._next_number
        request.queued = True
        self.prompt_tokens += len(request.prompt)
        insort(self._entries, (self._order(request), request), key=lambda entry: entry[0])

    def remove(self, request: Request) -> None:
        """Takes a request out; a no-op when it is not in."""
        if not request.queued:
            return
        key = self._order(request)
        at = bisect_left(self._entries, key, key=lambda entry: entry[0])
        if self._entries[at][1] is not request:
            raise ValueError(f"the queue lost {request.request_id}: its sort key changed while it waited")
        del self._entries[at]
        request.queued = False
        self.prompt_tokens -= len(request.prompt)

    def refusal(self, prompt_tokens: int, max_requests: int, max_prompt_tokens: int) -> str:
        """Why a new request cannot wait, naming the unit that is exhausted; empty when it can."""
        if len(self._entries) >= max_requests:
            return f"{len(self._entries)} requests wait (max_waiting_requests {max_requests}); retry later"
        if self._entries and self.prompt_tokens + prompt_tokens > max_prompt_tokens:
            return (
                f"{self.prompt_tokens} prompt tokens wait and {prompt_tokens} more exceed "
                f"max_waiting_prompt_tokens {max_prompt_tokens}; retry later"
            )
        return ""
