#!/usr/bin/env python3
"""How punctual the load generator is: 200 requests/s over HTTP to a server that computes nothing, in a process of its own.

    python bench/generator.py [--runs 3] [--seconds 10] [--json FILE]

`send_lag`: scheduled arrival to the sending. `sleep_lag`: how late a process that only sleeps wakes in the same seconds: the machine's part.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path

from octavo.figures import Figure, Figures, figure_of, write_figures
from octavo.rpc.wakeups import shorten_slices
from octavo_cli.bench.arrivals import OpenLoop
from octavo_cli.bench.http_target import HttpTarget
from octavo_cli.bench.serve import Plan, measure
from octavo_cli.bench.workloads import Shape, make_workload
from octavo_cli.commands.bench_serve import WAKEUP_SLICE_US

RATE_PER_S, PROMPT_TOKENS, OUTPUT_TOKENS = 200.0, 128, 4
SERVER = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "tests" / "cli" / "bench")!r})
from null_server import NullServer
async def main():
    server = NullServer()
    async with server.running():
        print(server.url, flush=True)
        await asyncio.sleep(86400)
asyncio.run(main())
"""


async def sleep_lags_ms(seconds: float) -> list[float]:
    """How late each of RATE_PER_S sleeps a second ended, ascending."""
    began_s, late = time.perf_counter(), []
    for number in range(int(seconds * RATE_PER_S)):
        at_s = number / RATE_PER_S
        await asyncio.sleep(max(0.0, at_s - (time.perf_counter() - began_s)))
        late.append((time.perf_counter() - began_s - at_s) * 1e3)
    return sorted(late)


async def one_run(url: str, seconds: float) -> Figures:
    """A Poisson load against the null server."""
    requests = int(RATE_PER_S * seconds * 1.2)
    workload = make_workload("random", Shape(requests=requests, prompt_tokens=PROMPT_TOKENS, max_tokens=OUTPUT_TOKENS))
    async with HttpTarget(url) as target:
        plan = Plan(workload, OpenLoop("poisson", RATE_PER_S, seconds), warmup_requests=16)
        return (await measure(target, plan)).figures


def measured(runs: int, seconds: float) -> list[Figure]:
    """Every run with a sleeper beside it."""
    names = ("send_lag_p50", "send_lag_p99", "client_cpu", "errors")
    found: dict[str, list[float]] = {name: [] for name in (*names, "sleep_lag_p50", "sleep_lag_p99")}
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            for _ in range(runs):
                beside = [sys.executable, __file__, "--sleeper", str(seconds)]
                with subprocess.Popen(beside, stdout=subprocess.PIPE, text=True) as sleeper:
                    figures = asyncio.run(one_run(url, seconds))
                    late = sleeper.communicate()[0].split()
                for name in names:
                    found[name].append(figures.value(name))
                found["sleep_lag_p50"].append(float(late[0]))
                found["sleep_lag_p99"].append(float(late[1]))
        finally:
            server.kill()
    units = {"client_cpu": "cores", "errors": "requests"}
    return [figure_of(name, values, units.get(name, "ms")) for name, values in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", default="")
    parser.add_argument("--sleeper", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    shorten_slices(WAKEUP_SLICE_US)
    if given.sleeper:
        late = asyncio.run(sleep_lags_ms(given.sleeper))
        print(late[len(late) // 2], late[int(0.99 * len(late))])
        return
    results = measured(given.runs, given.seconds)
    for item in results:
        print(f"{item.name:<16} {item.value:8.3f} {item.unit}")
    if given.json:
        write_figures(Path(given.json), Figures("generator", tuple(results), {"rate_per_s": RATE_PER_S}))


if __name__ == "__main__":
    main()
