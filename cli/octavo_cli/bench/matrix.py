"""A matrix of cells, each a small closed loop: prompt x output x reuse x sampling x pause, per weight format.

A cell that cannot be run (its context is too long) or a state that this server does not have is listed as skipped
with its reason, never left out. Repeat it with one setting changed and compare cell by cell.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from octavo.figures import Figure

from octavo_cli.bench.runner import Asking, Runner
from octavo_cli.bench.slo import Slo
from octavo_cli.bench.summary import summarize
from octavo_cli.bench.target import Described, Target
from octavo_cli.bench.work import BadPlan, Piece, Session, Turn

REUSE = {"none": 0.0, "partial": 0.5, "high": 0.9}
"""Share of the prompt that all requests of a cell have in common."""
SAMPLING = {"greedy": (0.0, 1.0), "top-p": (0.8, 0.95)}
"""Temperature and top-p."""
PAUSE_S = {"none": 0.0, "short": 0.5, "long": 5.0}
"""Between the requests of one client: a pause lets a cache grow old and a batch run empty."""
SHOWN = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "tpot_p50", "throughput/output", "throughput/total", "errors")


@dataclass(frozen=True, slots=True)
class Axes:
    """What is crossed."""

    prompts: tuple[int, ...] = (128, 1024, 8192, 32768)
    outputs: tuple[int, ...] = (16, 128, 512)
    reuses: tuple[str, ...] = tuple(REUSE)
    samplings: tuple[str, ...] = tuple(SAMPLING)
    pauses: tuple[str, ...] = tuple(PAUSE_S)

    def __post_init__(self) -> None:
        for option, given, known in (
            ("reuse", self.reuses, REUSE),
            ("sampling", self.samplings, SAMPLING),
            ("pause", self.pauses, PAUSE_S),
        ):
            if not given:
                raise BadPlan(f"--{option}: is empty; use {', '.join(known)}", field=option)
            for word in given:
                if word not in known:
                    raise BadPlan(f"--{option}: {word!r} is unknown; use {', '.join(known)}", field=option)
        for option, sizes in (("prompt", self.prompts), ("output", self.outputs)):
            if not sizes or min(sizes) < 1:
                raise BadPlan(f"--{option}: {sizes} must be sizes of at least 1 token", field=option)
        for option, values in (
            ("prompt", self.prompts), ("output", self.outputs), ("reuse", self.reuses),
            ("sampling", self.samplings), ("pause", self.pauses),
        ):  # fmt: skip
            if len(set(values)) < len(values):
                raise BadPlan(f"--{option}: names a value twice; leave one out", field=option)


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the matrix."""

    prompt_tokens: int
    max_tokens: int
    reuse: str
    sampling: str
    pause: str

    @property
    def name(self) -> str:
        """p1024/o16/partial/greedy/none"""
        return f"p{self.prompt_tokens}/o{self.max_tokens}/{self.reuse}/{self.sampling}/{self.pause}"

    def sessions(self, clients: int, each: int) -> list[Session]:
        """`clients` sessions of `each` requests that share what the reuse says, and nothing else.

        A client's requests are independent prompts with pauses between them, not a growing conversation.
        """
        shared = round(self.prompt_tokens * REUSE[self.reuse])
        head = (Piece(f"{self.name} shared", shared),) if shared else ()
        own = self.prompt_tokens - shared
        return [
            Session(
                f"{self.name} {client}/{k}",
                (Turn(self.max_tokens, (*head, *((Piece(f"{self.name} {client}/{k}", own),) if own else ()))),),
            )
            for client in range(clients)
            for k in range(each)
        ]


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was not measured, and why."""

    name: str
    why: str


@dataclass(slots=True)
class Table:
    """What a matrix gave so far."""

    results: list[Figure] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def cells(axes: Axes) -> Iterator[Cell]:
    """All points, the smallest first."""
    for row in itertools.product(axes.prompts, axes.outputs, axes.reuses, axes.samplings, axes.pauses):
        yield Cell(*row)


def why_skipped(cell: Cell, described: Described) -> str:
    """Empty when the cell can be run."""
    needed = cell.prompt_tokens + cell.max_tokens
    if needed > described.max_model_len:
        return f"needs {needed} tokens of context, {described.model} has {described.max_model_len}"
    return ""


async def run_cell(
    target: Target, described: Described, cell: Cell, clients: int, each: int, state: str
) -> list[Figure]:
    """The cell's figures in one state. empty: a cache salt that nobody used. warm: the same prompts a second time."""
    temperature, top_p = SAMPLING[cell.sampling]
    salt = f"matrix-{uuid.uuid4().hex[:12]}"
    runner = Runner(target, described, Asking(temperature, top_p, cache_salt=salt, pause_s=PAUSE_S[cell.pause]))
    sessions = cell.sessions(clients, each)
    if state == "warm":
        await Runner(target, described, Asking(cache_salt=salt)).closed_loop(sessions, clients)
    run = await runner.closed_loop(sessions, clients)
    return [item for item in summarize(run, Slo()) if item.name in SHOWN]


def named(figures: Sequence[Figure], *where: str) -> list[Figure]:
    """The figures under a path of names."""
    path = "/".join(re.sub(r"[^a-z0-9_.+/-]", "-", part.lower()) for part in where)
    return [replace(item, name=f"{item.name}/{path}") for item in figures]
