"""Pairs: a row that draws its tokens beside the greedy row of the same steps. What lies between them is percents, so they take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo_cli.engine_bench.report import Sample

SUFFIX = "/sampled"
LEAST_STEPS = 32
"""Of a turn: one thread put aside for 10 ms is then 3% of it."""
TURNS = (False, True, True, False)
"""Whether a turn draws. What drifts within a round weighs on both alike."""


def with_twins(rows: Sequence[str]) -> list[tuple[str, ...]]:
    """The rows one by one, but for (greedy, drawn) pairs, which stand where the first of the two did."""
    found: list[tuple[str, ...]] = []
    for row in rows:
        greedy = row.removesuffix(SUFFIX)
        pair = (greedy, greedy + SUFFIX)
        if pair in found:
            continue
        found.append(pair if pair[0] in rows and pair[1] in rows else (row,))
    return found


def take_turns(
    measure: Callable[[str, int], Sample], pair: tuple[str, ...], steps: int
) -> tuple[list[Sample], list[Sample]]:
    """Samples of the greedy row and of the drawn one, turn by turn: the first of each follow each other, and so do the second."""
    greedy: list[Sample] = []
    drawn: list[Sample] = []
    for draws in TURNS:
        (drawn if draws else greedy).append(measure(pair[draws], max(steps, LEAST_STEPS)))
    return greedy, drawn


def together(turns: Sequence[Sample]) -> Sample:
    """One sample of a row's turns of a round."""
    summed: Sample = {
        name: sum(turn[name] for turn in turns)
        for name in ("tokens", "steps", "seconds", "floor_s")
        if name in turns[0]
    }
    return {**turns[0], **summed}
