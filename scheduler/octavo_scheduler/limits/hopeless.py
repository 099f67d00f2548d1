"""Requests that wait and can no longer end before their deadline: dropped as soon as that is certain, never prefilled.

Certain means: started this very moment, alone on a worker, it would still be late. When that will be is a time, so that
each request has one timer and nobody looks through the queue.
"""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.limits.forecast import idle_service_us
from octavo_scheduler.request import Outcome, Request

AGAIN_US = 1000


def watch(cell: Cell, request: Request) -> None:
    """Sets the timer of a request with a deadline that waits; each wait sets its own."""
    if request.deadline_us:
        cell.timers.at(max(cell.now_us + AGAIN_US, request.deadline_us - _least_us(cell, request)), "hopeless", request)


def hopeless(cell: Cell, request: Request) -> Outcome | None:
    """The timer is due: its outcome, or None when it runs now or the costs have changed (then it is watched on)."""
    if not request.deadline_us or not request.waiting_choices():
        return None
    least_us = _least_us(cell, request)
    if not least_us:
        return None  # no worker: its deadline decides
    if cell.now_us + least_us < request.deadline_us:
        watch(cell, request)
        return None
    left_ms = max(0, request.deadline_us - cell.now_us) / 1000
    message = f"it would take {least_us / 1000:.0f} ms at least, and {left_ms:.0f} ms are left to its deadline"
    word = "evicted-hopeless" if request.work_done else "rejected-hopeless"
    return Outcome("deadline", word, message)


def _least_us(cell: Cell, request: Request) -> int:
    said = max(len(choice.output) for choice in request.choices)
    expected = cell.history.count_on(request.tenant, request.max_tokens, len(request.prompt))
    left = max(1.0, expected - said)
    cached = request.cached_tokens if request.cached_tokens > 0 else 0
    return int(idle_service_us(cell, request.pool, max(1, len(request.prompt) + said - cached), left))
