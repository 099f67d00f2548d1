"""The table of a run names every figure whole, however narrow the terminal is."""

from __future__ import annotations

import io

import pytest
from octavo.figures import Figure, Figures
from octavo_cli.bench.report import print_figures
from rich.console import Console

LONG = "itl_p99_of_request_p50/r200"


def printed(*figures: Figure, width: int = 80) -> list[str]:
    out = io.StringIO()
    print_figures(Figures("simulate", figures), Console(file=out, width=width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 80, 180])
def test_a_long_name_stands_on_one_line_with_its_value(width: int) -> None:
    lines = printed(Figure(LONG, 5.036, "ms", 2000, (5.01, 5.037)), Figure("steps/r200", 188300, "steps"), width=width)
    row = next(line for line in lines if LONG in line)
    assert [word for word in row.split() if word != "│"] == [LONG, "5.036", "ms", "2000", "5.01", "-", "5.037"]
    assert len({len(line) for line in lines[1:]}) == 1
    assert "floor" not in "".join(lines)


def test_what_is_held_against_a_floor_says_how_much_of_it() -> None:
    lines = printed(Figure("decode/bf16/b1", 50.0, "tokens/s", 5, floor_ratio=1.25), Figure("cpu/gateway", 1.0, "s"))
    assert "of floor" in lines[2]
    assert "80%" in next(line for line in lines if "decode/bf16/b1" in line)
    assert "%" not in next(line for line in lines if "cpu/gateway" in line)
