"""A matrix as people read it: a row per cell, state and format, a column per figure; in a terminal and on a page."""

from __future__ import annotations

import html

from octavo.figures import Figure, Figures
from rich.console import Console
from rich.table import Table

from octavo_cli.bench.matrix import SHOWN

COLUMNS = {
    "ttft_p50": "TTFT p50, ms",
    "ttft_p99": "TTFT p99, ms",
    "itl_p50": "ITL p50, ms",
    "itl_p99": "ITL p99, ms",
    "tpot_p50": "TPOT p50, ms",
    "throughput/output": "output, tokens/s",
    "throughput/total": "total, tokens/s",
    "cached_share": "cached",
    "errors": "errors",
}
"""Figure -> its heading with the unit."""


def grid(figures: Figures) -> dict[str, dict[str, Figure]]:
    """Path of a row (cell, state, format) -> figure -> its value, in the order of the measurement."""
    rows: dict[str, dict[str, Figure]] = {}
    for item in figures.results:
        name = next((known for known in SHOWN if item.name.startswith(f"{known}/")), "")
        if name:
            rows.setdefault(item.name.removeprefix(f"{name}/"), {})[name] = item
    return rows


def _cells(row: dict[str, Figure]) -> list[str]:
    return [f"{row[name].value:.4g}" if name in row else "" for name in COLUMNS]


def print_matrix(figures: Figures, console: Console) -> None:
    """The table for a terminal, wider than it where it must be."""
    table = Table(title="matrix: prompt/output/reuse/sampling/pause/state/format", title_justify="left")
    table.add_column("cell", no_wrap=True)
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    for path, row in grid(figures).items():
        table.add_row(path, *_cells(row))
    console.width = max(console.width, 150)
    console.print(table)


def matrix_table(figures: Figures) -> str:
    """The table for a page."""
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in ("cell", *COLUMNS.values()))
    body = "".join(
        f"<tr><td>{html.escape(path)}</td>" + "".join(f'<td class="n">{cell}</td>' for cell in _cells(row)) + "</tr>"
        for path, row in grid(figures).items()
    )
    return f"<h2>Prompt, output, reuse, sampling, pause; state; format</h2><table><tr>{head}</tr>{body}</table>"
