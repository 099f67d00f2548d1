"""Tables for a terminal: wider than it where they must be, since a name cut short names nothing."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.figures import Figures
from rich.console import Console
from rich.table import Table
from rich.text import Text

from octavo_cli.bench.compare import Comparison, Difference

WIDEST = 200


def print_figures(figures: Figures, console: Console) -> None:
    """Every figure of a run, drawn from the form; the quartiles are those of its n samples, whatever quantile it is itself."""
    floors = any(item.floor_ratio for item in figures.results)
    table = Table(title=figures.benchmark, title_justify="left")
    for column in ("name", "value", "unit", *(("of floor",) if floors else ()), "n", "quartiles of the n"):
        table.add_column(column, no_wrap=True)
    for item in figures.results:
        quartiles = f"{item.spread[0]:.4g} - {item.spread[1]:.4g}" if item.spread else ""
        floor = f"{100 / item.floor_ratio:.0f}%" if item.floor_ratio else ""
        of_floor = (floor,) if floors else ()
        table.add_row(item.name, f"{item.value:.4g}", item.unit, *of_floor, str(item.n), quartiles)
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=WIDEST)).maximum)
    console.print(table)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The ratios with what they allow to say, the differences, and the warning."""
    table = Table("name", "A", "B", "unit", "B / A", "95% interval", "pairs", "verdict", title="compare")
    for item in comparison.ratios:
        interval = "" if item.low is None or item.high is None else f"{item.low:.3f} - {item.high:.3f}"
        values = (f"{item.a:.4g}", f"{item.b:.4g}", item.unit, f"{item.ratio:.3f}")
        table.add_row(item.name, *values, interval, str(item.pairs), item.verdict)
    console.print(table)
    for difference in comparison.differences:
        console.print(
            f"differs: {difference.what}: {difference.a!r} -> {difference.b!r}", markup=False, highlight=False
        )
    if comparison.warning:
        console.print(f"warning: {comparison.warning}", markup=False, highlight=False)


def print_unlike(fields: Sequence[Difference], console: Console) -> None:
    """The fields in which the work of two files differs; what only one of them says is `not said` in the other."""
    table = Table("field", "A", "B", title="unlike work", title_justify="left")
    for item in fields:
        table.add_row(item.what, *(Text(value) for value in item.said()))
    console.print(table)
