"""How well the simulator predicts a live cluster on this machine.

    python bench/simulator.py --json simulator.json [--pairs 5] [--requests 60]

One cluster of one worker, and pairs in turn: a trace to calibrate on, then another to compare on (Poisson and bursts by
turns, at `--share` of the measured capacity). Each comparison is simulated with the cost model fitted to the trace before it, and
in hindsight with the one fitted to the comparison itself: what is left then is the simulator's own error, without the
machine's drift between the two. The log of the whole run is then replayed through a core, which must give the same orders.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster
from octavo.figures import Figure, Figures, figure_of, quantile, write_figures
from octavo_cli.bench.arrivals import ClosedLoop, OpenLoop, arrival_times
from octavo_cli.bench.grpc_target import GrpcTarget
from octavo_cli.bench.sample import Run
from octavo_cli.bench.serve import Plan as LoadPlan
from octavo_cli.bench.serve import measure
from octavo_cli.bench.work import Workload
from octavo_cli.bench.workloads import Shape, make_workload
from octavo_cli.simulate.rows import rows_of
from octavo_scheduler.event_log import from_plain, replay
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.calibrate import hardware_of_log, observation, relative_errors
from octavo_scheduler.simulate.fleet_run import Plan, run_fleet
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.summary import gap_quantile
from octavo_scheduler.simulate.workload import row_from

PROMPT_TOKENS, OUTPUT_TOKENS, SPREAD = 96, 32, 0.5
SLO_TTFT_MS, SLO_ITL_P99_MS = 1000.0, 200.0
CAPACITY_STREAMS = 16


@dataclass(frozen=True, slots=True)
class Trace:
    """One open loop."""

    workload: Workload
    loop: OpenLoop
    seed: int

    def times_s(self) -> list[float]:
        return arrival_times(self.loop, len(self.workload.sessions), [None] * len(self.workload.sessions), self.seed)


@dataclass(slots=True)
class Lived:
    """A trace that was run live, and when, on the scheduler's clock (both are CLOCK_MONOTONIC)."""

    trace: Trace
    run: Run
    began_us: int
    ended_us: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What is compared; times in milliseconds, goodput in requests/s."""

    ttft_p50: float
    itl_p50: float
    goodput: float


def trace_of(seed: int, requests: int, rate: float, bursts: bool) -> Trace:
    shape = Shape(
        requests=requests,
        prompt_tokens=PROMPT_TOKENS,
        max_tokens=OUTPUT_TOKENS,
        length_spread=SPREAD,
        seed=seed,
    )
    return Trace(make_workload("random", shape), OpenLoop("gamma" if bursts else "poisson", rate), seed)


async def live(target: GrpcTarget, trace: Trace) -> Lived:
    began_us = time.monotonic_ns() // 1000
    plan = LoadPlan(trace.workload, trace.loop, seed=trace.seed, warmup_requests=0)
    measured = await measure(target, plan)
    return Lived(trace, measured.runs["cold"], began_us, time.monotonic_ns() // 1000)


async def capacity(target: GrpcTarget) -> float:
    """Requests per second of a closed loop of 16."""
    trace = trace_of(7, 2 * CAPACITY_STREAMS, 1.0, False)
    measured = await measure(target, LoadPlan(trace.workload, ClosedLoop(CAPACITY_STREAMS), seed=7))
    run = measured.runs["cold"]
    return len(run.samples) / run.wall_s


async def run_live(
    folder: Path, log: Path, pairs: int, requests: int, share: float
) -> tuple[float, list[tuple[Lived, Lived]]]:
    cluster = Cluster(
        folder,
        kvstore=False,
        settings={"engine.threads": 1},  # client, gateway and scheduler have the other cores
        per_service={"scheduler": {"scheduler.event_log": str(log)}},
    )
    try:
        await cluster.up()
        async with GrpcTarget(f"grpc://{cluster.grpc_address}") as target:
            most = await capacity(target)
            rate = share * most
            lived = []
            for pair in range(pairs):
                bursts = pair % 2 == 1
                first = await live(target, trace_of(100 + pair, max(20, requests * 2 // 3), rate, bursts))
                second = await live(target, trace_of(200 + pair, requests, rate, bursts))
                lived.append((first, second))
    finally:
        cluster.down()
    return most, lived


def window(lines: list[str], lived: Lived) -> list[str]:
    """The log's header, every worker's Hello, and what was between the run's begin and end."""
    kept = lines[:1]
    for line in lines[1:]:
        entry = json.loads(line)
        if entry[0] == "event" and (
            entry[1][""] == "WorkerJoined" or lived.began_us <= entry[1]["now_us"] <= lived.ended_us
        ):
            kept.append(line)
    return kept


def core_ttft_ms(lines: list[str]) -> list[float]:
    """Submit to first token, both at the core, out of a log."""
    submitted: dict[str, int] = {}
    request_of: dict[int, str] = {}
    found = []
    for line in lines[1:]:
        _kind, event, orders = json.loads(line)
        if event[""] == "Submitted":
            submitted[event["request_id"]] = event["now_us"]
        for _epoch, batch in orders:
            request_of |= {order["seq"]: order["request_id"] for order in batch if order[""] == "Admit"}
        for first in event.get("first_tokens", []):
            name = request_of.get(first["seq"], "")
            if name in submitted:
                found.append((event["now_us"] - submitted[name]) / 1000)
    return found


def fitted(lines: list[str], lived: Lived) -> Hardware:
    """The worker of this run, with the way between client and core that the client saw."""
    kept = window(lines, lived)
    hardware = hardware_of_log(kept, "live")
    client_ms = statistics.median(sample.ttft_ms for sample in lived.run.samples if sample.ttft_ms is not None)
    edge_us = max(0, int((client_ms - statistics.median(core_ttft_ms(kept))) * 1000))
    return replace(hardware, front_us=edge_us // 2, back_us=edge_us - edge_us // 2)


def seen_live(run: Run) -> Seen:
    good = 0
    for sample in run.samples:
        whole = sample.outcome == "ok" and sample.ttft_ms is not None and sample.ttft_ms <= SLO_TTFT_MS
        good += bool(whole and (not sample.gaps_ms or quantile(sample.gaps_ms, 0.99) <= SLO_ITL_P99_MS))
    gaps = [gap for sample in run.samples for gap in sample.gaps_ms]
    ttft = [sample.ttft_ms for sample in run.samples if sample.ttft_ms is not None]
    return Seen(statistics.median(ttft), statistics.median(gaps), good / run.wall_s)


def seen_simulated(hardware: Hardware, policy: Policy, trace: Trace) -> Seen:
    given = rows_of(trace.workload, trace.times_s())
    rows = [row_from(number, row) for number, row in enumerate(given)]
    (result,) = run_fleet(Plan(hardware, policy, 1), rows)
    tallies = result.tallies
    good = sum(tally.meets(SLO_TTFT_MS, SLO_ITL_P99_MS) for tally in tallies)
    first_us = min(tally.submitted_us for tally in tallies)
    wall_s = max(tally.submitted_us + tally.e2e_us for tally in tallies) - first_us
    ttft = statistics.median(tally.ttft_us for tally in tallies) / 1000
    return Seen(ttft, gap_quantile(result.gaps, 0.5), good / (wall_s / 1e6))


def drift(lines: list[str], lived: Lived, hardware: Hardware) -> float:
    """What the steps of a run took over what the cost model says: 1 while the machine is as it was."""
    steps = [
        observation(report)
        for line in window(lines, lived)[1:]
        if (event := json.loads(line)[1])[""] == "Reported" and (report := from_plain(event)).steps
    ]
    return 1 / (1 + statistics.median(relative_errors(hardware, steps)))


def compare(lines: list[str], lived: list[tuple[Lived, Lived]]) -> tuple[list[Figure], list[dict[str, Any]]]:
    policy = Policy(**json.loads(lines[0])["policy"])
    values: dict[str, list[float]] = {}
    models = []
    for first, second in lived:
        hardware = fitted(lines, first)
        models.append({name: getattr(hardware, name) for name in hardware.__slots__})
        real, ahead = seen_live(second.run), seen_simulated(hardware, policy, second.trace)
        hindsight = seen_simulated(fitted(lines, second), policy, second.trace)
        values.setdefault("drift/step_over_predicted", []).append(drift(lines, second, hardware))
        print(f"{second.trace.loop.kind:8} live {real}\n   simulated ahead {ahead}\n      in hindsight {hindsight}")
        for name in Seen.__slots__:
            was = getattr(real, name)
            values.setdefault(f"{name}/live", []).append(was)
            for word, seen in (("simulated", ahead), ("hindsight", hindsight)):
                values.setdefault(f"{name}/{word}", []).append(getattr(seen, name))
                if was:
                    values.setdefault(f"{name}/{word}_over_live", []).append(getattr(seen, name) / was)
    units = {"ttft_p50": "ms", "itl_p50": "ms", "goodput": "requests/s", "drift": "ratio"}
    return [
        figure_of(name, found, "ratio" if name.endswith("over_live") else units[name.partition("/")[0]])
        for name, found in sorted(values.items())
    ], models


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="", help="write the figures to this file")
    parser.add_argument("--log", default="", help="keep the event log here")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.7, help="of the capacity of a closed loop of 16")
    parser.add_argument("--requests", type=int, default=60, help="of each comparison")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="octavo-simulator-") as folder:
        log = Path(arguments.log or Path(folder) / "events.jsonl").absolute()
        most, lived = asyncio.run(
            run_live(Path(folder) / "run", log, arguments.pairs, arguments.requests, arguments.share)
        )
        lines = log.read_text(encoding="utf-8").splitlines()
    results, models = compare(lines, lived)
    played = replay(lines)
    results += [
        Figure("capacity/streams16", most, "requests/s"),
        Figure("replay/orders", played.orders, "orders"),
        Figure("replay/events", played.events, "events"),
    ]
    for item in results:
        low, high = item.spread or (item.value, item.value)
        print(f"{item.name:32} {item.value:10.3f} {item.unit:12} quartiles {low:.3f} to {high:.3f}")
    print("replay: every order is byte-equal" if not played.difference else f"replay: {played.difference[:500]}")
    if arguments.json:
        config = {"pairs": arguments.pairs, "requests": arguments.requests, "share": arguments.share, "models": models}
        write_figures(Path(arguments.json), Figures("simulator", tuple(results), config))
    return 1 if played.difference else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
