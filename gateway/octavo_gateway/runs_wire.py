"""TokenRuns: the tokens of a step for many requests, as columns of numbers, and the handles by which they name requests."""

from __future__ import annotations

from octavo.packing import unpack_u32
from octavo.v1 import scheduler_pb2

from octavo_gateway.live import LiveRequest


class RunTable:
    """The handles of one stream, as the scheduler gave them."""

    def __init__(self) -> None:
        self._live: dict[int, LiveRequest] = {}
        self._handles: dict[str, int] = {}

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
        counts, tokens = unpack_u32(runs.counts), unpack_u32(runs.tokens)
        if sum(counts) != len(tokens):
            raise ValueError(f"runs.tokens: {len(tokens)} for counts of {sum(counts)}")
        at, known = 0, self._live
        columns = unpack_u32(runs.handles), unpack_u32(runs.indexes), unpack_u32(runs.starts), counts
        for handle, index, start, count in zip(*columns, strict=True):
            live = known.get(handle)
            if live is not None:
                if not live.first_token:  # its first ones came to another stream
                    live.on_first_read(read, 0)
                live.on_tokens(index, start, tokens[at : at + count], ())
            at += count
