"""Two workers on this machine, aggregated, hybrid and one of each role: the same loads, one cluster after another.

    python bench/roles.py [--json FILE] [--requests 24] [--rate 1.5]

Short and long prompts, open loop (Poisson). The clusters run one after another, not in turn: compare what differs by more than
the quartiles. `octavo simulate --roles` compares larger cells.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster
from octavo.figures import Figure, Figures, figure_of, quantile, write_figures
from octavo_cli.bench.arrivals import OpenLoop
from octavo_cli.bench.grpc_target import GrpcTarget
from octavo_cli.bench.sample import Run
from octavo_cli.bench.serve import Plan, measure
from octavo_cli.bench.workloads import Shape, make_workload

SETUPS = {"aggregated": ("both", "both"), "hybrid": ("prefill", "both"), "disaggregated": ("prefill", "decode")}
PROMPTS = {"short": 64, "long": 512}
OUTPUT_TOKENS = 32
SEED = 5


async def run_setup(folder: Path, roles: Sequence[str], requests: int, rate: float) -> dict[str, tuple[Run, float]]:
    """Per length of prompts: the run, and how many of it were handed over."""
    per_service = {f"gpuworker{index}": {"gpuworker.role": role} for index, role in enumerate(roles)}
    cluster = Cluster(folder, workers=2, settings={"engine.threads": 1}, per_service=per_service)
    runs: dict[str, tuple[Run, float]] = {}
    try:
        await cluster.up()
        async with GrpcTarget(f"grpc://{cluster.grpc_address}") as target:
            for number, (name, tokens) in enumerate(PROMPTS.items()):
                shape = Shape(requests, tokens, OUTPUT_TOKENS, length_spread=0.3, seed=SEED + number)
                load = Plan(
                    make_workload("random", shape), OpenLoop("poisson", rate, 0.0), seed=SEED, warmup_requests=1
                )
                before = (await cluster.status()).counters["handoffs_done"]
                measured = await measure(target, load)
                after = (await cluster.status()).counters["handoffs_done"]
                runs[name] = measured.runs["cold"], after - before
    finally:
        cluster.down()
    return runs


def figures_of(name: str, run: Run, handed: float) -> list[Figure]:
    """TTFT, worst gap and goodput (1 s, 200 ms) of one run."""
    ok = [sample for sample in run.samples if sample.outcome == "ok" and sample.ttft_ms is not None]
    ttft = [sample.ttft_ms for sample in ok if sample.ttft_ms is not None]
    p99 = [quantile(sample.gaps_ms, 0.99) for sample in ok if sample.gaps_ms]
    good = sum(
        first <= 1000 and (not sample.gaps_ms or quantile(sample.gaps_ms, 0.99) <= 200)
        for first, sample in zip(ttft, ok, strict=True)
    )
    return [
        figure_of(f"ttft_p50/{name}", ttft, "ms", 0.5),
        figure_of(f"itl_p99_of_request_p50/{name}", p99, "ms", 0.5),
        Figure(f"goodput/{name}", good / run.wall_s, "requests/s", len(run.samples)),
        Figure(f"handed_over/{name}", handed, "requests", len(run.samples)),
    ]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rate", type=float, default=1.5)
    given = parser.parse_args(argv)
    figures: list[Figure] = []
    print(f"{'':22}{'TTFT p50':>10}{'ITL p99':>10}{'goodput/s':>11}{'handed':>8}")
    for setup, roles in SETUPS.items():
        with tempfile.TemporaryDirectory() as folder:
            runs = asyncio.run(run_setup(Path(folder) / "run", roles, given.requests, given.rate))
        for length, (run, handed) in runs.items():
            found = figures_of(f"{setup}/{length}", run, handed)
            figures += found
            ttft, itl, good, over = (item.value for item in found)
            print(f"{setup + ' ' + length:22}{ttft:8.0f}ms{itl:8.0f}ms{good:11.2f}{over:8.0f}", flush=True)
    if given.json:
        write_figures(given.json, Figures("roles", tuple(figures), {"requests": given.requests, "rate": given.rate}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
