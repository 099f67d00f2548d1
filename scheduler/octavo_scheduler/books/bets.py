"""What write-behind comes to: each block that was copied out is a bet that somebody will want it back from there.

A bet is decided when a prompt finds the block in a store, which gains what loading saves it (nothing where computing is quicker), or
when nobody has asked for it for long. From those that were decided lately follows what a block that is copied now will gain: how
often it will be found, times what that gains. Each copy is held against that at once, so that a link that has become slow shows
before its bets are decided. All of it is by the length class of the request that left the block, for which the switch of
`offload` decides (switches.py); while that is off only the bets of its trials count: what was copied before would go on
winning without a loser among them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST = 65_536
"""Bets that are open at once; of more, the oldest are lost."""
LOST_US = 600_000_000
"""A block that nobody has wanted for so long is lost: no lifetime is learned from so rare an event."""
KNOWN_BLOCKS = 32
"""Bets of a class that must be decided before its copies are judged."""
_KEPT = 0.98
"""What is left of the sums after each event."""
_GAIN_EMA = 0.15
_MOST_USES = 100.0


class Told(NamedTuple):
    """One copy for the switch of a length class: what it will gain, what it took."""

    length: int
    saved_ms: float
    spent_ms: float


class _Bet:
    __slots__ = ("at_us", "decided", "length", "trial")

    def __init__(self, length: int, trial: bool) -> None:
        self.length = length
        self.trial = trial
        self.decided = False
        self.at_us = -1  # when it was copied; -1: not yet


class _Worth:
    """What a block of one class has come to lately."""

    __slots__ = ("blocks", "gain_ms", "seen", "uses")

    def __init__(self) -> None:
        self.seen = 0  # blocks decided, ever
        self.blocks = self.uses = 0.0  # decaying: blocks decided, and how often blocks were found
        self.gain_ms = 0.0  # of one block, once

    def decide(self, blocks: int, uses: int, gain_ms: float) -> None:
        self.seen += blocks
        self.blocks = self.blocks * _KEPT + blocks
        self.uses = self.uses * _KEPT + uses
        if uses:
            self.gain_ms += (_GAIN_EMA if self.uses > uses else 1.0) * (gain_ms / uses - self.gain_ms)

    @property
    def expected_ms(self) -> float:
        return min(_MOST_USES, self.uses / max(1.0, self.blocks)) * self.gain_ms


class Bets:
    """The blocks of one cell, by key."""

    __slots__ = ("_copied", "_left", "_worth")

    def __init__(self) -> None:
        self._left: OrderedDict[bytes, _Bet] = OrderedDict()  # to be copied
        self._copied: OrderedDict[bytes, _Bet] = OrderedDict()  # the latest last
        self._worth: dict[int, _Worth] = {}  # by length class

    def __len__(self) -> int:
        return len(self._copied)

    def left(self, key: bytes, length: int, trial: bool = False) -> None:
        """A request of this length class left the block to be copied out; `trial`: though its class does not."""
        self._left[key] = _Bet(length, trial)
        while len(self._left) > MOST:
            self._left.popitem(last=False)

    def copied(self, keys: Sequence[bytes], took_ms: float, now_us: int) -> list[Told]:
        """These were copied together; what that is worth for each class of which enough is known."""
        of_class: dict[int, int] = {}
        for key in keys:
            bet = self._left.pop(key, None)
            if bet is None:
                continue
            if (before := self._copied.pop(key, None)) is not None:
                self._lose(before)  # the store had thrown it out
            bet.at_us = now_us
            self._copied[key] = bet
            of_class[bet.length] = of_class.get(bet.length, 0) + 1
        while self._copied:
            oldest = next(iter(self._copied.values()))
            if len(self._copied) <= MOST and now_us - oldest.at_us < LOST_US:
                break
            self._copied.popitem(last=False)
            self._lose(oldest)
        worth = {length: self._worth.get(length) for length in of_class}
        return [
            Told(length, blocks * known.expected_ms, took_ms * blocks / len(keys))
            for length, blocks in of_class.items()
            if (known := worth[length]) is not None and known.seen >= KNOWN_BLOCKS
        ]

    def came(self, keys: Iterable[bytes], gained_ms: float, only_trials: frozenset[int] = frozenset()) -> None:
        """A prompt found the leading ones of these in a store, and gained so much by that. Of the classes in `only_trials`
        nothing else counts."""
        decided, uses, length = 0, 0, -1
        for key in keys:
            bet = self._copied.get(key)
            if bet is None or length not in (-1, bet.length):
                break
            length, uses = bet.length, uses + 1
            if length in only_trials and not bet.trial:
                return
            decided += not bet.decided
            bet.decided = True
        if uses:
            self._worth.setdefault(length, _Worth()).decide(decided, uses, max(0.0, gained_ms))

    def _lose(self, bet: _Bet) -> None:
        if not bet.decided:
            self._worth.setdefault(bet.length, _Worth()).decide(1, 0, 0.0)
