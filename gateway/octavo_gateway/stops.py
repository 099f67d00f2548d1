"""Stop strings in a stream of text: cut exactly, whatever the token borders are, and nothing shown too early.

One Knuth-Morris-Pratt automaton per stop string (SIAM J. Comput. 6(2), 1977): its state is the length of the longest
prefix of the stop string that the text ends with, which is exactly what has to be held back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopHit:
    stop: str


class _Automaton:
    __slots__ = ("failure", "state", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        self.failure = [0] * len(stop)
        matched = 0
        for i in range(1, len(stop)):
            while matched and stop[i] != stop[matched]:
                matched = self.failure[matched - 1]
            if stop[i] == stop[matched]:
                matched += 1
            self.failure[i] = matched

    def step(self, char: str) -> bool:
        """Takes one character; True when the stop string ends with it."""
        state = self.state
        if state == len(self.stop):
            state = self.failure[state - 1]
        while state and self.stop[state] != char:
            state = self.failure[state - 1]
        if self.stop[state] == char:
            state += 1
        self.state = state
        return state == len(self.stop)


class StopMatcher:
    """Passes text through until a stop string is complete. Which stop string hits depends on the text alone.

    Of several, the one that is complete first hits; of those that end together, the longest.
    """

    __slots__ = ("_automata", "_held", "_include", "hit")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        # Longest first: the first automaton that ends at a character is then the one to take.
        self._automata = [_Automaton(stop) for stop in sorted(set(stops), key=lambda s: (-len(s), s))]
        self._include = include
        self._held = ""
        self.hit: StopHit | None = None

    def feed(self, text: str, *, armed: bool = True) -> str:
        """The text that may be shown now. After a hit (`self.hit`) everything is dropped.

        armed: False while no stop string may end the text yet (min_tokens).
        """
        if self.hit is not None:
            return ""
        if not self._automata:
            return text
        held = self._held + text
        start = len(self._held)
        for i in range(start, len(held)):
            char = held[i]
            for automaton in self._automata:
                if automaton.step(char) and armed and self.hit is None:
                    self.hit = StopHit(automaton.stop)
            if self.hit is not None:
                self._held = ""
                return held[: i + 1 if self._include else i + 1 - len(self.hit.stop)]
        keep = max(automaton.state for automaton in self._automata)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What was held back when the text ends without a hit."""
        held, self._held = self._held, ""
        return held
