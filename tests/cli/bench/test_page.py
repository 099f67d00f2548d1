"""The page: complete in itself, escaped, and of a size that opens."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from octavo.figures import Figure, Figures
from octavo_cli.bench.page import page
from octavo_cli.bench.plots import MAX_POINTS, Series, cumulative, plot, ticks
from octavo_cli.bench.sample import Run, Sample


def a_run(count: int) -> Run:
    return Run(
        tuple(
            Sample(
                f"s{k}", 0, k / 10, arrivals=[(k / 10 + 0.1, 1), (k / 10 + 0.2, 1)], ended_s=k / 10 + 0.2, outcome="ok"
            )
            for k in range(count)
        )
    )


def test_the_page_needs_nothing_else_and_escapes_what_it_shows() -> None:
    figures = Figures("serve", (Figure("ttft_p50", 1.5, "ms", 3, (1.0, 2.0)),), {"model": "<script>alert(1)</script>"})
    text = page(figures, {"cold": a_run(30)}, ["a note with <b>"])
    assert "<script" not in text and "&lt;script&gt;" in text and "a note with &lt;b&gt;" in text
    assert not re.search(r"(src|href)=|url\(|@import", text)
    assert text.count("<svg") == 3 and "ttft_p50" in text and "prefers-color-scheme:dark" in text
    for drawing in re.findall(r"<svg.*?</svg>", text, re.S):
        ElementTree.fromstring(drawing)


def test_plots_of_nothing_are_nothing_and_of_much_are_thinned() -> None:
    assert plot("t", "x", "y", [Series("a", ())]) == ""
    dots = tuple((float(k), float(k)) for k in range(20_000))
    assert plot("t", "x", "y", [Series("a", dots, dots=True)]).count("<circle") == MAX_POINTS + 1
    one = plot("t", "x", "y", [Series("a", ((0.0, 0.0),))])
    assert "nan" not in one and "inf" not in one


def test_ticks_are_round_and_a_distribution_reaches_one() -> None:
    assert ticks(10.0) == [0, 2, 4, 6, 8, 10] and ticks(0.0) == [0.0]
    assert cumulative([3.0, 1.0]) == ((1.0, 0.5), (3.0, 1.0))
