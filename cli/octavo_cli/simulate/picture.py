"""A simulation as one picture: goodput and attainment over the rate, latency and load over time. SVG; PNG by matplotlib."""

from __future__ import annotations

import html
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.figures import Figures

from octavo_cli.bench.plots import HEIGHT, WIDTH, Series, drawing
from octavo_cli.bench.work import BadPlan

COLOURS = ("#2563c9", "#c2410c", "#15803d", "#7e22ce")
STYLE = (
    "svg{font:11px system-ui,sans-serif;background:#fff}text{fill:#40464d}.grid{stroke:#d8dce0}"
    "polyline{fill:none;stroke-width:1.6}"
    + "".join(f".s{k}{{stroke:{c}}}.c{k}{{fill:{c}}}" for k, c in enumerate(COLOURS))
)
HEAD = 24


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]


def panels(
    figures: Figures, rates: Sequence[tuple[str, float]], points: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[Panel]:
    """`rates`: (suffix, requests/s) of each run; `points`: suffix -> the simulator's points over time."""
    drawn: list[Panel] = []
    if len(rates) > 1:
        curve = tuple((rate, figures.value(f"goodput/{suffix}")) for suffix, rate in rates)
        offered = tuple((rate, rate) for _suffix, rate in rates)
        series = (Series("goodput", curve), Series("offered", offered))
        drawn.append(Panel("Goodput over the offered rate", "offered, requests/s", "within SLO, requests/s", series))
    for suffix, course in points.items():
        latency = tuple(
            Series(name, tuple((point["at_s"], point[key]) for point in course if point[key] is not None))
            for name, key in (("TTFT p50", "ttft_p50_ms"), ("TTFT p99", "ttft_p99_ms"))
        )
        drawn.append(Panel(f"Latency over time, {suffix}", "arrival, s", "ms", latency))
        load = tuple(
            Series(name, tuple((point["at_s"], point[name]) for point in course)) for name in ("waiting", "running")
        )
        drawn.append(Panel(f"Requests over time, {suffix}", "s", "requests", load))
    return [
        Panel(item.title, item.x_label, item.y_label, tuple(row for row in item.series if row.points))
        for item in drawn
        if any(row.points for row in item.series)
    ]


def check(path: Path) -> None:
    """Refuses a picture that could not be drawn, before anything is computed for it. Raises BadPlan."""
    if path.suffix not in (".svg", ".png"):
        raise BadPlan(f"--plot: {path} must end in .svg or .png", field="plot")
    if path.suffix == ".png":
        _pyplot()


def draw(path: Path, drawn: Sequence[Panel]) -> None:
    """Writes the picture; the name's ending chooses the format."""
    if path.suffix == ".png":
        _png(path, drawn)
    else:
        path.write_text(svg(drawn), encoding="utf-8")


def svg(drawn: Sequence[Panel]) -> str:
    """The panels below each other, each with its title and legend."""
    parts = []
    for number, item in enumerate(drawn):
        top = number * (HEIGHT + HEAD)
        legend = "".join(
            f'<tspan class="c{k}" dx="12">{html.escape(row.name)}</tspan>' for k, row in enumerate(item.series)
        )
        parts.append(
            f'<text x="8" y="{top + 16}"><tspan font-weight="600">{html.escape(item.title)}</tspan>{legend}</text>'
        )
        box = drawing(item.title, item.x_label, item.y_label, item.series)
        parts.append(f'<svg x="0" y="{top + HEAD}" width="{WIDTH}" height="{HEIGHT}">{box}</svg>')
    height = len(drawn) * (HEIGHT + HEAD)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
        f"<style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )


def _pyplot() -> Any:
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        message = "--plot: .png needs matplotlib; `pip install matplotlib`, or name an .svg file"
        raise BadPlan(message, field="plot") from error


def _png(path: Path, drawn: Sequence[Panel]) -> None:
    pyplot = _pyplot()
    pyplot.switch_backend("Agg")
    figure, axes = pyplot.subplots(len(drawn), 1, figsize=(8, 3.5 * len(drawn)), squeeze=False)
    for item, (axis,) in zip(drawn, axes, strict=True):
        for row, colour in zip(item.series, COLOURS, strict=False):
            axis.plot([x for x, _y in row.points], [y for _x, y in row.points], label=row.name, color=colour)
        axis.set(title=item.title, xlabel=item.x_label, ylabel=item.y_label)
        axis.set_ylim(bottom=0)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
