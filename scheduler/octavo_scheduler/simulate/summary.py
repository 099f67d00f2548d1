"""The figures of a simulated run, and its course over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from octavo.figures import Figure, figure_of, quantile

from octavo_scheduler.cell import PREDICTED
from octavo_scheduler.simulate.cell_run import GAP_UNIT_US, CellResult, Sample
from octavo_scheduler.simulate.fleet_run import SAMPLES, Plan
from octavo_scheduler.simulate.roles import role_figures
from octavo_scheduler.simulate.tally import Tally
from octavo_scheduler.slo import SloClass, parse_classes

SHARES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
OUTCOMES = ("finished", "rejected", "deadline", "cancelled", "failed", "unsent")
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Point:
    """One stretch of time: latencies of what arrived in it, the fleet at its beginning."""

    at_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    waiting: int
    running: int
    kv_share: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures by stable names, without the suffix of the run, and the points of the plot over time."""

    figures: tuple[Figure, ...]
    points: tuple[Point, ...]


def summarise(plan: Plan, results: Sequence[CellResult], cost_per_hour: float = 0.0) -> Summary:
    """All figures of a run. `cost_per_hour` is of one worker, in any currency; 0: cost is given in worker seconds alone."""
    tallies = sorted((tally for result in results for tally in result.tallies), key=lambda tally: tally.number)
    span_us = max((result.ended_us for result in results), default=0) or 1
    classes = parse_classes(plan.policy.slo_classes)
    figures = [*_latencies(tallies, results), *_goodput(plan, tallies, classes, span_us, cost_per_hour)]
    figures += _load(plan, results, span_us)
    if plan.roles:
        figures += role_figures(plan.hardware, results[0], span_us)
    return Summary(tuple(figures), tuple(_course(tallies, results)))


def _latencies(tallies: Sequence[Tally], results: Sequence[CellResult]) -> list[Figure]:
    figures: list[Figure] = []
    began = [tally for tally in tallies if tally.ttft_us >= 0]
    if not began:
        return figures
    for name, values in (
        ("ttft", [tally.ttft_us / 1000 for tally in began]),
        ("e2e", [tally.e2e_us / 1000 for tally in began]),
        ("queue", [tally.queue_us / 1000 for tally in began]),
        ("itl_p99_of_request", [tally.itl_p99_us / 1000 for tally in began]),
        ("stall_of_request", [tally.itl_max_us / 1000 for tally in began]),
    ):
        figures += [figure_of(f"{name}_{word}", values, "ms", share) for share, word in SHARES]
    gaps: dict[int, int] = {}
    for result in results:
        for gap, count in result.gaps.items():
            gaps[gap] = gaps.get(gap, 0) + count
    if gaps:
        total = sum(gaps.values())
        low, high = gap_quantile(gaps, 0.25), gap_quantile(gaps, 0.75)
        figures += [
            Figure(f"itl_{word}", gap_quantile(gaps, share), "ms", total, (low, high)) for share, word in SHARES
        ]
    return figures


def gap_quantile(gaps: Mapping[int, int], share: float) -> float:
    """A quantile of pooled gaps (gap // GAP_UNIT_US -> count), milliseconds."""
    wanted = share * sum(gaps.values())
    seen = 0
    for gap in sorted(gaps):
        seen += gaps[gap]
        if seen >= wanted:
            return gap * GAP_UNIT_US / 1000
    return 0.0


def _goodput(
    plan: Plan, tallies: Sequence[Tally], classes: Mapping[str, SloClass], span_us: int, cost_per_hour: float
) -> list[Figure]:
    default = plan.policy.default_slo_class
    good_of: dict[str, int] = {}
    all_of: dict[str, int] = {}
    for tally in tallies:
        name = tally.row.slo_class or default
        target = classes.get(name, SloClass(name))
        all_of[name] = all_of.get(name, 0) + 1
        good_of[name] = good_of.get(name, 0) + tally.meets(target.ttft_ms, target.itl_p99_ms)
    good, count, span_s = sum(good_of.values()), len(tallies), span_us / SECOND_US
    figures = [
        Figure("goodput", good / span_s, "requests/s", count),
        Figure("slo_attainment", good / count, "share", count),
    ]
    for name in sorted(all_of) if len(all_of) > 1 else ():
        figures.append(Figure(f"goodput/{name.lower()}", good_of[name] / span_s, "requests/s", all_of[name]))
        figures.append(Figure(f"slo_attainment/{name.lower()}", good_of[name] / all_of[name], "share", all_of[name]))
    if good:
        worker_s = plan.workers * span_s
        figures.append(Figure("worker_s_per_good_request", worker_s / good, "s", good))
        if cost_per_hour:
            figures.append(Figure("cost_per_good_request", worker_s / 3600 * cost_per_hour / good, "cost", good))
    for outcome in OUTCOMES:
        figures.append(Figure(outcome, sum(tally.outcome == outcome for tally in tallies), "requests", count))
    tokens = sum(tally.tokens for tally in tallies)
    figures.append(Figure("output_rate", tokens / span_s, "tokens/s", count))
    prompts = sum(tally.prompt_tokens for tally in tallies)
    if prompts:
        cached = sum(tally.cached_tokens for tally in tallies)
        figures.append(Figure("cached_tokens", cached, "tokens", count))
        figures.append(Figure("cached_share_of_prompts", cached / prompts, "share", count))
    return figures


def _load(plan: Plan, results: Sequence[CellResult], span_us: int) -> list[Figure]:
    samples = _together(results)
    figures = [Figure("duration", span_us / SECOND_US, "s")]
    if samples:
        for name, unit, values in (
            ("waiting", "requests", [float(sample.waiting) for sample in samples]),
            ("running", "requests", [float(sample.running) for sample in samples]),
            ("kv_use", "share", [sample.kv_share for sample in samples]),
        ):
            spread = (quantile(values, 0.25), quantile(values, 0.75))
            figures.append(Figure(f"{name}_mean", sum(values) / len(values), unit, len(values), spread))
            figures.append(Figure(f"{name}_max", max(values), unit, len(values)))
    figures.append(
        Figure(
            "busy_share", sum(result.busy_us for result in results) / (plan.workers * span_us), "share", plan.workers
        )
    )
    for name, unit in (
        ("preemptions", "requests"),
        ("reports", "reports"),
        ("steps", "steps"),
        ("starved_steps", "steps"),
    ):
        figures.append(Figure(name, sum(result.counters.get(name, 0) for result in results), unit))
    for kind in PREDICTED:
        seen = [result.prediction_errors[kind] for result in results if result.prediction_errors.get(kind, (0,))[0]]
        if seen:  # of the worst cell
            count = sum(item[0] for item in seen)
            figures.append(Figure(f"{kind}_prediction_error_p50", max(item[1] for item in seen), "share", count))
            figures.append(Figure(f"{kind}_prediction_error_p90", max(item[2] for item in seen), "share", count))
    figures.append(Figure("max_service_gap", max(result.max_service_gap_ms for result in results), "ms"))
    return figures


def _together(results: Sequence[CellResult]) -> list[Sample]:
    """The cells' samples of the same time added up; a cell that has ended counts as idle."""
    together = []
    for row in zip_longest(*(result.samples for result in results)):
        there = [sample for sample in row if sample is not None]
        waiting, running = sum(sample.waiting for sample in there), sum(sample.running for sample in there)
        kv_share = sum(sample.kv_share for sample in there) / len(row)
        together.append(Sample(there[0].at_us, waiting, running, kv_share))
    return together


def _course(tallies: Sequence[Tally], results: Sequence[CellResult]) -> list[Point]:
    samples = _together(results)
    stretch = max(1, -(-len(samples) // (SAMPLES // 4)))  # few enough that each holds some arrivals
    stretches = samples[::stretch]
    if not stretches:
        return []
    first_us = min((tally.submitted_us for tally in tallies), default=0)
    begins = [sample.at_us for sample in stretches]
    arrived: list[list[float]] = [[] for _ in stretches]
    width = begins[1] - begins[0] if len(begins) > 1 else 1
    for tally in tallies:
        if tally.ttft_us >= 0:
            at = min(len(begins) - 1, (tally.submitted_us - first_us) // width)
            arrived[at].append(tally.ttft_us / 1000)
    return [
        Point(
            sample.at_us / SECOND_US,
            quantile(values, 0.5) if values else None,
            quantile(values, 0.99) if values else None,
            sample.waiting,
            sample.running,
            sample.kv_share,
        )
        for sample, values in zip(stretches, arrived, strict=True)
    ]
