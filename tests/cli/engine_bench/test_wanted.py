"""Bounds beside figures: met, missed, met by the lower of two, and left out where nothing was measured."""

from __future__ import annotations

from octavo.figures import Figure
from octavo_cli.engine_bench.engine import ROWS
from octavo_cli.engine_bench.wanted import WANTED, Wanted, verdict_table, verdicts
from rich.console import Console


def test_a_bound_is_met_or_missed_and_an_unmeasured_one_is_left_out() -> None:
    figures = [
        Figure("services/int8/c16/over_engine", 0.80, "ratio"),
        Figure("services/int8/c1/ttft_over_engine", 4.5, "ms"),
        Figure("services/bf16/c1/ttft_over_engine", 5.5, "ms"),
        Figure("decode/bf16/b1", 130.0, "tokens/s", floor_ratio=1.25),
    ]
    found = {verdict.name: (round(verdict.value, 3), verdict.met) for verdict in verdicts(figures)}
    assert found == {
        "services/int8/c16/over_engine": (0.8, False),
        "services/int8/c1/ttft_over_engine": (4.5, True),
        "services/bf16/c1/ttft_over_engine": (5.5, False),
        "decode/bf16/b1 of its floor": (0.8, True),
    }


def test_the_lower_of_two_bounds_is_enough() -> None:
    figures = [
        Figure("decode/int8/b16", 900.0, "tokens/s", floor_ratio=2.0),
        Figure("peer/vllm/decode/bf16/b16", 600.0, "tokens/s"),
    ]
    floor, peer = verdicts(figures)
    assert (floor.value, floor.met, peer.value, peer.met) == (0.5, True, 1.5, True)
    slower = [figures[0], Figure("peer/vllm/decode/bf16/b16", 700.0, "tokens/s")]
    assert [verdict.met for verdict in verdicts(slower)] == [False, False]
    assert [verdict.met for verdict in verdicts(figures[:1])] == [False]


def test_the_table_says_which_is_which() -> None:
    figures = [
        Figure("decode/int8/b16", 900.0, "tokens/s", floor_ratio=2.0),
        Figure("peer/vllm/decode/bf16/b16", 600.0, "tokens/s"),
        Figure("over/greedy/decode/bf16/b16/sampled", 0.94, "ratio"),
    ]
    console = Console(width=160)
    with console.capture() as shown:
        console.print(verdict_table(verdicts(figures)))
    lines = [line for line in shown.get().splitlines() if "at least" in line]
    assert [next(word for word in ("met by another", "missed", "met") if word in line) for line in lines] == [
        "met by another",
        "met",
        "missed",
    ]


def test_every_bound_is_of_a_row_that_is_measured() -> None:
    """A name that nobody measures would never be held against anything."""
    for bound in WANTED:
        row = bound.figure.removeprefix("over/").partition("/")[2] if bound.figure.startswith("over/") else bound.figure
        assert row in ROWS or row.startswith(("services/bf16/c", "services/int8/c")), bound
    assert verdicts([], (Wanted("decode/bf16/b1", 1.0),)) == []
