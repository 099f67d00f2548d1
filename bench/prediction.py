"""How far the predicted time to the first token is off, below capacity: loads x policies.

    python bench/prediction.py [--hardware h200-8b] [--requests 900] [--json FILE]     in simulated time
    python bench/prediction.py --live [--requests 80] [--json FILE]                    on a local cluster of one worker

Poisson arrivals at each share of the capacity (bench/overload.py's, or, live, that of 8 streams), prompts and outputs lognormal, nothing
shared. Every request is forecast at the door (its class would refuse what is predicted to be late; nothing is), and the
core holds each forecast against what comes: the error is |predicted - observed| / observed, from submission to first token. Live, the
loads take turns on one cluster per policy, and the errors come out of its event log. Exits with 1 when a p90 is above 20%.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster
from octavo.figures import Figure, Figures, quantile, write_figures
from octavo_cli.bench.arrivals import ClosedLoop, OpenLoop
from octavo_cli.bench.grpc_target import GrpcTarget
from octavo_cli.bench.serve import Plan as LoadPlan
from octavo_cli.bench.serve import measure
from octavo_cli.bench.workloads import Shape, make_workload
from octavo_scheduler.core import Core
from octavo_scheduler.event_log import replay
from octavo_scheduler.limits.accuracy import Errors
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellRun
from octavo_scheduler.simulate.hardware import Hardware, hardware_from
from overload import LIVE_OUTPUT_TOKENS, LIVE_PROMPT_TOKENS, SPREAD, arrivals, capacity, classes

SHARES = (0.3, 0.7)
POLICIES = ("fcfs", "slo-fair")
WANTED = 0.2
STREAMS = 8


class Recorder(Errors):
    """Keeps every prediction that the core holds against what came, with when it came."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self._core = core
        self.seen: list[tuple[int, float, float]] = []

    def observe(self, predicted: float, observed: float) -> float:
        self.seen.append((self._core.cell.now_us, predicted, observed))
        return super().observe(predicted, observed)


def named(name: str, seen: Sequence[tuple[float, float]]) -> list[Figure]:
    """Figures of pairs (predicted, observed)."""
    errors = [abs(predicted - observed) / observed for predicted, observed in seen]
    bias = [predicted / observed for predicted, observed in seen]
    observed_ms = [observed / 1000 for _predicted, observed in seen]
    return [
        Figure(f"ttft_prediction_error_p50/{name}", quantile(errors, 0.5), "share", len(errors)),
        Figure(f"ttft_prediction_error_p90/{name}", quantile(errors, 0.9), "share", len(errors)),
        Figure(f"ttft_predicted_over_observed_p50/{name}", quantile(bias, 0.5), "ratio", len(errors)),
        Figure(f"ttft_at_core_p50/{name}", quantile(observed_ms, 0.5), "ms", len(errors)),
    ]


# -- simulated ---------------------------------------------------------------------------------------------------------


def in_simulated_time(hardware: Hardware, requests: int) -> list[Figure]:
    most = capacity(hardware, requests, 1)
    figures = [Figure("capacity", most, "requests/s")]
    for order in POLICIES:
        policy = Policy(order=order, max_num_seqs=hardware.max_num_seqs, slo_classes=classes("reject"))
        for share in SHARES:
            run = CellRun(policy, hardware, 1, list(enumerate(arrivals(share * most, requests, 7))), 1_000_000)
            recorder = run.core.cell.errors["ttft"] = Recorder(run.core)
            run.run()
            figures += named(f"{order}/load{share * 100:.0f}", [(said, came) for _at_us, said, came in recorder.seen])
    return figures


# -- live --------------------------------------------------------------------------------------------------------------


async def lived(folder: Path, log: Path, order: str, requests: int, rounds: int) -> dict[float, list[tuple[int, int]]]:
    """Share of the capacity -> when its runs began and ended, on the scheduler's clock (both are CLOCK_MONOTONIC)."""
    cluster = Cluster(
        folder,
        kvstore=False,
        settings={"engine.threads": 1, "scheduler.policy": order, "scheduler.slo_classes": classes("reject")},
        per_service={"scheduler": {"scheduler.event_log": str(log)}},
    )

    async def run(loop: OpenLoop | ClosedLoop, count: int, seed: int) -> float:
        shape = Shape(count, LIVE_PROMPT_TOKENS, LIVE_OUTPUT_TOKENS, SPREAD, seed=seed)
        plan = LoadPlan(make_workload("random", shape), loop, seed=seed, warmup_requests=0)
        async with GrpcTarget(f"grpc://{cluster.grpc_address}") as target:
            ran = (await measure(target, plan)).runs["cold"]
        return len(ran.samples) / ran.wall_s

    windows: dict[float, list[tuple[int, int]]] = {share: [] for share in SHARES}
    try:
        await cluster.up()
        await run(OpenLoop("poisson", 2.0), 8, 1)  # lengths and costs become known
        most = await run(ClosedLoop(STREAMS), 4 * STREAMS, 2)
        for number in range(rounds):
            for share in SHARES:
                began_us = time.monotonic_ns() // 1000
                await run(OpenLoop("poisson", share * most), requests, 100 + number)
                windows[share].append((began_us, time.monotonic_ns() // 1000))
    finally:
        cluster.down()
    return windows


def live(folder: Path, requests: int, rounds: int) -> list[Figure]:
    figures: list[Figure] = []
    for order in POLICIES:
        log = folder / f"{order}.jsonl"
        windows = asyncio.run(lived(folder / order, log, order, requests, rounds))
        recorders: list[Recorder] = []

        def watch(core: Core, kept: list[Recorder] = recorders) -> None:
            recorder = core.cell.errors["ttft"] = Recorder(core)
            kept.append(recorder)

        with log.open(encoding="utf-8") as lines:
            played = replay(lines, watch)
        if played.difference:
            raise SystemExit(f"the log does not replay: {played.difference[:500]}")
        for share, runs in windows.items():
            seen = [
                (said, came)
                for at_us, said, came in recorders[0].seen
                if any(low <= at_us <= high for low, high in runs)
            ]
            figures += named(f"{order}/load{share * 100:.0f}", seen)
    return figures


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true", help="on a local cluster instead of simulated time")
    parser.add_argument("--hardware", default="h200-8b", help="of the simulated worker")
    parser.add_argument("--requests", type=int, default=0, help="of each run; 0: 900 simulated, 40 live")
    parser.add_argument("--rounds", type=int, default=2, help="live: runs of each load")
    parser.add_argument("--keep", type=Path, help="live: keep the event logs in this folder")
    parser.add_argument("--json", default="", help="write the figures to this file")
    arguments = parser.parse_args(argv)
    if arguments.live:
        with tempfile.TemporaryDirectory(prefix="octavo-prediction-") as folder:
            results = live(arguments.keep or Path(folder), arguments.requests or 40, arguments.rounds)
    else:
        results = in_simulated_time(hardware_from(arguments.hardware), arguments.requests or 900)
    for item in results:
        print(f"{item.name:52} {item.value:10.3f} {item.unit:10} n {item.n}")
    if arguments.json:
        config = {name: value for name, value in vars(arguments).items() if name not in ("json", "keep")}
        write_figures(Path(arguments.json), Figures("prediction", tuple(results), config))
    worst = max(item.value for item in results if "error_p90" in item.name)
    return 0 if worst <= WANTED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
