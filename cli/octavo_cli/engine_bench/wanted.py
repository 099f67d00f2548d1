"""What the engine and the way through the services are wanted to reach, and whether the figures of a run do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.figures import Figure
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Wanted:
    """One bound: on a figure's value, or with `of_floor` on its share of the floor. Bounds of one `row` that are `either` need one of them."""

    figure: str
    bound: float
    at_most: bool = False
    of_floor: bool = False
    over: str = ""
    """The figure's value is divided by this one's: rows that no peer has in the same weights."""
    either: str = ""


_VLLM_B16 = "peer/vllm/decode/bf16/b16"
WANTED = (
    Wanted("decode/bf16/b1", 0.75, of_floor=True),
    Wanted("over/llamacpp/decode/bf16/b1", 1.0),
    Wanted("over/vllm/decode/bf16/b1", 1.5),
    Wanted("over/llamacpp/decode/int8/b1", 1.2),
    Wanted("over/llamacpp/decode/int4/b1", 1.1),
    Wanted("decode/bf16/b16", 0.85, of_floor=True, either="bf16/b16"),
    Wanted("over/vllm/decode/bf16/b16", 1.2, either="bf16/b16"),
    Wanted("over/vllm/decode/bf16/b32", 1.3),
    Wanted("decode/int8/b16", 0.75, of_floor=True, either="int8/b16"),
    Wanted("decode/int8/b16", 1.4, over=_VLLM_B16, either="int8/b16"),
    Wanted("decode/int8/b16/kv-int8", 0.75, of_floor=True, either="int8/b16/kv-int8"),
    Wanted("decode/int8/b16/kv-int8", 1.7, over=_VLLM_B16, either="int8/b16/kv-int8"),
    Wanted("over/greedy/decode/bf16/b16/sampled", 0.95),
    Wanted("over/vllm/prefill/bf16/512", 1.2),
    Wanted("over/llamacpp/prefill/bf16/512", 6.0),
    Wanted("services/bf16/c16/over_engine", 0.9),
    Wanted("services/bf16/c16/over_engine_without_client", 0.95),
    Wanted("services/bf16/c1/ttft_over_engine", 5.0, at_most=True),
    Wanted("services/bf16/c16/step_cpu/scheduler", 300.0, at_most=True),
    Wanted("services/bf16/c16/message_cpu/gateway", 60.0, at_most=True),
    Wanted("services/int8/c16/over_engine", 0.85),
    Wanted("services/int8/c16/over_engine_without_client", 0.95),
    Wanted("services/int8/c1/ttft_over_engine", 5.0, at_most=True),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound beside what was measured; `met` also where another one of its `either` is."""

    wanted: Wanted
    value: float
    met: bool

    @property
    def name(self) -> str:
        if self.wanted.over:
            return f"{self.wanted.figure} over {self.wanted.over}"
        return f"{self.wanted.figure} of its floor" if self.wanted.of_floor else self.wanted.figure


def verdicts(figures: Sequence[Figure], wanted: Sequence[Wanted] = WANTED) -> list[Verdict]:
    """One per bound whose figure was measured."""
    found = {figure.name: figure for figure in figures}
    values = {bound: _value(bound, found) for bound in wanted}
    alone = {bound: value is not None and _holds(bound, value) for bound, value in values.items()}
    met_together = {bound.either for bound in wanted if bound.either and alone[bound]}
    return [
        Verdict(bound, value, alone[bound] or bound.either in met_together)
        for bound, value in values.items()
        if value is not None
    ]


def verdict_table(found: Sequence[Verdict]) -> Table:
    """Bound, value and `met` or `missed`; a bound that another one stands in for is `met by another`."""
    table = Table(title="wanted")
    for column in ("figure", "wanted", "is", ""):
        table.add_column(column, justify="right" if column in ("wanted", "is") else "left")
    for verdict in found:
        wanted = verdict.wanted
        word = "missed" if not verdict.met else "met" if _holds(wanted, verdict.value) else "met by another"
        sign = "at most" if wanted.at_most else "at least"
        table.add_row(verdict.name, f"{sign} {wanted.bound:g}", f"{verdict.value:.3g}", word)
    return table


def _holds(bound: Wanted, value: float) -> bool:
    return value <= bound.bound if bound.at_most else value >= bound.bound


def _value(bound: Wanted, figures: dict[str, Figure]) -> float | None:
    figure = figures.get(bound.figure)
    if figure is None:
        return None
    if bound.of_floor:
        return None if figure.floor_ratio is None else 1 / figure.floor_ratio
    if not bound.over:
        return figure.value
    other = figures.get(bound.over)
    return None if other is None else figure.value / other.value
