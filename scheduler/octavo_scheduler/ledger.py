"""First version of the ledger: what each technique saved and what it cost, in milliseconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass

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
)


@dataclass(slots=True)
class Book:
    """Sums of one technique. `saved_ms` is an estimate of the cost model."""

    entries: int = 0
    saved_ms: float = 0.0
    cost_ms: float = 0.0
    saved_bytes: int = 0
    cost_bytes: int = 0

    @property
    def net_ms(self) -> float:
        """What it is worth so far."""
        return self.saved_ms - self.cost_ms


class Ledger:
    """One book per technique."""

    __slots__ = ("books",)

    def __init__(self) -> None:
        self.books: dict[str, Book] = {name: Book() for name in TECHNIQUES}

    def book(
        self,
        technique: str,
        *,
        saved_ms: float = 0.0,
        cost_ms: float = 0.0,
        saved_bytes: int = 0,
        cost_bytes: int = 0,
        entries: int = 1,
    ) -> None:
        """Adds one entry, or several at once. Raises KeyError for a technique without a book."""
        book = self.books[technique]
        book.entries += entries
        book.saved_ms += saved_ms
        book.cost_ms += cost_ms
        book.saved_bytes += saved_bytes
        book.cost_bytes += cost_bytes

    def counters(self) -> dict[str, float]:
        """Flat names for GetStatus: ledger_<technique>_<saved_ms|cost_ms|saved_bytes|cost_bytes|entries>."""
        flat: dict[str, float] = {}
        for name, book in self.books.items():
            flat[f"ledger_{name}_entries"] = book.entries
            flat[f"ledger_{name}_saved_ms"] = book.saved_ms
            flat[f"ledger_{name}_cost_ms"] = book.cost_ms
            flat[f"ledger_{name}_saved_bytes"] = book.saved_bytes
            flat[f"ledger_{name}_cost_bytes"] = book.cost_bytes
        return flat
