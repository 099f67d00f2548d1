"""One page of the ledger: sums of one technique, for one tenant and one class of prompt length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from octavo_scheduler.request import Request


class Who(NamedTuple):
    """Whose entry it is. `length` is history.length_class of the prompt; -1: nobody's in particular."""

    tenant: str
    length: int


NOBODY = Who("", -1)


def who_is(request: Request) -> Who:
    """The tenant and length class of a request."""
    return tuple.__new__(Who, (request.tenant, len(request.prompt).bit_length() // 2))  # Who and length_class, in line


def length_name(length: int) -> str:
    """Prompt tokens of a class, for people: `128-511`; empty for NOBODY's."""
    if length < 0:
        return ""
    least = 1 << max(0, 2 * length - 1)
    return f"{least}-{(1 << (2 * length + 1)) - 1}" if length else "0-1"


@dataclass(slots=True)
class Book:
    """Sums. `saved_ms` is an estimate of the cost model; bytes are those of KV blocks.

    net = saved - cost (lookup, routing, transfer, what was computed for it) - held (block-seconds at their price).
    """

    entries: int = 0
    saved_ms: float = 0.0
    cost_ms: float = 0.0
    held_ms: float = 0.0
    saved_bytes: int = 0
    cost_bytes: int = 0
    hits: int = 0
    """Requests that the technique gave something."""
    hit_tokens: int = 0
    asked_tokens: int = 0
    """Prompt tokens of all requests that it could have served."""

    @property
    def net_ms(self) -> float:
        """What it is worth so far."""
        return self.saved_ms - self.cost_ms - self.held_ms

    def add(self, other: Book) -> None:
        """Adds every sum of another one."""
        self.entries += other.entries
        self.saved_ms += other.saved_ms
        self.cost_ms += other.cost_ms
        self.held_ms += other.held_ms
        self.saved_bytes += other.saved_bytes
        self.cost_bytes += other.cost_bytes
        self.hits += other.hits
        self.hit_tokens += other.hit_tokens
        self.asked_tokens += other.asked_tokens
