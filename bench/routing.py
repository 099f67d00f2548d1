"""Prefix-aware routing over two workers, in the simulator: how much of what can be shared is, and how even the load stays.

    python bench/routing.py --json routing.json [--groups 20] [--requests 40] [--prefix-tokens 1024] [--workers 2]

Each group shares a beginning; its requests arrive mixed with the others', by a Poisson process at several shares of the
capacity, and all at once. Possible hits: every request of a group but the first finds the whole prefix. Load is a worker's step
time; its difference is that of the most and the least loaded, over their mean. The real core decides; seeds are fixed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

from octavo.figures import Figure, Figures, figure_of, write_figures
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellResult, CellRun
from octavo_scheduler.simulate.hardware import Hardware, given_models
from octavo_scheduler.simulate.workload import Row

TAIL_TOKENS = 64
OUTPUT_TOKENS = 64
SEEDS = range(3)
SHARES = (0.4, 0.8)


def rows_of(arguments: argparse.Namespace, rate: float, seed: int) -> list[Row]:
    """The groups' requests in random order; `rate` per second, 0: all at once."""
    draw = Random(seed)
    groups = [group for group in range(arguments.groups) for _ in range(arguments.requests)]
    draw.shuffle(groups)
    at_s, rows = 0.0, []
    for number, group in enumerate(groups):
        at_s += draw.expovariate(rate) if rate else 0.0
        pieces = ((f"group{group}", arguments.prefix_tokens), (f"question{number}", TAIL_TOKENS))
        rows.append(Row(int(at_s * 1e6), pieces, OUTPUT_TOKENS))
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


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default="", help="write the figures to this file")
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--requests", type=int, default=40, help="of each group")
    parser.add_argument("--prefix-tokens", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hardware", default="h200-8b", choices=sorted(given_models()))
    arguments = parser.parse_args(argv)
    hardware = replace(given_models()[arguments.hardware], host_blocks=0)
    full = capacity(arguments, hardware)
    rates = {f"load{share * 100:.0f}": share * full for share in SHARES} | {"at_once": 0.0}
    results: list[Figure] = []
    for name, rate in rates.items():
        measured = [run(arguments, hardware, rate, seed) for seed in SEEDS]
        results.append(figure_of(f"hit_share/{name}", [hits for hits, _difference, _result in measured], "ratio"))
        results.append(figure_of(f"load_difference/{name}", [item for _hits, item, _result in measured], "ratio"))
        spreads = [result.counters["prefix_spreads"] for _hits, _difference, result in measured]
        results.append(figure_of(f"prefix_spreads/{name}", spreads, "requests"))
    config = {key: value for key, value in vars(arguments).items() if key != "json"} | {
        "capacity_per_s": round(full, 1)
    }
    for item in results:
        low, high = item.spread or (item.value, item.value)
        print(f"{item.name:28} {item.value:8.3f} {item.unit:9} quartiles {low:.3f} to {high:.3f}, n {item.n}")
    if arguments.json:
        write_figures(Path(arguments.json), Figures("routing", tuple(results), config))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
