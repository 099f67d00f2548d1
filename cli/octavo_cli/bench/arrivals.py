"""When requests arrive: an open loop draws times that no answer can delay. Pure functions of their seed.

Poisson: exponential gaps. Gamma: gaps of the same mean and a coefficient of variation above 1, which is how production
traffic bursts (BurstGPT, arXiv 2401.17644). Constant: equal gaps. Replay: a trace's own times, faster or slower.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from octavo_cli.bench.work import BadPlan, check_number

KINDS = ("poisson", "gamma", "constant", "replay")
MAX_RATE_PER_S = 1e9
MAX_BURSTINESS = 1000.0
"""Above it the gamma distribution's shape is so small that nearly every gap is 0."""


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Arrivals at `rate_per_s` on average for `duration_s` (0: as long as the workload lasts)."""

    kind: str
    rate_per_s: float
    duration_s: float = 0.0
    burstiness: float = 2.0
    """Coefficient of variation of the gaps, for gamma; 1 is Poisson."""
    speed: float = 1.0
    """How much faster than the trace, for replay."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` clients; each asks again when its answer is there."""

    concurrency: int


def arrival_times(loop: OpenLoop, count: int, trace_s: Sequence[float | None], seed: int) -> list[float]:
    """Seconds since the start, ascending, for at most `count` sessions. Raises BadPlan.

    `trace_s` are the sessions' own times, which replay alone uses: shifted to begin at 0, and ordered.
    """
    check_loop(loop)
    if loop.kind == "replay":
        return _replayed(loop, trace_s)
    times = itertools.accumulate(_gaps(loop, random.Random(f"arrivals {seed}")))
    bounded = (at_s for at_s in times) if not loop.duration_s else _until(times, loop.duration_s)
    return list(itertools.islice(bounded, count))


def check_loop(loop: OpenLoop) -> None:
    """Refuses what draws no arrivals. Raises BadPlan naming the option."""
    if loop.kind not in KINDS:
        raise BadPlan(f"--arrivals: {loop.kind!r} is unknown; use {', '.join(KINDS)}, closed", field="arrivals")
    if loop.kind != "replay":
        check_number("rate", loop.rate_per_s, above=True, most=MAX_RATE_PER_S)
    check_number("duration", loop.duration_s)
    check_number("burstiness", loop.burstiness, above=True, most=MAX_BURSTINESS)
    check_number("speed", loop.speed, above=True)


def _gaps(loop: OpenLoop, draw: random.Random) -> Iterator[float]:
    mean_s = 1.0 / loop.rate_per_s
    if loop.kind == "constant":
        yield 0.0  # the first one at once
        yield from itertools.repeat(mean_s)
    elif loop.kind == "gamma":
        shape = 1.0 / loop.burstiness**2
        while True:
            yield draw.gammavariate(shape, mean_s / shape)
    else:
        while True:
            yield draw.expovariate(loop.rate_per_s)


def _until(times: Iterator[float], end_s: float) -> Iterator[float]:
    return itertools.takewhile(lambda at_s: at_s < end_s, times)


def _replayed(loop: OpenLoop, trace_s: Sequence[float | None]) -> list[float]:
    known = [at_s for at_s in trace_s if at_s is not None]
    if len(known) != len(trace_s) or not known:
        raise BadPlan("--arrivals: replay needs a trace with timestamps; give --trace FILE", field="arrivals")
    if any(after < before for before, after in itertools.pairwise(known)):
        raise BadPlan("--trace: its times go backwards; sort it by timestamp", field="trace")
    times = [(at_s - known[0]) / loop.speed for at_s in known]
    return [at_s for at_s in times if not loop.duration_s or at_s < loop.duration_s]
