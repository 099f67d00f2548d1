"""The highest rate at which 90% of the requests meet their SLO, and the goodput curve on the way to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from octavo.figures import Figure, Figures

from octavo_cli.bench.runner import Runner
from octavo_cli.bench.sample import Run
from octavo_cli.bench.serve import Measured, Plan, Say, config_of, refuse_all_failed, run_once, warm_up
from octavo_cli.bench.slo import Slo
from octavo_cli.bench.summary import attainment, summarize
from octavo_cli.bench.target import Target
from octavo_cli.bench.work import BadPlan

WANTED_ATTAINMENT = 0.9
MAX_DOUBLINGS, BISECTIONS = 12, 4
SHOWN = ("ttft_p50", "ttft_p99", "itl_p99", "throughput/output", "send_lag_p99")
"""Figures of each rate that the sweep keeps, besides attainment and goodput."""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """One rate of a sweep."""

    rate_per_s: float
    attainment: float
    goodput: float
    figures: tuple[Figure, ...]

    @property
    def good(self) -> bool:
        """Whether enough requests met their SLO."""
        return self.attainment >= WANTED_ATTAINMENT


def point_of(rate_per_s: float, run: Run, slo: Slo) -> RatePoint:
    """A run as a point of the goodput curve."""
    figures = tuple(summarize(run, slo))
    goodput = next(item.value for item in figures if item.name == "goodput")
    return RatePoint(rate_per_s, attainment(run, slo), goodput, figures)


def next_rate(points: Sequence[RatePoint], first_rate: float) -> float | None:
    """Which rate to try after these, in the order they were tried; None when the answer is known.

    Doubles from `first_rate` (or halves, when that is too much) until a good rate has a bad one above it, then halves
    the interval between them on a logarithmic scale. A rate counts as bad for good: a lucky second run changes nothing.
    """
    if not points:
        return first_rate
    bad = min((point.rate_per_s for point in points if not point.good), default=None)
    below = [point.rate_per_s for point in points if point.good and (bad is None or point.rate_per_s < bad)]
    good = max(below, default=None)
    if bad is None or good is None:
        if len(points) > MAX_DOUBLINGS:
            return None
        return max(below) * 2.0 if bad is None else bad / 2.0
    return None if _bisections(points, first_rate) >= BISECTIONS else (good * bad) ** 0.5


def _bisections(points: Sequence[RatePoint], first_rate: float) -> int:
    """How many points are no power of two of the first rate: those halved an interval."""
    return sum(1 for point in points if not _is_power_of_two(point.rate_per_s / first_rate))


def _is_power_of_two(ratio: float) -> bool:
    mantissa = ratio.hex().partition("p")[0]
    return mantissa in ("0x1.0000000000000", "0x1.0")


def best_rate(points: Sequence[RatePoint]) -> float:
    """The highest good rate that has no bad one below it; 0 when there is none."""
    bad = min((point.rate_per_s for point in points if not point.good), default=float("inf"))
    return max((point.rate_per_s for point in points if point.good and point.rate_per_s < bad), default=0.0)


async def sweep(target: Target, plan_at: Callable[[float], Plan], first_rate: float, say: Say) -> Measured:
    """Runs rate after rate, each on prompts that no rate before has sent. Raises OctavoError when nothing answers."""
    first = plan_at(first_rate)
    described = await target.describe()
    await warm_up(target, described, first, say)
    points: list[RatePoint] = []
    runs: dict[str, Run] = {}
    while (rate := next_rate(points, first_rate)) is not None:
        plan = plan_at(rate)
        asking = replace(plan.asking, cache_salt=f"bench-{uuid.uuid4().hex[:12]}")
        try:
            run = await run_once(Runner(target, described, asking), plan.workload.sessions, plan)
        except BadPlan:  # halved until nothing arrives within the duration
            if not points:
                raise
            break
        if not run.with_outcome("rejected"):  # a server that refuses all of a rate has answered
            refuse_all_failed(run)
        points.append(point_of(rate, run, plan.slo))
        runs[f"r{rate:.4g}"] = run
        say(f"rate {rate:.4g}/s: {points[-1].attainment:.1%} within the SLO, goodput {points[-1].goodput:.4g}/s")
    return Measured(Figures("sweep", tuple(sweep_figures(points)), config_of(first, described)), runs)


def sweep_figures(points: Sequence[RatePoint]) -> list[Figure]:
    """The answer, then each rate in ascending order."""
    total = sum(point.figures[0].n for point in points)
    figures = [Figure("max_rate", best_rate(points), "requests/s", n=total)]
    for point in sorted(points, key=lambda item: item.rate_per_s):
        where = f"r{point.rate_per_s:.4g}".lower()
        n = point.figures[0].n
        figures.append(Figure(f"attainment/{where}", point.attainment, "share", n=n))
        figures.append(Figure(f"goodput/{where}", point.goodput, "requests/s", n=n))
        figures += [replace(item, name=f"{item.name}/{where}") for item in point.figures if item.name in SHOWN]
    return figures
