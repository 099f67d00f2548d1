"""The search itself, without blocks or workers: which beams go on with which tokens, and which hypotheses have ended.

The rules are those of transformers' `generate(num_beams, do_sample=False)`: of all continuations of all beams the best
max(2, 1 + end tokens) * width are looked at. Those that end, among the best `width`, become hypotheses; the best others
live on. A hypothesis of t tokens counts sum of log-probabilities / t ** length_penalty.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import inf, isfinite
from operator import attrgetter
from typing import NamedTuple

from octavo_scheduler.beams.rule import BeamRow, BeamRule, TokenScore


class Move(NamedTuple):
    """Beam `beam` goes on as a child of `parent` by `token`. Of a parent's children one stays in its place."""

    beam: int
    parent: int
    token: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation that has ended, its end token included."""

    tokens: array[int]
    score: float
    sum_logprob: float
    reason: str  # stop, length
    stop_token: int
    told: tuple[TokenScore, ...] = ()


class _Candidate(NamedTuple):
    sum_logprob: float
    parent: int
    at: int  # its place in the parent's row
    token: int


@dataclass(slots=True)
class BeamSearch:
    """The state of one search over `width` beams, which are numbered from 0 and keep their numbers."""

    rule: BeamRule
    width: int
    sums: list[float] = field(init=False)
    """Log-probability of each beam; -inf: it is not one yet, and offers nothing."""
    order: list[int] = field(init=False)
    """Beams, the best first: of equal continuations the better beam's is taken."""
    rows: dict[int, BeamRow] = field(default_factory=dict)
    """By beam: what this step's were reported to offer."""
    ended: list[Hypothesis] = field(default_factory=list)
    """The best first, `width` at most."""
    paths: list[tuple[TokenScore, ...]] = field(init=False)
    """Of each beam, when log-probabilities are told."""
    steps: int = 0

    def __post_init__(self) -> None:
        self.sums = [0.0] + [-inf] * (self.width - 1)
        self.order = list(range(self.width))
        self.paths = [()] * self.width

    def step(self, outputs: list[array[int]], *, last: bool) -> list[Move]:
        """Takes the rows of all beams, whose output tokens are `outputs`. `last`: no output may be longer than with this token.

        Returns one move per beam; none: the search has ended, and `ended` is its result.
        """
        self.steps += 1
        found = self._candidates()
        length = len(outputs[0]) + 1
        norm = float(length) ** self.rule.length_penalty
        ends = set(self.rule.stop_ids)
        going: list[_Candidate] = []
        for place, candidate in enumerate(found):
            stops = candidate.token in ends
            if not (stops or last):
                going.append(candidate)
            elif place < self.width:
                self._end(candidate, outputs[candidate.parent], candidate.sum_logprob / norm, stops=stops)
        going = going[: self.width]
        over = not going or self._decided(going[0].sum_logprob / norm)
        moves = [] if over else self._place(going)
        self.rows.clear()
        return moves

    def _candidates(self) -> list[_Candidate]:
        """The best continuations over all beams, the best first; equal ones in the order of their beams and rows."""
        found = [
            _Candidate(self.sums[beam] + logprob, beam, at, token)
            for beam in self.order
            if self.sums[beam] != -inf
            for at, (token, logprob) in enumerate(zip(self.rows[beam].tokens, self.rows[beam].logprobs, strict=True))
            if isfinite(logprob)
        ]
        found.sort(key=attrgetter("sum_logprob"), reverse=True)  # a stable sort, reversed ones too
        return found[: max(2, 1 + len(self.rule.stop_ids)) * self.width]

    def _end(self, candidate: _Candidate, output: array[int], score: float, *, stops: bool) -> None:
        tokens = output[:]
        tokens.append(candidate.token)
        self.ended.append(
            Hypothesis(
                tokens,
                score,
                candidate.sum_logprob,
                "stop" if stops else "length",
                candidate.token if stops else 0,
                self._path(candidate),
            )
        )
        self.ended.sort(key=attrgetter("score"), reverse=True)
        del self.ended[self.width :]

    def _decided(self, best: float) -> bool:
        """Nothing that goes on can come among the best any more, or nobody asks whether it does."""
        if len(self.ended) < self.width:
            return False
        return self.rule.early_stopping or best <= self.ended[-1].score

    def _place(self, going: list[_Candidate]) -> list[Move]:
        """Gives each continuation a beam: its parent's own, or that of a beam which does not go on."""
        parents = {candidate.parent for candidate in going}
        spare = [beam for beam in range(self.width) if beam not in parents]
        sums, order = [-inf] * self.width, list[int]()
        paths: list[tuple[TokenScore, ...]] = [()] * self.width
        moves: list[Move] = []
        for candidate in going:
            if candidate.parent in parents:
                parents.discard(candidate.parent)
                beam = candidate.parent
            else:
                beam = spare.pop(0)
            moves.append(Move(beam, candidate.parent, candidate.token))
            sums[beam], paths[beam] = candidate.sum_logprob, self._path(candidate)
            order.append(beam)
        for beam in spare:  # there are fewer continuations than beams: it only follows the best one
            moves.append(Move(beam, going[0].parent, going[0].token))
            order.append(beam)
        self.sums, self.paths, self.order = sums, paths, order
        return moves

    def _path(self, candidate: _Candidate) -> tuple[TokenScore, ...]:
        most = self.rule.logprobs
        if most < 0:
            return ()
        row = self.rows[candidate.parent]
        score = TokenScore(candidate.token, row.logprobs[candidate.at], row.tokens[:most], row.logprobs[:most])
        return (*self.paths[candidate.parent], score)


def common_length(outputs: list[array[int]]) -> int:
    """Tokens that all outputs begin with: the smallest and the largest of them differ first."""
    low, high = min(outputs), max(outputs)
    return next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
