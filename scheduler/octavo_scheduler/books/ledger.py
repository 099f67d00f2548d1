"""What each technique saved and what it cost, per tenant and class of prompt length, in milliseconds and bytes."""

from __future__ import annotations

from octavo_scheduler.books.book import NOBODY, Book, Who

TECHNIQUES = (
    "prefix_cache",
    "tier_load",
    "offload",
    "preemption",
    "swap",
    "handoff",
    "pause",
    "chunking",
    "compression",
    "join",
    "routing",
    "replication",
    "preload",
    "blending",
)
"""`preemption` is by recompute, `swap` by copies; `routing` is the choice of a worker by what it has cached, `replication` a
prefix that spreads to another worker, `join` the wait for another's prefill of the same prefix, `preload` CAG,
`blending` chunks that are reused at other positions, whose answers are not exact."""

MAX_ROWS = 4096
OTHERS = "(others)"
"""Tenant of what is booked once that many rows are there."""


class Ledger:
    """One book per technique, and one per technique, tenant and length class: their sums are equal."""

    __slots__ = ("books", "rows")

    def __init__(self) -> None:
        self.books: dict[str, Book] = {name: Book() for name in TECHNIQUES}
        self.rows: dict[tuple[str, Who], Book] = {}

    def book(
        self,
        technique: str,
        who: Who = NOBODY,
        *,
        saved_ms: float = 0.0,
        cost_ms: float = 0.0,
        held_ms: float = 0.0,
        saved_bytes: int = 0,
        cost_bytes: int = 0,
        hit_tokens: int = 0,
        asked_tokens: int = 0,
        entries: int = 1,
    ) -> None:
        """Adds one entry, or several at once. Raises KeyError for a technique without a book."""
        for book in (self.books[technique], self.rows.get((technique, who)) or self._row(technique, who)):
            book.entries += entries
            book.asked_tokens += asked_tokens
            if saved_ms or cost_ms or held_ms:
                book.saved_ms += saved_ms
                book.cost_ms += cost_ms
                book.held_ms += held_ms
            if saved_bytes or cost_bytes or hit_tokens:
                book.saved_bytes += saved_bytes
                book.cost_bytes += cost_bytes
                book.hits += 1 if hit_tokens else 0
                book.hit_tokens += hit_tokens

    def asked(self, technique: str, who: Who, tokens: int) -> None:
        """An entry of a prompt that the technique could have served, and had nothing for."""
        for book in (self.books[technique], self.rows.get((technique, who)) or self._row(technique, who)):
            book.entries += 1
            book.asked_tokens += tokens

    def _row(self, technique: str, who: Who) -> Book:
        row = self.rows.get((technique, who))
        if row is None:
            if len(self.rows) >= MAX_ROWS:
                who = Who(OTHERS, who.length)
            row = self.rows.setdefault((technique, who), Book())
        return row

    def counters(self) -> dict[str, float]:
        """Flat names for GetStatus: ledger_<technique>_<entries|saved_ms|cost_ms|held_ms|saved_bytes|cost_bytes|hits|hit_tokens>."""
        flat: dict[str, float] = {}
        for name, book in self.books.items():
            flat[f"ledger_{name}_entries"] = book.entries
            flat[f"ledger_{name}_saved_ms"] = book.saved_ms
            flat[f"ledger_{name}_cost_ms"] = book.cost_ms
            flat[f"ledger_{name}_held_ms"] = book.held_ms
            flat[f"ledger_{name}_saved_bytes"] = book.saved_bytes
            flat[f"ledger_{name}_cost_bytes"] = book.cost_bytes
            flat[f"ledger_{name}_hits"] = book.hits
            flat[f"ledger_{name}_hit_tokens"] = book.hit_tokens
        return flat
