"""Writes traces in Mooncake's form with given statistics of lengths, arrivals and shared prefixes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo_cli.bench.arrivals import OpenLoop, arrival_times
from octavo_cli.bench.traces import MOONCAKE_BLOCK_TOKENS
from octavo_cli.bench.work import BadPlan, check_number
from octavo_cli.bench.workloads import MAX_SPREAD

MAX_MEAN_TOKENS = 1e8


@dataclass(frozen=True, slots=True)
class TraceShape:
    """What a trace looks like on average. Lengths are tokens, lognormal with the given coefficient of variation."""

    requests: int = 1000
    input_mean: float = 8192.0
    input_spread: float = 1.0
    output_mean: float = 256.0
    output_spread: float = 1.0
    hit_share: float = 0.5
    """Share of the input blocks that an earlier request had in the same place, as an endless cache would find."""
    families: int = 16
    """How many different prefixes there are to share."""
    arrivals: OpenLoop = field(default_factory=lambda: OpenLoop("poisson", 1.0))
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """What a trace really holds."""

    requests: int
    input_mean: float
    output_mean: float
    hit_share: float
    duration_s: float


def write_trace(shape: TraceShape) -> Iterator[str]:
    """The lines, each with its line end. Raises BadPlan naming the option.

    A request of b blocks takes `hit` of them from its family's chain and the rest anew, where hit is drawn so that
    hits reach `hit_share` of all blocks: what a first visit to a chain cannot hit, later ones make up for.
    """
    _check(shape)
    draw = random.Random(f"trace {shape.seed}")
    times = arrival_times(shape.arrivals, shape.requests, (), shape.seed)
    chains: list[list[int]] = [[] for _ in range(shape.families)]
    blocks = hits = 0
    fresh = iter(range(1 << 62))
    for at_s in times:
        length = _lognormal(draw, shape.input_mean, shape.input_spread)
        needed = -(-length // MOONCAKE_BLOCK_TOKENS)
        chain = chains[draw.randrange(shape.families)]
        wanted = shape.hit_share * (blocks + needed) - hits
        hit = max(0, min(needed, len(chain), round(wanted)))
        ids = chain[:hit] + [next(fresh) for _ in range(needed - hit)]
        if len(ids) > len(chain):
            chain[:] = ids
        blocks, hits = blocks + needed, hits + hit
        row = {
            "timestamp": round(at_s * 1000),
            "input_length": length,
            "output_length": _lognormal(draw, shape.output_mean, shape.output_spread),
            "hash_ids": ids,
        }
        yield json.dumps(row) + "\n"


def statistics_of(lines: Iterator[str]) -> TraceStatistics:
    """What an endless cache would find in a trace of Mooncake's form. Raises BadPlan when it is empty."""
    seen: set[tuple[int, ...]] = set()
    count = inputs = outputs = blocks = hits = 0
    last_ms = 0.0
    for line in lines:
        row = json.loads(line)
        ids = row["hash_ids"]
        hit = next((k for k in range(len(ids)) if tuple(ids[: k + 1]) not in seen), len(ids))
        seen.update(tuple(ids[: k + 1]) for k in range(hit, len(ids)))
        count, inputs, outputs = count + 1, inputs + row["input_length"], outputs + row["output_length"]
        blocks, hits, last_ms = blocks + len(ids), hits + hit, row["timestamp"]
    if not count:
        raise BadPlan("trace: holds no request", field="trace")
    return TraceStatistics(count, inputs / count, outputs / count, hits / blocks, last_ms / 1000.0)


def _check(shape: TraceShape) -> None:
    check_number("hit-share", shape.hit_share, most=1)
    check_number("requests", shape.requests, 1)
    check_number("families", shape.families, 1)
    check_number("input-mean", shape.input_mean, 1, most=MAX_MEAN_TOKENS)
    check_number("output-mean", shape.output_mean, 1, most=MAX_MEAN_TOKENS)
    check_number("input-spread", shape.input_spread, most=MAX_SPREAD)
    check_number("output-spread", shape.output_spread, most=MAX_SPREAD)


def _lognormal(draw: random.Random, mean: float, spread: float) -> int:
    if not spread:
        return max(1, round(mean))
    sigma2 = math.log(1.0 + spread**2)
    return max(1, round(draw.lognormvariate(math.log(mean) - sigma2 / 2.0, math.sqrt(sigma2))))
