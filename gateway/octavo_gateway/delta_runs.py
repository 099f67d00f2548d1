"""New text and tokens of many calls as columns: what a step has for a client, without an object per token or delta."""

from __future__ import annotations

from collections.abc import Sequence


class DeltaColumns:
    """One entry per delta in every column but `tokens`, which holds the ids of all, `counts` of each."""

    __slots__ = ("byte_ends", "calls", "counts", "indexes", "texts", "token_ends", "tokens")

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.indexes: list[int] = []
        self.counts: list[int] = []
        self.token_ends: list[int] = []
        self.byte_ends: list[int] = []
        self.tokens: list[int] = []
        self.texts: list[str] = []

    def add(self, call: int, index: int, text: str, ids: Sequence[int], token_end: int, byte_end: int) -> None:
        """One delta; the fields are those of `Delta`."""
        self.calls.append(call)
        self.indexes.append(index)
        self.counts.append(len(ids))
        self.token_ends.append(token_end)
        self.byte_ends.append(byte_end)
        self.tokens.extend(ids)
        self.texts.append(text)
