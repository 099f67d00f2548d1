"""The waiting queue: requests with at least one choice that wants a residency, in the order of their policies' lines."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from octavo_scheduler.limits.load import QueueLoad
from octavo_scheduler.policies.line import Line, OrderedLine
from octavo_scheduler.policies.orders import fcfs
from octavo_scheduler.request import Request


class WaitingQueue:
    """Resubmits of the recovery grace first, then what `line` says."""

    __slots__ = ("_first", "_line", "_next_number", "_requests", "load")

    def __init__(self, line: Line) -> None:
        self._first = OrderedLine(fcfs)
        self._line = line
        self._requests: dict[Request, None] = {}
        self._next_number = 0
        self.load = QueueLoad()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """All of them, in no order; the queue may change meanwhile."""
        return iter(list(self._requests))

    def push(self, request: Request) -> None:
        """Adds a request that is not in the queue; a preempted one keeps its arrival."""
        if request.queued:
            return
        if not request.queue_number:
            self._next_number += 1
            request.queue_number = self._next_number
        request.queued = True
        self._requests[request] = None
        self.load.add(request)
        request.accounts = self._line_of(request).push(request)
        for choice in request.choices:
            if choice.sequence is not None:  # another choice of it runs on
                choice.sequence.accounts = request.accounts

    def enter(self, request: Request, now_us: int) -> None:
        """A new request while nobody waits: it counts as waiting, and `leave` or `stay` follows in the same event."""
        self._next_number += 1
        request.queue_number = self._next_number
        self._requests[request] = None
        request.accounts = self._line.enter(request, now_us)

    def leave(self, request: Request) -> None:
        """It has started at once: no line has seen it."""
        del self._requests[request]
        self._line.left(request)

    def stay(self, request: Request) -> None:
        """It could not: it waits like all others."""
        del self._requests[request]
        self.push(request)

    def remove(self, request: Request) -> None:
        """Takes a request out; a no-op when it is not in."""
        if not request.queued:
            return
        request.queued = False
        del self._requests[request]
        self.load.take(request)
        self._line_of(request).remove(request)

    def in_turn(self, now_us: int) -> Turn:
        """A look at the queue in order. What is still queued when the next one is asked for is passed over."""
        return Turn(self, now_us)

    def first(self, count: int, now_us: int) -> list[Request]:
        """The next `count` in order, for who only looks."""
        with self.in_turn(now_us) as turn:
            return [request for _, request in zip(range(count), turn, strict=False)]

    def peek(self, now_us: int) -> Request | None:
        """Who is next."""
        head = self._first.peek(now_us) or self._line.peek(now_us)
        return head[1] if head is not None else None

    def park(self, request: Request) -> None:
        """Takes the one that `peek` returned out of sight."""
        self._line_of(request).park(request)

    def park_tenant(self, request: Request) -> bool:
        """Takes its whole tenant out of sight; False where the policy knows no tenants."""
        return self._line_of(request).park_tenant(request)

    def unpark_tenant(self, request: Request) -> None:
        """Puts the tenant back."""
        self._line_of(request).unpark_tenant(request)

    def unpark(self, request: Request) -> None:
        """Puts it back."""
        self._line_of(request).unpark(request)

    def _line_of(self, request: Request) -> Line:
        return self._first if request.resubmitted else self._line

    @property
    def prompt_tokens(self) -> int:
        """Of all that wait."""
        return self.load.total.prompt_tokens


class Turn:
    """One pass over the queue; a context manager, whose end puts back what was passed over.

    The order is looked up anew for each request, so what an admission is charged for counts at once.
    """

    __slots__ = ("_hidden", "_now_us", "_passed", "_queue", "_whole_tenant")

    def __init__(self, queue: WaitingQueue, now_us: int) -> None:
        self._queue = queue
        self._now_us = now_us
        self._passed: list[Request] = []
        self._hidden: list[Request] = []
        self._whole_tenant = False

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for request in self._passed:
            if request.queued:
                self._queue.unpark(request)
        for request in self._hidden:
            self._queue.unpark_tenant(request)

    def pass_tenant(self) -> None:
        """Nobody of the present request's tenant can start: the next one is another's, however many wait."""
        self._whole_tenant = True

    def __iter__(self) -> Iterator[Request]:
        while (request := self._queue.peek(self._now_us)) is not None:
            yield request
            whole_tenant, self._whole_tenant = self._whole_tenant, False
            if whole_tenant and self._queue.park_tenant(request):
                self._hidden.append(request)
            elif request.queued:
                self._queue.park(request)
                self._passed.append(request)
