"""What is sent: a workload is sessions, a session is turns that follow each other, a plain request is a session of one turn.

Prompts are written down as pieces (a seed and a length) and drawn when they are sent, so that a trace of a billion
tokens stays small, two pieces of one seed are the same tokens, and a workload has a digest that names it.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import OctavoError


class BadPlan(OctavoError, ValueError):
    """A load that cannot be sent or measured; the message names the option and the fix."""

    exit_code = 2
    default_reason = "bad-plan"


def check_number(option: str, value: float, least: float = 0.0, *, above: bool = False, most: float = math.inf) -> None:
    """Refuses what is no finite number from `least` (or above it) to `most`. Raises BadPlan naming the option."""
    if math.isfinite(value) and (value > least or (value == least and not above)) and value <= most:
        return
    wanted = f"{'above' if above else 'at least'} {least:g}" + (f" and at most {most:g}" if most < math.inf else "")
    raise BadPlan(f"--{option}: {value} must be {wanted}", field=option)


@dataclass(frozen=True, slots=True)
class Piece:
    """`tokens` token ids drawn from `seed`; equal pieces are equal tokens, and a longer one begins like a shorter one."""

    seed: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request adds to its session's history. Exactly one of `pieces` and `text` is there."""

    max_tokens: int
    pieces: tuple[Piece, ...] = ()
    text: str = ""
    pause_s: float = 0.0
    """From the end of the turn before to this one's arrival: a person reads, or a tool runs."""
    cancel_after: int = 0
    """The client leaves after this many tokens; 0: never."""

    @property
    def new_tokens(self) -> int:
        """Tokens of the pieces; 0 for text, whose length the server knows."""
        return sum(piece.tokens for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in order, each with all before it as its prefix."""

    name: str
    turns: tuple[Turn, ...]
    at_s: float | None = None
    """Arrival of the first turn in a trace; None: the arrival process draws it."""
    duplicate: bool = False
    """A second sending of the session of this name: its cost counts, its answers do not."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions in the order of their arrival, and the parameters they were made from."""

    name: str
    sessions: tuple[Session, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sessions:
            raise BadPlan(f"workload: {self.name} has no request; give at least one", field="workload")

    @property
    def requests(self) -> int:
        """Turns in all."""
        return sum(len(session.turns) for session in self.sessions)

    def digest(self) -> str:
        """16 hex digits that are equal exactly when the same requests are sent in the same order."""
        told = hashlib.sha256()
        for session in self.sessions:
            rows = [
                [[[p.seed, p.tokens] for p in t.pieces], t.text, t.max_tokens, t.pause_s, t.cancel_after]
                for t in session.turns
            ]
            told.update(json.dumps([session.name, session.at_s, session.duplicate, rows]).encode())
        return told.hexdigest()[:16]


def draw_tokens(pieces: Sequence[Piece], vocab_size: int) -> list[int]:
    """The token ids of pieces: from the middle of the vocabulary, where the control tokens are not."""
    low, high = min(vocab_size // 50, vocab_size - 1), vocab_size
    drawn: list[int] = []
    for piece in pieces:
        drawn += random.Random(piece.seed).choices(range(low, high), k=piece.tokens)
    return drawn


def with_cancels(workload: Workload, share: float, after: int, seed: int) -> Workload:
    """The workload in which clients leave a share of the requests after `after` tokens."""
    if not 0 <= share <= 1:
        raise BadPlan(f"--cancel-share: {share} must lie in [0, 1]", field="cancel-share")
    draw = random.Random(f"cancel {seed}")
    sessions = tuple(
        Session(
            session.name,
            tuple(_leaving(turn, after) if draw.random() < share else turn for turn in session.turns),
            session.at_s,
        )
        for session in workload.sessions
    )
    return Workload(workload.name, sessions, {**workload.parameters, "cancel_share": share})


def with_duplicates(workload: Workload, share: float, seed: int) -> Workload:
    """The workload in which a share of the sessions is sent twice, as an impatient client's retry does."""
    if not 0 <= share <= 1:
        raise BadPlan(f"--duplicate-share: {share} must lie in [0, 1]", field="duplicate-share")
    draw = random.Random(f"duplicate {seed}")
    sessions: list[Session] = []
    for session in workload.sessions:
        sessions.append(session)
        if draw.random() < share:
            sessions.append(Session(session.name, session.turns, session.at_s, duplicate=True))
    return Workload(workload.name, tuple(sessions), {**workload.parameters, "duplicate_share": share})


def _leaving(turn: Turn, after: int) -> Turn:
    # a client that leaves after the last token has left nothing
    return Turn(turn.max_tokens, turn.pieces, turn.text, turn.pause_s, max(1, min(after, turn.max_tokens - 1)))
