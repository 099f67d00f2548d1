"""Plots as inline SVG: lines and points over two axes, no script and no foreign asset. Colours come from the page's CSS."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 40
MAX_POINTS = 1500
"""More are thinned evenly: a page stays small."""


@dataclass(frozen=True, slots=True)
class Series:
    """One named row of (x, y). `dots`: points that are not joined."""

    name: str
    points: tuple[tuple[float, float], ...]
    dots: bool = False


def plot(title: str, x_label: str, y_label: str, series: Sequence[Series], *, y_max: float = 0.0) -> str:
    """One figure; empty when there is nothing to draw. `y_max` fixes the top of the axis; 0: from the data."""
    shown = [item for item in series if item.points]
    if not shown:
        return ""
    legend = "".join(
        f'<span class="key c{number}">{html.escape(item.name)}</span>' for number, item in enumerate(shown)
    )
    box = drawing(title, x_label, y_label, shown, y_max=y_max)
    return f"<figure><figcaption>{html.escape(title)} {legend}</figcaption>{box}</figure>"


def drawing(title: str, x_label: str, y_label: str, shown: Sequence[Series], *, y_max: float = 0.0) -> str:
    """The svg element of a figure, without caption and legend; every series has points."""
    xs = [x for item in shown for x, _ in item.points]
    ys = [y for item in shown for _, y in item.points]
    frame = _Frame(min(0.0, *xs), max(xs) or 1.0, y_max or max(ys) or 1.0)
    parts = [_axes(frame, x_label, y_label)]
    for number, item in enumerate(shown):
        parts.append(_dots(frame, item, number) if item.dots else _line(frame, item, number))
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">{"".join(parts)}</svg>'


def cumulative(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """(value, share of the values up to it), ascending: the empirical distribution."""
    ranked = sorted(values)
    return tuple((value, (rank + 1) / len(ranked)) for rank, value in enumerate(ranked))


def thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most MAX_POINTS of them, the last one included."""
    if len(points) <= MAX_POINTS:
        return points
    step = len(points) / MAX_POINTS
    return [*(points[int(k * step)] for k in range(MAX_POINTS)), points[-1]]


def ticks(most: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 to at most `most`."""
    if most <= 0:
        return [0.0]
    rough = most / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [k * step for k in range(int(most / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class _Frame:
    """From values to pixels."""

    x_min: float
    x_max: float
    y_max: float

    def x(self, value: float) -> float:
        width = (self.x_max - self.x_min) or 1.0
        return LEFT + (value - self.x_min) / width * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - min(value, self.y_max) / self.y_max * (HEIGHT - TOP - BOTTOM)


def _axes(frame: _Frame, x_label: str, y_label: str) -> str:
    floor = HEIGHT - BOTTOM
    parts = []
    for value in ticks(frame.y_max):
        at = frame.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in ticks(frame.x_max):
        parts.append(f'<text x="{frame.x(value):.1f}" y="{floor + 16}" text-anchor="middle">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(x_label)}</text>')
    parts.append(
        f'<text transform="translate(12 {floor / 2}) rotate(-90)" text-anchor="middle">{html.escape(y_label)}</text>'
    )
    return "".join(parts)


def _line(frame: _Frame, item: Series, number: int) -> str:
    points = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in thinned(item.points))
    return f'<polyline class="s{number}" points="{points}"/>'


def _dots(frame: _Frame, item: Series, number: int) -> str:
    return "".join(
        f'<circle class="d{number}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2"/>'
        for x, y in thinned(item.points)
    )
