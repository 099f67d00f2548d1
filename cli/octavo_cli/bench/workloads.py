"""Synthetic workloads, each a pure function of its shape and seed.

random: independent prompts. chat: short questions with lognormal lengths. shared-prefix: few system prompts in front of
many questions. long-prompt: one long document each. rag: an agent whose retrieved documents repeat and whose tools
pause. multi-turn: conversations that come back with all that was said.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass

from octavo_cli.bench.work import BadPlan, Piece, Session, Turn, Workload, check_number

MAX_SPREAD = 1000.0
"""Deviation over mean: beyond it nearly all lengths are 1 and the mean is in a tail that nobody draws."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many requests of which size. Lengths are tokens; a spread of 0 gives every request the mean."""

    requests: int = 32
    prompt_tokens: int = 128
    max_tokens: int = 64
    length_spread: float = 0.0
    """Standard deviation over mean of a lognormal length, for prompt and output alike."""
    prefix_tokens: int = 512
    """Of a shared system prompt, or of one retrieved document."""
    prefixes: int = 4
    """How many different ones there are."""
    turns: int = 4
    """Requests of one conversation or agent."""
    pause_s: float = 1.0
    """Mean of the exponential pause between turns."""
    seed: int = 0


def random_lengths(shape: Shape) -> Workload:
    """Prompts that share nothing."""
    draw = random.Random(f"random {shape.seed}")
    sessions = [
        _single(f"r{i}", _length(draw, shape.prompt_tokens, shape), _length(draw, shape.max_tokens, shape), shape)
        for i in range(shape.requests)
    ]
    return _workload("random", sessions, shape)


def chat(shape: Shape) -> Workload:
    """Independent questions; lengths spread as people's do (coefficient of variation 1 unless one is given)."""
    spread = shape if shape.length_spread else _with_spread(shape, 1.0)
    return Workload("chat", random_lengths(spread).sessions, asdict(spread))


def shared_prefix(shape: Shape) -> Workload:
    """One of few system prompts, drawn by Zipf's law, then a question of its own."""
    draw = random.Random(f"shared {shape.seed}")
    sessions = []
    for i in range(shape.requests):
        pieces = (_prefix(draw, shape), Piece(f"q{shape.seed}/{i}", _length(draw, shape.prompt_tokens, shape)))
        sessions.append(Session(f"s{i}", (Turn(_length(draw, shape.max_tokens, shape), pieces),)))
    return _workload("shared-prefix", sessions, shape)


def long_prompt(shape: Shape) -> Workload:
    """A document of prefix_tokens per request, different each time, and a short question behind it."""
    draw = random.Random(f"long {shape.seed}")
    sessions = []
    for i in range(shape.requests):
        document = Piece(f"d{shape.seed}/{i}", _length(draw, shape.prefix_tokens, shape))
        pieces = (document, Piece(f"q{shape.seed}/{i}", shape.prompt_tokens))
        sessions.append(Session(f"l{i}", (Turn(_length(draw, shape.max_tokens, shape), pieces),)))
    return _workload("long-prompt", sessions, shape)


def rag(shape: Shape) -> Workload:
    """Agents: a task, then turns that each add a retrieved document after a tool's pause. Popular documents come often."""
    draw = random.Random(f"rag {shape.seed}")
    sessions = []
    for i in range(_sessions(shape)):
        turns = [Turn(_length(draw, shape.max_tokens, shape), (Piece(f"task{shape.seed}/{i}", shape.prompt_tokens),))]
        while len(turns) < shape.turns:
            pause_s = draw.expovariate(1.0 / shape.pause_s) if shape.pause_s else 0.0
            turns.append(Turn(_length(draw, shape.max_tokens, shape), (_prefix(draw, shape),), pause_s=pause_s))
        sessions.append(Session(f"a{i}", tuple(turns)))
    return _workload("rag", sessions, shape)


def multi_turn(shape: Shape) -> Workload:
    """Conversations: each turn is all that was said and a new question, after a pause."""
    draw = random.Random(f"turns {shape.seed}")
    sessions = []
    for i in range(_sessions(shape)):
        turns = []
        for k in range(shape.turns):
            pause_s = draw.expovariate(1.0 / shape.pause_s) if k and shape.pause_s else 0.0
            piece = Piece(f"c{shape.seed}/{i}/{k}", _length(draw, shape.prompt_tokens, shape))
            turns.append(Turn(_length(draw, shape.max_tokens, shape), (piece,), pause_s=pause_s))
        sessions.append(Session(f"c{i}", tuple(turns)))
    return _workload("multi-turn", sessions, shape)


WORKLOADS: dict[str, Callable[[Shape], Workload]] = {
    "random": random_lengths,
    "chat": chat,
    "shared-prefix": shared_prefix,
    "long-prompt": long_prompt,
    "rag": rag,
    "multi-turn": multi_turn,
}


def make_workload(name: str, shape: Shape) -> Workload:
    """The workload of this name. Raises BadPlan."""
    if name not in WORKLOADS:
        raise BadPlan(f"--workload: {name!r} is unknown; use {', '.join(WORKLOADS)}", field="workload")
    for field in ("requests", "prompt_tokens", "max_tokens", "prefix_tokens", "prefixes", "turns"):
        if getattr(shape, field) < 1:
            option = field.replace("_", "-")
            raise BadPlan(f"--{option}: {getattr(shape, field)} is too few; give at least 1", field=option)
    check_number("length-spread", shape.length_spread, most=MAX_SPREAD)
    check_number("pause-s", shape.pause_s)
    return WORKLOADS[name](shape)


def _single(name: str, prompt_tokens: int, max_tokens: int, shape: Shape) -> Session:
    return Session(name, (Turn(max_tokens, (Piece(f"{shape.seed}/{name}", prompt_tokens),)),))


def _workload(name: str, sessions: list[Session], shape: Shape) -> Workload:
    return Workload(name, tuple(sessions), asdict(shape))


def _with_spread(shape: Shape, spread: float) -> Shape:
    return Shape(**{**asdict(shape), "length_spread": spread})


def _sessions(shape: Shape) -> int:
    return max(1, round(shape.requests / shape.turns))


def _length(draw: random.Random, mean: int, shape: Shape) -> int:
    """Lognormal with this mean and the shape's coefficient of variation, within a factor of 8 of the mean."""
    if not shape.length_spread:
        return mean
    sigma2 = math.log(1.0 + shape.length_spread**2)
    drawn = draw.lognormvariate(math.log(mean) - sigma2 / 2.0, math.sqrt(sigma2))
    return max(1, mean // 8, min(8 * mean, round(drawn)))


def _prefix(draw: random.Random, shape: Shape) -> Piece:
    weights = [1.0 / (rank + 1) for rank in range(shape.prefixes)]
    which = draw.choices(range(shape.prefixes), weights)[0]
    return Piece(f"prefix{shape.seed}/{which}", shape.prefix_tokens)
