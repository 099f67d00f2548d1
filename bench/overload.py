"""Goodput when more arrives than can be served, with the door and without it.

    python bench/overload.py [--hardware h200-8b] [--requests 3000] [--json FILE]     in simulated time
    python bench/overload.py --live [--requests 60] [--json FILE]                     on a local cluster of one worker

Capacity is the highest rate at which 90% of the offered requests meet the SLO (TTFT and the p99 of a request's own ITL;
what is refused has not met it). Then an open loop at capacity and at 1.5 times of it, each served by the door
(`slo-fair`, `on_overload: reject`) and by FCFS without admission control, over the same arrivals. Live, all four runs are
interleaved `--pairs` times on one cluster per policy, and the capacity is that of a sweep on the door.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster
from octavo.figures import Figure, Figures, figure_of, write_figures
from octavo_cli.bench.arrivals import OpenLoop
from octavo_cli.bench.grpc_target import GrpcTarget
from octavo_cli.bench.serve import Plan as LoadPlan
from octavo_cli.bench.serve import measure
from octavo_cli.bench.slo import parse_slo
from octavo_cli.bench.summary import attainment
from octavo_cli.bench.sweep import next_rate, point_of
from octavo_cli.bench.workloads import Shape, make_workload
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellResult
from octavo_scheduler.simulate.fleet_run import Plan, run_fleet
from octavo_scheduler.simulate.hardware import Hardware, hardware_from
from octavo_scheduler.simulate.workload import Row

WANTED, OVERLOAD = 0.9, 1.5
BISECTIONS = 7
PROMPT_TOKENS, OUTPUT_TOKENS, SPREAD = 512, 128, 0.3
LIVE_PROMPT_TOKENS, LIVE_OUTPUT_TOKENS = 96, 32
TTFT_MS, ITL_MS = 1000.0, 200.0


def classes(on_overload: str) -> dict[str, dict[str, float | str]]:
    """The one SLO class."""
    return {"default": {"ttft_ms": TTFT_MS, "itl_p99_ms": ITL_MS, "on_overload": on_overload}}


POLICIES = {"door": ("slo-fair", "reject"), "fcfs": ("fcfs", "queue")}
"""Name -> order of the queue, and what overload does."""


# -- simulated ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """What a run gave."""

    goodput: float
    attainment: float
    refused: int
    result: CellResult


def arrivals(rate: float, count: int, seed: int) -> list[Row]:
    """Poisson arrivals; prompts and outputs lognormal, nothing shared; clients allow four times what comes."""
    rng, at_s = Random(seed), 0.0
    rows = []
    for number in range(count):
        at_s += rng.expovariate(rate)
        prompt, output = (
            max(1, round(mean * rng.lognormvariate(-(SPREAD**2) / 2, SPREAD)))
            for mean in (PROMPT_TOKENS, OUTPUT_TOKENS)
        )
        rows.append(Row(round(at_s * 1e6), ((f"own{number}", prompt),), output, max_tokens=4 * output))
    return rows


def simulated(hardware: Hardware, name: str, rows: Sequence[Row]) -> Served:
    order, on_overload = POLICIES[name]
    policy = Policy(order=order, max_num_seqs=hardware.max_num_seqs, slo_classes=classes(on_overload))
    (result,) = run_fleet(Plan(hardware, policy, 1), rows)
    good = sum(tally.meets(TTFT_MS, ITL_MS) for tally in result.tallies)
    refused = sum(tally.outcome in ("rejected", "deadline") for tally in result.tallies)
    # over the time in which requests came: what runs on afterwards is the same for all
    return Served(good / (rows[-1].at_us / 1e6), good / len(rows), refused, result)


def capacity(hardware: Hardware, count: int, seed: int) -> float:
    """Highest rate with 90% attainment, bisected on a logarithmic scale."""
    low, high = 0.0, 1.0
    while simulated(hardware, "door", arrivals(high, count, seed)).attainment >= WANTED:
        low, high = high, 2 * high
    low = low or high / 64
    for _ in range(BISECTIONS):
        middle = (low * high) ** 0.5
        if simulated(hardware, "door", arrivals(middle, count, seed)).attainment >= WANTED:
            low = middle
        else:
            high = middle
    return low


def in_simulated_time(hardware: Hardware, count: int, seeds: Sequence[int]) -> list[Figure]:
    rates = [capacity(hardware, count, seed) for seed in seeds]
    figures = [figure_of("capacity", rates, "requests/s")]
    values: dict[str, list[float]] = {}
    for seed, rate in zip(seeds, rates, strict=True):
        for times, word in ((1.0, "capacity"), (OVERLOAD, "overload")):
            rows = arrivals(times * rate, count, 1000 + seed)
            for name in POLICIES:
                served = simulated(hardware, name, rows)
                values.setdefault(f"goodput/{word}/{name}", []).append(served.goodput)
                values.setdefault(f"slo_attainment/{word}/{name}", []).append(served.attainment)
                values.setdefault(f"refused_share/{word}/{name}", []).append(served.refused / len(rows))
                if name == "door":
                    for kind, (_count, _median, p90) in served.result.prediction_errors.items():
                        values.setdefault(f"{kind}_prediction_error_p90/{word}", []).append(p90)
    return figures + rows_of(values)


def rows_of(values: dict[str, list[float]]) -> list[Figure]:
    """Figures, and what overload keeps of the goodput at capacity."""
    for name in POLICIES:
        at, over = values[f"goodput/capacity/{name}"], values[f"goodput/overload/{name}"]
        base = values["goodput/capacity/door"]
        values[f"kept/{name}"] = [one / other for one, other in zip(over, base, strict=True)]
        values[f"kept_of_own/{name}"] = [one / other if other else 0.0 for one, other in zip(over, at, strict=True)]
    return [
        figure_of(name, found, "requests/s" if name.startswith("goodput") else "share")
        for name, found in values.items()
    ]


# -- live --------------------------------------------------------------------------------------------------------------


async def on_clusters(folder: Path, requests: int, pairs: int) -> list[Figure]:
    """The same on local clusters, one per policy, each run while the other cluster is idle."""
    slo = parse_slo(f"ttft={TTFT_MS:g}ms,itl_p99={ITL_MS:g}ms")
    clusters = {
        name: Cluster(
            folder / name,
            kvstore=False,
            settings={
                "engine.threads": 1,
                "scheduler.policy": order,
                "scheduler.slo_classes": classes(on_overload),
            },
        )
        for name, (order, on_overload) in POLICIES.items()
    }

    def plan(rate: float, seed: int) -> LoadPlan:
        shape = Shape(requests, LIVE_PROMPT_TOKENS, LIVE_OUTPUT_TOKENS, SPREAD, seed=seed)
        return LoadPlan(
            make_workload("random", shape), OpenLoop("poisson", rate), seed=seed, slo=slo, warmup_requests=0
        )

    async def run(name: str, rate: float, seed: int) -> tuple[float, float, float]:
        async with GrpcTarget(f"grpc://{clusters[name].grpc_address}") as target:
            lived = (await measure(target, plan(rate, seed))).runs["cold"]
        return point_of(rate, lived, slo).goodput, attainment(lived, slo), lived.wall_s

    try:
        for cluster in clusters.values():
            await cluster.up()
            await run(
                next(name for name, item in clusters.items() if item is cluster), 2.0, 1
            )  # lengths and costs become known
        points = []
        async with GrpcTarget(f"grpc://{clusters['door'].grpc_address}") as target:
            while (rate := next_rate(points, 4.0)) is not None and len(points) < 7:
                lived = (await measure(target, plan(rate, 50 + len(points)))).runs["cold"]
                points.append(point_of(rate, lived, slo))
                print(f"rate {rate:.3g}/s: {points[-1].attainment:.0%} within the SLO", flush=True)
        most = max((point.rate_per_s for point in points if point.good), default=0.0)
        if not most:
            raise SystemExit(
                "no rate has 90% of its requests within the SLO on this machine now; run it when it is idle"
            )
        values: dict[str, list[float]] = {}
        for pair in range(pairs):
            for times, word in ((1.0, "capacity"), (OVERLOAD, "overload")):
                for name in POLICIES:
                    goodput, share, _wall_s = await run(name, times * most, 100 + pair)
                    values.setdefault(f"goodput/{word}/{name}", []).append(goodput)
                    values.setdefault(f"slo_attainment/{word}/{name}", []).append(share)
    finally:
        for cluster in clusters.values():
            cluster.down()
    return [Figure("capacity", most, "requests/s"), *rows_of(values)]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true", help="on a local cluster instead of simulated time")
    parser.add_argument("--hardware", default="h200-8b", help="of the simulated worker")
    parser.add_argument("--requests", type=int, default=0, help="of each run; 0: 3000 simulated, 60 live")
    parser.add_argument("--pairs", type=int, default=3, help="runs of everything, on other arrivals")
    parser.add_argument("--json", default="", help="write the figures to this file")
    arguments = parser.parse_args(argv)
    if arguments.live:
        with tempfile.TemporaryDirectory(prefix="octavo-overload-") as folder:
            results = asyncio.run(on_clusters(Path(folder), arguments.requests or 60, arguments.pairs))
    else:
        hardware = hardware_from(arguments.hardware)
        results = in_simulated_time(hardware, arguments.requests or 3000, range(1, arguments.pairs + 1))
    for item in results:
        low, high = item.spread or (item.value, item.value)
        print(f"{item.name:40} {item.value:10.3f} {item.unit:12} quartiles {low:.3f} to {high:.3f}")
    if arguments.json:
        config = {
            "live": arguments.live,
            "hardware": arguments.hardware,
            "requests": arguments.requests,
            "pairs": arguments.pairs,
        }
        write_figures(Path(arguments.json), Figures("overload", tuple(results), config))
    kept = next(item.value for item in results if item.name == "kept/door")
    return 0 if kept >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
