"""Pairs: the order of turns, one sample a round, and ratios of turns that followed each other."""

from __future__ import annotations

from typing import Any

from octavo_cli.engine_bench import engine
from octavo_cli.engine_bench.pairs import LEAST_STEPS, take_turns, together, with_twins


def test_a_row_stands_beside_its_greedy_twin_in_the_place_of_the_first() -> None:
    rows = [
        "prefill/bf16/512",
        "decode/bf16/b16",
        "decode/bf16/b1",
        "decode/bf16/b16/sampled",
        "decode/int8/b16/sampled",
    ]
    assert with_twins(rows) == [
        ("prefill/bf16/512",),
        ("decode/bf16/b16", "decode/bf16/b16/sampled"),
        ("decode/bf16/b1",),
        ("decode/int8/b16/sampled",),
    ]
    assert with_twins(["a/sampled", "a"]) == [("a", "a/sampled")]


def test_turns_are_long_enough_and_both_rows_come_as_early_and_as_late() -> None:
    asked: list[tuple[str, int]] = []

    def measure(row: str, steps: int) -> dict[str, Any]:
        asked.append((row, steps))
        return {"tokens": 10, "steps": steps, "seconds": float(len(asked)), "backend": "native"}

    greedy, drawn = take_turns(measure, ("a", "a/sampled"), 8)
    assert asked == [(row, LEAST_STEPS) for row in ("a", "a/sampled", "a/sampled", "a")]
    assert [sample["seconds"] for sample in greedy] == [1, 4] and [sample["seconds"] for sample in drawn] == [2, 3]
    assert together(greedy) == {"tokens": 20, "steps": 2 * LEAST_STEPS, "seconds": 5.0, "backend": "native"}
    take_turns(measure, ("a", "a/sampled"), 99)
    assert asked[-1] == ("a", 99)


class FakeEngine:
    """A step takes 1 s, and a drawn one 2 s but for one disturbed turn."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, *, do: str, row: str, steps: int) -> dict[str, Any]:
        self.asked.append(row)
        slow = 100 if len(self.asked) == 2 else 1
        return {
            "tokens": steps,
            "steps": steps,
            "seconds": steps * slow * (2.0 if "sampled" in row else 1.0),
            "backend": "native",
        }


def test_the_ratio_is_the_median_over_turns_and_one_disturbed_turn_does_not_move_it() -> None:
    found, fake = engine.Found(), FakeEngine()
    for number in range(3):
        engine._ours(found, fake, ("a/b1", "a/b1/sampled"), 4, keep=number != 1)  # type: ignore[arg-type]
    figures = {figure.name: figure for figure in engine.figures_of(found, [])}
    assert figures["over/greedy/a/b1/sampled"].value == 0.5 and figures["over/greedy/a/b1/sampled"].n == 4
    assert figures["a/b1"].value == 1 and figures["a/b1"].n == 2
    assert len(fake.asked) == 12
