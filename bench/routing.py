"""Prefix-aware routing over two workers: how much of what can be shared is, and how even the load stays.

    python bench/routing.py --json routing.json [--groups 20] [--requests 40] [--prefix-tokens 1024] [--workers 2]
    python bench/routing.py --live [--streams 16] ...

Each group shares a beginning; its requests arrive mixed with the others', by a Poisson process at several shares of the
capacity, and all at once. Possible hits: every request of a group but the first finds the whole prefix. Load is a worker's step
time; its difference is that of the most and the least loaded, over their mean. The real core decides; seeds are fixed.

With --live the same requests go to a local cluster, once, from so many clients at a time; each worker's step time is summed out of the
scheduler's event log, and hits are those that its counters say. Exits with 1 when hits are below 0.9 or the difference is 0.2 or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster
from octavo.figures import Figure, Figures, figure_of, write_figures
from octavo_cli.bench.arrivals import ClosedLoop
from octavo_cli.bench.grpc_target import GrpcTarget
from octavo_cli.bench.serve import Plan, measure
from octavo_cli.bench.work import Piece, Session, Turn, Workload
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellResult, CellRun
from octavo_scheduler.simulate.hardware import Hardware, given_models
from octavo_scheduler.simulate.workload import Row

SEEDS = range(3)
SHARES = (0.4, 0.8)
LEAST_HITS, MOST_DIFFERENCE = 0.9, 0.2


def rows_of(arguments: argparse.Namespace, rate: float, seed: int) -> list[Row]:
    """The groups' requests in random order; `rate` per second, 0: all at once."""
    draw = Random(seed)
    groups = [group for group in range(arguments.groups) for _ in range(arguments.requests)]
    draw.shuffle(groups)
    at_s, rows = 0.0, []
    for number, group in enumerate(groups):
        at_s += draw.expovariate(rate) if rate else 0.0
        pieces = ((f"group{group}", arguments.prefix_tokens), (f"question{number}", arguments.tail_tokens))
        rows.append(Row(int(at_s * 1e6), pieces, arguments.output_tokens))
    return rows


def run(arguments: argparse.Namespace, hardware: Hardware, rate: float, seed: int) -> tuple[float, float, CellResult]:
    """(hit share of what is possible, load difference, the cell's result)."""
    policy = Policy(max_num_seqs=64, max_waiting_requests=10**6, max_waiting_prompt_tokens=10**9)
    rows = list(enumerate(rows_of(arguments, rate, seed)))
    result = CellRun(policy, hardware, arguments.workers, rows, 1_000_000).run()
    possible = arguments.groups * (arguments.requests - 1) * arguments.prefix_tokens
    if any(tally.outcome != "finished" for tally in result.tallies):
        raise RuntimeError("a request did not finish")
    hits = sum(min(tally.cached_tokens, arguments.prefix_tokens) for tally in result.tallies)
    loads = result.worker_busy_us
    return hits / possible, (max(loads) - min(loads)) / (sum(loads) / len(loads)), result


def capacity(arguments: argparse.Namespace, hardware: Hardware) -> float:
    """Requests per second when all are there at once."""
    _hits, _difference, result = run(arguments, hardware, 0.0, 99)
    return len(result.tallies) / (result.ended_us / 1e6)


def in_simulated_time(arguments: argparse.Namespace) -> list[Figure]:
    hardware = replace(given_models()[arguments.hardware], host_blocks=0)
    full = capacity(arguments, hardware)
    rates = {f"load{share * 100:.0f}": share * full for share in SHARES} | {"at_once": 0.0}
    results = [Figure("capacity", full, "requests/s")]
    for name, rate in rates.items():
        measured = [run(arguments, hardware, rate, seed) for seed in SEEDS]
        results.append(figure_of(f"hit_share/{name}", [hits for hits, _difference, _result in measured], "ratio"))
        results.append(figure_of(f"load_difference/{name}", [item for _hits, item, _result in measured], "ratio"))
        spreads = [result.counters["prefix_spreads"] for _hits, _difference, result in measured]
        results.append(figure_of(f"prefix_spreads/{name}", spreads, "requests"))
    return results


# -- live --------------------------------------------------------------------------------------------------------------


def workload_of(arguments: argparse.Namespace) -> Workload:
    """The rows of the simulated run, all at once."""
    rows = rows_of(arguments, 0.0, SEEDS[0])
    sessions = [
        Session(f"s{number}", (Turn(arguments.output_tokens, tuple(Piece(*piece) for piece in row.pieces)),))
        for number, row in enumerate(rows)
    ]
    return Workload("routing", tuple(sessions))


def busy_us(log: Path) -> dict[int, int]:
    """Step time of each worker, by epoch, out of an event log; an idle one has 0."""
    busy: Counter[int] = Counter()
    with log.open(encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            entry = json.loads(line)
            if entry[0] == "event" and entry[1][""] in ("Reported", "WorkerJoined"):
                busy[entry[1]["epoch"]] += entry[1].get("wall_us", 0)
    return dict(busy)


async def lived(folder: Path, log: Path, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """(hit tokens, prefixes that spread, requests per second)."""
    cluster = Cluster(
        folder,
        workers=arguments.workers,
        kvstore=False,
        settings={"engine.threads": 1, "scheduler.counterfactual_share": 0.0},
        per_service={"scheduler": {"scheduler.event_log": str(log)}},
    )
    plan = Plan(workload_of(arguments), ClosedLoop(arguments.streams), warmup_requests=0)
    try:
        await cluster.up()
        async with GrpcTarget(f"grpc://{cluster.grpc_address}") as target:
            ran = (await measure(target, plan)).runs["cold"]
        counters = (await cluster.status()).counters
    finally:
        cluster.down()
    failed = sum(sample.outcome != "ok" for sample in ran.samples)
    if failed:
        raise SystemExit(f"{failed} of {len(ran.samples)} requests did not finish")
    return counters["prefix_hit_tokens"], counters["prefix_spreads"], len(ran.samples) / ran.wall_s


def live(arguments: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="octavo-routing-") as folder:
        log = Path(folder) / "events.jsonl"
        hit_tokens, spreads, rate = asyncio.run(lived(Path(folder) / "run", log, arguments))
        loads = list(busy_us(log).values())
    possible = arguments.groups * (arguments.requests - 1) * arguments.prefix_tokens
    count = arguments.groups * arguments.requests
    return [
        Figure("hit_share/live", hit_tokens / possible, "ratio", count),
        Figure("load_difference/live", (max(loads) - min(loads)) / (sum(loads) / len(loads)), "ratio", len(loads)),
        Figure("prefix_spreads/live", spreads, "requests", count),
        Figure("request_rate/live", rate, "requests/s", count),
    ]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true", help="on a local cluster instead of simulated time")
    parser.add_argument("--streams", type=int, default=16, help="live: clients, each sending one request after another")
    parser.add_argument("--json", default="", help="write the figures to this file")
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--requests", type=int, default=40, help="of each group")
    parser.add_argument("--prefix-tokens", type=int, default=1024)
    parser.add_argument("--tail-tokens", type=int, default=64, help="of each request's own")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hardware", default="h200-8b", choices=sorted(given_models()), help="of simulated workers")
    arguments = parser.parse_args(argv)
    results = live(arguments) if arguments.live else in_simulated_time(arguments)
    for item in results:
        low, high = item.spread or (item.value, item.value)
        print(f"{item.name:28} {item.value:8.3f} {item.unit:9} quartiles {low:.3f} to {high:.3f}, n {item.n}")
    if arguments.json:
        config = {key: value for key, value in vars(arguments).items() if key != "json"}
        write_figures(Path(arguments.json), Figures("routing", tuple(results), config))
    shared = min(item.value for item in results if item.name.startswith("hit_share"))
    apart = max(item.value for item in results if item.name.startswith("load_difference"))
    return 0 if shared >= LEAST_HITS and apart < MOST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
