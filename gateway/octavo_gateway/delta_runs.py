"""New text and tokens of many calls as columns: what a step has for a client, a row of numbers per delta."""

from __future__ import annotations

from collections.abc import Sequence


class DeltaColumns:
    """`rows` has for each delta its call, index, number of tokens, token_end and byte_end (as in `Delta`), `tokens` the ids of all."""

    __slots__ = ("rows", "texts", "tokens")

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.tokens: list[int] = []
        self.texts: list[str] = []

    def add(self, call: int, index: int, text: str, ids: Sequence[int], token_end: int, byte_end: int) -> None:
        """One delta; the fields are those of `Delta`."""
        self.rows.append((call, index, len(ids), token_end, byte_end))
        self.tokens.extend(ids)
        self.texts.append(text)
