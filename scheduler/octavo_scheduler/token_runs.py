"""New tokens of many requests as columns of numbers, and the handles by which one stream names its requests."""

from __future__ import annotations

from array import array

MOST_HANDLES = 65_536
"""Of one stream at a time; requests beyond them go by their names."""


class TokenRuns:
    """One gateway's stream. A run is some tokens of one choice, and an entry in every column but `tokens`, which has those of all."""

    __slots__ = ("_given", "counts", "handles", "indexes", "starts", "tokens", "who")

    def __init__(self) -> None:
        self.handles: dict[str, int] = {}  # by the name of the request on this stream
        self._given = 0
        self.take()

    def take(self) -> None:
        """Begins anew: the columns were written."""
        self.who: list[int] = []
        self.indexes: list[int] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.tokens = array("I")

    def give(self, name: str) -> int:
        """A new handle for the request; 0: there are too many."""
        if len(self.handles) >= MOST_HANDLES:
            return 0
        self._given = self._given % 0xFFFFFFFF + 1
        self.handles[name] = self._given
        return self._given

    def add(self, handle: int, index: int, start: int, tokens: array[int]) -> None:
        """A run of choice `index`; its first token is output token `start`."""
        self.who.append(handle)
        self.indexes.append(index)
        self.starts.append(start)
        self.counts.append(len(tokens))
        self.tokens.extend(tokens)
