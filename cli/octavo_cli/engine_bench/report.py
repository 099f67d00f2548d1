"""From samples to figures: tokens/s, ms per step and the distance from the floor; ratios pair what was measured in one round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from octavo.figures import Figure, figure_of, quantile

from octavo_cli.engine_bench.services import Pass

Sample = dict[str, Any]


def engine_figures(name: str, samples: Sequence[Sample]) -> list[Figure]:
    """A row of the bare engine (or of a peer): its rate, and for steps their time."""
    rates = [sample["tokens"] / sample["seconds"] for sample in samples]
    floors = [sample["seconds"] / sample["floor_s"] for sample in samples if sample.get("floor_s")]
    spread = (quantile(rates, 0.25), quantile(rates, 0.75))
    floor_ratio = statistics.median(floors) if floors else None
    figures = [Figure(name, statistics.median(rates), "tokens/s", len(rates), spread, floor_ratio)]
    if "decode" in name.split("/"):
        figures.append(figure_of(f"step/{name}", [1e3 * s["seconds"] / s["steps"] for s in samples], "ms"))
    return figures


def ratio_figure(name: str, ours: Sequence[Sample], theirs: Sequence[Sample]) -> Figure:
    """Our rate over theirs, round by round."""
    ratios = [(a["tokens"] / a["seconds"]) / (b["tokens"] / b["seconds"]) for a, b in zip(ours, theirs, strict=False)]
    return figure_of(name, ratios, "ratio")


def service_figures(point: str, passes: Sequence[Pass], bare: Sequence[Sample], cores: int) -> list[Figure]:
    """The way through the services against the bare engine's run of the same prompts, and CPU per step and message."""
    rates = [item.tokens / item.wall_s for item in passes]
    bare_rates = [sample["tokens"] / sample["seconds"] for sample in bare]
    over = [rate / engine for rate, engine in zip(rates, bare_rates, strict=True)]
    # the client runs on the same cores; what it burnt of them is not the services' doing
    own = [
        item.tokens / (item.wall_s - item.client_cpu_s / cores) / engine
        for item, engine in zip(passes, bare_rates, strict=True)
    ]
    figures = [
        figure_of(point, rates, "tokens/s"),
        figure_of(f"{point}/over_engine", over, "ratio"),
        figure_of(f"{point}/over_engine_without_client", own, "ratio"),
        figure_of(f"{point}/ttft_p50", [item.ttft_ms for item in passes], "ms"),
        figure_of(f"{point}/cpu/client", [item.client_cpu_s for item in passes], "s"),
    ]
    if all(item.gaps_ms for item in passes):
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            figures.append(figure_of(f"{point}/itl_{name}", [quantile(item.gaps_ms, share) for item in passes], "ms"))
    for service in passes[0].cpu_s:
        figures.append(figure_of(f"{point}/cpu/{service}", [item.cpu_s[service] for item in passes], "s"))
    gateway = [name for name in passes[0].cpu_s if name.startswith("gateway")]
    for name in (item for item in passes[0].cpu_s if item.startswith("scheduler")):
        per_step = [1e6 * item.cpu_s[name] / item.steps for item in passes]
        figures.append(figure_of(f"{point}/step_cpu/{name}", per_step, "us"))
    for name in gateway:
        per_message = [1e6 * item.cpu_s[name] / item.messages for item in passes]
        figures.append(figure_of(f"{point}/message_cpu/{name}", per_message, "us"))
    return figures


def floor_notes(figures: Sequence[Figure]) -> list[str]:
    """A line for every figure that beats its floor, which cannot be: why the floor was measured too low."""
    return [
        f"{item.name} is {1 / item.floor_ratio:.2f}x its floor: the model half fits a cache that is shared with others, so the "
        "streaming pass beside it met a busier moment or colder lines than the step; repeat on an idle machine, or with more --rounds"
        for item in figures
        if item.floor_ratio is not None and item.floor_ratio < 1
    ]
