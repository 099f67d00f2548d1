"""Least slack first, and no help for what is lost.

The slack of a waiting request is its deadline less now and less its predicted prefill, so among waiting requests the order
of slack is the order of `latest start`, which does not change with time. The deadline is that of the first token; of a
stream that has begun and was preempted, that of its next token. A request whose latest start has passed cannot be
saved: it goes behind all that can, but one start in LOST_SHARE is the oldest lost one's, so that it ends all the same.
A stream that has begun is never given up.
"""

from __future__ import annotations

import heapq

from octavo_scheduler.policies.account import Account
from octavo_scheduler.policies.line import Head, OrderedLine
from octavo_scheduler.policies.outlook import Outlook
from octavo_scheduler.request import QueueKey, Request

LOST_SHARE = 8

_SAVABLE, _LOST = 0, 1


class SloLine:
    """Priority first, then slack."""

    __slots__ = ("_due", "_lost", "_outlook", "_pushes", "_savable", "_since_lost")

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook
        self._savable = OrderedLine(self._urgency)
        self._lost = OrderedLine(_of_lost)
        self._due: list[tuple[int, int, QueueKey, Request]] = []  # when each of the savable ones is lost
        self._since_lost = 0
        self._pushes = 0

    def _urgency(self, request: Request) -> QueueKey:
        request.latest_start_us = self._outlook.latest_start_us(request)
        return (_SAVABLE, -request.priority, request.latest_start_us, request.queue_number)

    def push(self, request: Request) -> tuple[Account, ...]:
        request.lost = request.passing = False
        self._savable.push(request)
        if request.first_token_us < 0 and self._outlook.has_deadline(request):
            self._pushes += 1
            heapq.heappush(self._due, (request.latest_start_us, self._pushes, request.queue_key, request))
        return ()

    def enter(self, request: Request, now_us: int) -> tuple[Account, ...]:
        latest_us = request.latest_start_us = self._outlook.latest_start_us(request)
        request.lost = latest_us < now_us and request.first_token_us < 0 and self._outlook.has_deadline(request)
        return ()

    def left(self, request: Request) -> None:
        if request.lost:
            self._since_lost = 0

    def peek(self, now_us: int) -> Head | None:
        self._give_up(now_us)
        lost = self._lost.peek(now_us)
        if lost is not None and self._since_lost >= LOST_SHARE - 1:
            return (_SAVABLE,), lost[1]
        return self._savable.peek(now_us) or lost

    def park(self, request: Request) -> None:
        (self._lost if request.lost else self._savable).park(request)

    def unpark(self, request: Request) -> None:
        (self._lost if request.lost else self._savable).unpark(request)

    def park_tenant(self, request: Request) -> bool:
        return False

    def unpark_tenant(self, request: Request) -> None:
        raise ValueError(f"{request.request_id}: no tenant is parked in a line that has none")

    def remove(self, request: Request) -> None:
        if request.lost:
            self._lost.remove(request)
            self._since_lost = 0
        else:
            self._savable.remove(request)
            # who takes a worker that the head cannot use is nobody's turn: a lost one is no sooner next for it
            self._since_lost += bool(len(self._lost)) and not request.passing
        if not (len(self._savable) or len(self._lost)):
            self._due.clear()

    def _give_up(self, now_us: int) -> None:
        due = self._due
        while due and due[0][0] < now_us:
            _latest_us, _number, key, request = heapq.heappop(due)
            if request.queued and request.queue_key is key:
                self._savable.remove(request)  # its entry there is stale once the key has changed
                request.lost = True
                self._lost.push(request)


def _of_lost(request: Request) -> QueueKey:
    return (_LOST, -request.priority, request.arrival_us, request.queue_number)
