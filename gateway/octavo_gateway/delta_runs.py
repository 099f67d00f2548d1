"""New text and tokens of many calls as columns: what a step has for a client, a row of numbers per delta."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.packing import RepeatingColumn, pack_u32
from octavo.v1 import inference_pb2 as pb


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


class DeltaWriter:
    """Packs the columns of one session's messages."""

    __slots__ = ("_calls", "_counts")

    def __init__(self) -> None:
        self._calls, self._counts = RepeatingColumn(), RepeatingColumn()

    def fill(self, runs: pb.DeltaRuns, columns: DeltaColumns) -> None:
        """`columns`, of which there is at least one row, as a message."""
        calls, indexes, counts, token_ends, byte_ends = zip(*columns.rows, strict=True)
        runs.calls = self._calls.pack(calls)
        if any(indexes):
            runs.indexes = pack_u32(indexes)
        runs.counts = self._counts.pack(counts)
        runs.token_ends = pack_u32(token_ends)
        runs.byte_ends = pack_u32(byte_ends)
        runs.tokens = pack_u32(columns.tokens)
        runs.texts.extend(columns.texts)
