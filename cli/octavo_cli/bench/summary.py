"""From the samples of a run to its figures. Pure; every quantile names what it is of, nothing is averaged over classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.figures import Figure, figure_of

from octavo_cli.bench.sample import Run, Sample
from octavo_cli.bench.slo import Slo

SHARES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"), (1.0, "max"))
FEW = ((0.5, "p50"), (0.99, "p99"))
"""Quantiles of what is told beside the main latencies."""
CLASSES = ((32, "short"), (256, "medium"), (1 << 62, "long"))
"""Output tokens up to which an answer is of this length class."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What the machines cost while they served this, cancelled, failed, repeated and late work included."""

    per_hour: float
    hours: float

    @property
    def spent(self) -> float:
        return self.per_hour * self.hours


def summarize(run: Run, slo: Slo, cost_per_hour: float = 0.0) -> list[Figure]:
    """Every figure of one run; names as in docs/benchmarks.md. Values that were not measured are left out."""
    figures = [*_outcomes(run), *_goodput(run, slo)]
    figures += _latency(run.samples)
    figures += _by_cache(run.samples)
    figures += _by_length(run.answered())
    figures += _throughput(run)
    figures += _client_and_server(run)
    if cost_per_hour:
        figures += _cost(run, slo, Costs(cost_per_hour, run.wall_s / 3600.0))
    return figures


def attainment(run: Run, slo: Slo) -> float:
    """Share of the requests that met the SLO. Those their own client gave up are not held against the server;
    rejections and failures are."""
    asked = len({sample.key for sample in run.samples if sample.outcome != "cancelled"})
    return sum(slo.met(sample) for sample in run.answered()) / asked if asked else 0.0


def length_class(output_tokens: int) -> str:
    """short, medium or long."""
    return next(word for most, word in CLASSES if output_tokens <= most)


def quantiles(
    name: str, values: Iterable[float | None], suffix: str = "", shares: Sequence[tuple[float, str]] = SHARES
) -> list[Figure]:
    """p50, p95, p99 and max (or other shares) of what was measured; nothing when nothing was."""
    known = [value for value in values if value is not None]
    if not known:
        return []
    return [figure_of(f"{name}_{word}{suffix}", known, "ms", share) for share, word in shares]


def _outcomes(run: Run) -> list[Figure]:
    count = len(run.samples)
    named = (("errors", "failed"), ("rejected", "rejected"), ("cancelled", "cancelled"))
    figures = [Figure("completed", len(run.answered()), "requests", n=count)]
    figures += [Figure(name, len(run.with_outcome(word)), "requests", n=count) for name, word in named]  # type: ignore[arg-type]
    duplicates = len(run.with_outcome("ok")) - len(run.answered())
    return [*figures, *([Figure("duplicates", duplicates, "requests", n=count)] if duplicates else [])]


def _goodput(run: Run, slo: Slo) -> list[Figure]:
    count = len(run.samples)
    good = sum(slo.met(sample) for sample in run.answered())
    figures = [
        Figure("goodput", good / run.wall_s, "requests/s", n=count),
        Figure("attainment", attainment(run, slo), "share", n=count),
    ]
    for name, _bound in slo.bounds_ms:
        missed = sum(name in slo.missed(sample) for sample in run.answered())
        figures.append(Figure(f"slo_missed/{name}", missed, "requests", n=count))
    return figures


def _latency(samples: Sequence[Sample]) -> list[Figure]:
    figures = quantiles("ttft", (sample.ttft_ms for sample in samples))
    gaps = [gap for sample in samples for gap in sample.gaps_ms]
    figures += quantiles("itl", gaps)
    figures += quantiles("stall", (sample.stall_ms for sample in samples))
    figures += quantiles("tpot", (sample.tpot_ms for sample in samples))
    figures += quantiles("e2e", (sample.e2e_ms for sample in samples))
    chunks = sum(len(sample.arrivals) for sample in samples)
    if chunks:
        tokens = sum(count for sample in samples for _at_s, count in sample.arrivals)
        figures.append(Figure("tokens_per_chunk", tokens / chunks, "tokens", n=chunks))
    return figures


def _by_cache(samples: Sequence[Sample]) -> list[Figure]:
    """TTFT of requests that found a part of their prompt in a cache, and of those that did not, never in one figure."""
    told = [sample for sample in samples if sample.cached_tokens is not None and sample.prompt_tokens]
    figures = quantiles("ttft", (sample.ttft_ms for sample in told if sample.cached_tokens), "/hit", FEW)
    figures += quantiles("ttft", (sample.ttft_ms for sample in told if not sample.cached_tokens), "/miss", FEW)
    prompt = sum(sample.prompt_tokens for sample in told)
    if prompt:
        cached = sum(sample.cached_tokens or 0 for sample in told)
        figures.append(Figure("cached_share", cached / prompt, "share", n=len(told)))
    return figures


def _by_length(answered: Sequence[Sample]) -> list[Figure]:
    figures: list[Figure] = []
    for _most, word in CLASSES:
        group = [sample for sample in answered if length_class(sample.output_tokens) == word]
        figures += quantiles("e2e", (sample.e2e_ms for sample in group), f"/{word}", FEW)
    return figures


def _throughput(run: Run) -> list[Figure]:
    """Of whole answers only: half an answer is no output."""
    answered, wall_s = run.answered(), run.wall_s
    inputs = sum(sample.prompt_tokens for sample in answered)
    outputs = sum(sample.output_tokens for sample in answered)
    n = max(1, len(answered))
    return [
        Figure("throughput/request", len(answered) / wall_s, "requests/s", n=n),
        Figure("throughput/input", inputs / wall_s, "tokens/s", n=n),
        Figure("throughput/output", outputs / wall_s, "tokens/s", n=n),
        Figure("throughput/total", (inputs + outputs) / wall_s, "tokens/s", n=n),
        Figure("wall", wall_s, "s", n=len(run.samples)),
    ]


def _client_and_server(run: Run) -> list[Figure]:
    """What the client itself cost, and the server's own account beside the client's."""
    count = len(run.samples)
    figures = [*quantiles("send_lag", (sample.lag_ms for sample in run.samples))]
    figures.append(Figure("client_cpu", run.client_cpu_s / run.wall_s, "cores", n=count))
    figures.append(Figure("client_cpu_per_request", run.client_cpu_s * 1000.0 / count, "ms", n=count))
    figures += quantiles("server_ttft", (sample.server.ttft_ms for sample in run.samples), shares=FEW)
    figures += quantiles("server_e2e", (sample.server.e2e_ms for sample in run.samples), shares=FEW)
    figures += quantiles("server_queue", (sample.server.queue_ms for sample in run.samples), shares=FEW)
    figures += quantiles("server_worker_wait", (sample.server.worker_wait_ms for sample in run.samples), shares=FEW)
    figures += quantiles("server_prefill", (sample.server.prefill_ms for sample in run.samples), shares=FEW)
    outside = [
        sample.ttft_ms - sample.server.ttft_ms
        for sample in run.samples
        if sample.ttft_ms is not None and sample.server.ttft_ms is not None
    ]
    return [*figures, *quantiles("ttft_outside_server", outside, shares=FEW)]


def _cost(run: Run, slo: Slo, costs: Costs) -> list[Figure]:
    """All that was spent over what was of use; a denominator of nothing has no figure."""
    answered = run.answered()
    good = sum(slo.met(sample) for sample in answered)
    tokens = sum(sample.output_tokens for sample in answered)
    figures = [Figure("cost/total", costs.spent, "currency", n=len(run.samples))]
    for name, amount in (("request", len(answered)), ("output_token", tokens), ("slo_request", good)):
        if amount:
            figures.append(Figure(f"cost/{name}", costs.spent / amount, "currency", n=amount))
    return figures
