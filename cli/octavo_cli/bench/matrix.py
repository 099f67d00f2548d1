"""A matrix of cells: prompt x output x reuse x sampling x pause, per weight format, on an empty cache and on a warm one.

Cells that differ in less than a measurement can tell are measured together, as a `Group`: its clients ask at once, for the longest
output. What a shorter output would have taken is read off the first tokens of that answer, and an empty cache is the same
before every pause, so only the warm state is asked once per pause. A cell that cannot be run (its context is too long) or a state that
this server does not have is listed as skipped with its reason, never left out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from octavo.figures import Figure

from octavo_cli.bench.target import Described
from octavo_cli.bench.work import BadPlan, Piece, Session, Turn

REUSE = {"none": 0.0, "partial": 0.5, "high": 0.9}
"""Share of the prompt that all requests of a cell have in common, and that was asked before: cached even where the rest is not."""
SAMPLING = {"greedy": (0.0, 1.0), "top-p": (0.8, 0.95)}
"""Temperature and top-p."""
PAUSE_S = {"none": 0.0, "short": 0.5, "long": 5.0}
"""Before a client asks the same again: it lets a cache grow old and the engine run idle."""
SHOWN = (
    "ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "tpot_p50", "throughput/output", "throughput/total", "cached_share", "errors",
)  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Group:
    """The cells that are measured together: every output that the context holds, every pause."""

    prompt_tokens: int
    reuse: str
    sampling: str
    outputs: tuple[int, ...]
    """Ascending."""
    pauses: tuple[str, ...]

    @property
    def name(self) -> str:
        """p1024/partial/greedy"""
        return f"p{self.prompt_tokens}/{self.reuse}/{self.sampling}"

    def cell(self, max_tokens: int, pause: str) -> Cell:
        """One of its cells."""
        return Cell(self.prompt_tokens, max_tokens, self.reuse, self.sampling, pause)

    def rows(self) -> list[str]:
        """Names of what it measures, each a cell in a state."""
        empty = [f"{self.cell(tokens, self.pauses[0]).name}/empty-cache" for tokens in self.outputs]
        return empty + [f"{self.cell(tokens, pause).name}/warm" for pause in self.pauses for tokens in self.outputs]

    def head(self) -> Session | None:
        """One request for the common part, which the cells find cached; None: they have none."""
        return Session(f"{self.name} head", (Turn(1, self._shared()),)) if self._shared() else None

    def sessions(self, clients: int, lap: int) -> list[Session]:
        """One request per client, for the longest output; other laps ask other prompts."""
        own = self.prompt_tokens - sum(piece.tokens for piece in self._shared())
        return [
            Session(name, (Turn(self.outputs[-1], (*self._shared(), *((Piece(name, own),) if own else ()))),))
            for client in range(clients)
            for name in (f"{self.name} {client}/{lap}",)
        ]

    def _shared(self) -> tuple[Piece, ...]:
        tokens = round(self.prompt_tokens * REUSE[self.reuse])
        return (Piece(f"{self.name} shared", tokens),) if tokens else ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """What was not measured, and why."""

    name: str
    why: str


@dataclass(slots=True)
class Table:
    """What a matrix gave so far: figures by the row that they stand in."""

    rows: dict[str, list[Figure]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def results(self) -> list[Figure]:
        """All figures, in the order of the measurement."""
        return [item for row in self.rows.values() for item in row]


def cells(axes: Axes) -> Iterator[Cell]:
    """All points, the smallest first."""
    for row in itertools.product(axes.prompts, axes.outputs, axes.reuses, axes.samplings, axes.pauses):
        yield Cell(*row)


def groups(axes: Axes, described: Described) -> list[Group]:
    """What can be run. First the axes' first values, then what differs from them in one axis, then in two: a matrix that is cut off has
    the effect of each axis."""
    made = []
    for prompt, reuse, sampling in itertools.product(axes.prompts, axes.reuses, axes.samplings):
        outputs = tuple(
            tokens
            for tokens in sorted(axes.outputs)
            if not why_skipped(Cell(prompt, tokens, reuse, sampling, axes.pauses[0]), described)
        )
        if outputs:
            made.append(Group(prompt, reuse, sampling, outputs, axes.pauses))

    def distance(group: Group) -> int:
        first = (axes.prompts[0], axes.reuses[0], axes.samplings[0])
        return sum(
            one != other for one, other in zip((group.prompt_tokens, group.reuse, group.sampling), first, strict=True)
        )

    return sorted(made, key=distance)


def why_skipped(cell: Cell, described: Described) -> str:
    """Empty when the cell can be run."""
    needed = cell.prompt_tokens + cell.max_tokens
    if needed > described.max_model_len:
        return f"needs {needed} tokens of context, {described.model} has {described.max_model_len}"
    return ""


def named(figures: Sequence[Figure], *where: str) -> list[Figure]:
    """The figures under a path of names."""
    path = path_of(*where)
    return [replace(item, name=f"{item.name}/{path}") for item in figures]


def path_of(*where: str) -> str:
    """A row's name as figures can carry it."""
    return "/".join(re.sub(r"[^a-z0-9_.+/-]", "-", part.lower()) for part in where)
