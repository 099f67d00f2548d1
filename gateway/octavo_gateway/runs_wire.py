"""TokenRuns: the tokens of a step for many requests, as columns of numbers, and the handles by which they name requests."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import accumulate

from octavo.packing import RepeatingColumn, unpack_u32
from octavo.v1 import scheduler_pb2

from octavo_gateway.live import LiveRequest


class RunTable:
    """The handles of one stream, as the scheduler gave them."""

    def __init__(self) -> None:
        self._live: dict[int, LiveRequest] = {}
        self._handles: dict[str, int] = {}
        self._counts = RepeatingColumn()
        self._handles_said, self._indexes = RepeatingColumn(), RepeatingColumn()
        self._busy_ns = 0  # what a run of the last message took

    def name(self, live: LiveRequest, handle: int) -> None:
        """From now on the handle stands for the request; 0 stands for none."""
        self.forget(live.wire_id)
        if handle:
            self._live[handle], self._handles[live.wire_id] = live, handle

    def forget(self, wire_id: str) -> None:
        """Runs of this request are dropped from now on."""
        self._live.pop(self._handles.pop(wire_id, 0), None)

    def clear(self) -> None:
        """The stream is over, and its handles with it."""
        self._live.clear()
        self._handles.clear()

    def apply(self, runs: scheduler_pb2.TokenRuns, read: float) -> None:
        """Hands every run, read at `read` on the clock of the requests, to its request.

        Raises ValueError when the columns do not fit together, TokenGap when tokens are missing."""
        counts, tokens = self._counts.unpack(runs.counts), unpack_u32(runs.tokens)
        handles, indexes = self._handles_said.unpack(runs.handles), self._indexes.unpack(runs.indexes)
        starts = unpack_u32(runs.starts)
        if counts.count(1) == len(counts):  # nearly every message
            return self._apply_rows(zip(handles, indexes, starts, tokens, strict=True), len(counts), read)
        ends = list(accumulate(counts))
        if sum(counts) != len(tokens):
            raise ValueError(f"runs.tokens: {len(tokens)} for counts of {sum(counts)}")
        pieces = [tokens[end - count : end] for count, end in zip(counts, ends, strict=True)]
        self._apply_rows(zip(handles, indexes, starts, pieces, strict=True), len(counts), read)

    def _apply_rows(self, rows: Iterable[tuple[int, int, int, int | list[int]]], count: int, read: float) -> None:
        """So many runs. Requests that a worker runs in step have the same gaps, which are counted together."""
        began_ns = time.perf_counter_ns()
        known, busy_ns = self._live, self._busy_ns
        last: LiveRequest | None = None
        same_s, alike = 0.0, 0
        for handle, index, start, new in rows:
            live = known.get(handle)
            if live is None:
                continue
            gap_s = live.on_plain(index, start, new, read, busy_ns)
            if gap_s < 0:
                _apply_run(live, index, start, [new] if isinstance(new, int) else new, read)
                continue
            if gap_s != same_s and last is not None:
                last.count_gaps(same_s, alike)
                alike = 0
            last, same_s, alike = live, gap_s, alike + 1
        if last is not None:
            last.count_gaps(same_s, alike)
        self._busy_ns = (time.perf_counter_ns() - began_ns) // max(1, count)


def _apply_run(live: LiveRequest, index: int, start: int, tokens: list[int], read: float) -> None:
    if not live.first_token:  # its first ones came to another stream
        live.on_first_read(read, 0)
    live.on_tokens(index, start, tokens, ())
