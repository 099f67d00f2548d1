"""What write-behind comes to: each block that was copied out is a bet that somebody will want it back from there.

A bet is won when a prompt loads the block, by what the load gained; it comes to nothing when a prompt finds the block and
computing it is quicker, or when nobody has asked for it for long. Until then it counts neither way. Bets are of the length class of the
request that left the block, which is what the switch of `offload` decides for (switches.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST = 65_536
"""Bets that are open at once; of more, the oldest are lost."""
LOST_US = 600_000_000
"""A block that nobody has wanted for so long is lost: no lifetime is learned from so rare an event."""
LOST_BLOCKS = 16
"""Lost blocks are told so many at a time, as they were copied."""


class Told(NamedTuple):
    """One entry for the switch of a length class."""

    length: int
    saved_ms: float
    spent_ms: float


class _Bet:
    __slots__ = ("at_us", "length", "spent_ms")

    def __init__(self, length: int) -> None:
        self.length = length
        self.spent_ms = 0.0
        self.at_us = -1  # when it was copied; -1: not yet


class Bets:
    """The blocks of one cell, by key."""

    __slots__ = ("_copied", "_left", "_lost")

    def __init__(self) -> None:
        self._left: OrderedDict[bytes, _Bet] = OrderedDict()  # to be copied
        self._copied: OrderedDict[bytes, _Bet] = OrderedDict()  # the latest last
        self._lost: dict[int, tuple[int, float]] = {}  # length class -> blocks and ms that are not told yet

    def left(self, key: bytes, length: int) -> None:
        """A request of this length class left the block to be copied out."""
        self._left[key] = _Bet(length)
        while len(self._left) > MOST:
            self._left.popitem(last=False)

    def copied(self, keys: Sequence[bytes], took_ms: float, now_us: int) -> list[Told]:
        """These were copied together; returns what has come to nothing meanwhile."""
        told: list[Told] = []
        for key in keys:
            bet = self._left.pop(key, None)
            if bet is None:
                continue
            if (before := self._copied.pop(key, None)) is not None:
                self._lose(before, told)  # the store had thrown it out
            bet.spent_ms, bet.at_us = took_ms / len(keys), now_us
            self._copied[key] = bet
        while self._copied:
            oldest = next(iter(self._copied.values()))
            if len(self._copied) <= MOST and now_us - oldest.at_us < LOST_US:
                break
            self._copied.popitem(last=False)
            self._lose(oldest, told)
        return told

    def came(self, keys: Iterable[bytes], gained_ms: float) -> Told | None:
        """A prompt found the leading ones of these in a store, and gained so much; None when none of them is a bet."""
        length, spent_ms, count = -1, 0.0, 0
        for key in keys:
            bet = self._copied.get(key)
            if bet is None:
                break
            length = bet.length if length < 0 else length
            spent_ms += bet.spent_ms
            bet.spent_ms = 0.0  # paid: whoever comes next gains at no cost
            count += 1
        return Told(length, max(0.0, gained_ms), spent_ms) if count else None

    def __len__(self) -> int:
        return len(self._copied)

    def _lose(self, bet: _Bet, told: list[Told]) -> None:
        if not bet.spent_ms:
            return
        blocks, spent_ms = self._lost.pop(bet.length, (0, 0.0))
        blocks, spent_ms = blocks + 1, spent_ms + bet.spent_ms
        if blocks < LOST_BLOCKS:
            self._lost[bet.length] = blocks, spent_ms
        else:
            told.append(Told(bet.length, 0.0, spent_ms))
