"""What the figures of `octavo bench cache` are held against, and the table that says which bounds were met."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.figures import Figure


@dataclass(frozen=True, slots=True)
class Target:
    """A figure's bound. `of_floor`: its rate over the floor's is meant, which must not be less; else a ratio, at most."""

    figure: str
    bound: float
    of_floor: bool
    what: str


TARGETS = (
    Target("hbm_over_cold", 0.15, False, "a hit in the pool over a cold prompt"),
    Target("dram_over_hbm", 1.3, False, "a hit in DRAM over one in the pool"),
    Target("nvme_over_bound", 1.0, False, "a hit on NVMe over the pool's + bytes / (0.7 x cold file read) + 5 ms"),
    Target("restore/dram", 0.7, True, "restore from DRAM over memcpy"),
    Target("restore/nvme", 0.7, True, "restore from NVMe over a plain cold file read"),
    Target("restore/remote", 0.7, True, "restore from another host over a bare chunk stream"),
    Target("cold_overhead", 0.03, False, "cold with the cache on over off, less 1"),
)


def target_lines(figures: Iterable[Figure]) -> list[str]:
    """A Markdown table, one row per bound: met, missed, or not measured in this run."""
    found = {figure.name: figure for figure in figures}
    lines = ["| bound | measured | target | |", "|---|---|---|---|"]
    for target in TARGETS:
        value = _value(found.get(target.figure), of_floor=target.of_floor)
        sign = ">=" if target.of_floor else "<="
        shown, verdict = "-", "not measured"
        if value is not None:
            shown = f"{value:.3f}"
            verdict = "met" if (value >= target.bound if target.of_floor else value <= target.bound) else "MISSED"
        lines.append(f"| {target.what} ({target.figure}) | {shown} | {sign} {target.bound:g} | {verdict} |")
    return lines


def _value(figure: Figure | None, *, of_floor: bool) -> float | None:
    if figure is None:
        return None
    if not of_floor:
        return figure.value
    return None if figure.floor_ratio is None else 1 / figure.floor_ratio
