#!/usr/bin/env python3
"""What tracing costs: pairs of runs on one cluster per arm, traced and not, CPU of each service per request.

    python bench/tracing.py [--pairs 5] [--requests 60] [--json FILE]

The arms differ in `observability.trace_sample` alone (1 and 0) and take turns, the first of a pair drawn by its number; both
clusters run all the time, so that a pair differs in nothing else. The worker's and the kvstore's rows hold their compute and their
writes, which vary by more than spans cost; gateway and scheduler tell. One request is 64 prompt tokens and 16 output tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from octavo.client import AsyncClient
from octavo.figures import Figures, figure_of, write_figures
from octavo_cli.up import start_detached, stop_cluster
from rich.console import Console

PROMPT_TOKENS, OUTPUT_TOKENS, CLIENTS = 64, 16, 4


def cpu_s(pid: int) -> float:
    """User and system seconds of a process, all threads."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():  # nanoseconds, where stat has hundredths of a second
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


async def run(url: str, requests: int, first: int) -> float:
    """Wall seconds of `requests` requests by CLIENTS clients; prompts differ, so nothing is cached."""
    numbers = iter(range(first, first + requests))

    async def client_loop(client: AsyncClient) -> None:
        for number in numbers:
            prompt = [1000 + (number * 131 + at * 7) % 40_000 for at in range(PROMPT_TOKENS)]
            await client.generate(prompt, max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)

    async with AsyncClient(url) as client:
        began_s = time.perf_counter()
        await asyncio.gather(*(client_loop(client) for _ in range(CLIENTS)))
        return time.perf_counter() - began_s


def measure(pairs: int, requests: int, folder: Path) -> Figures:
    """Both arms, interleaved."""
    arms = {}
    for name, sample in (("traced", "1.0"), ("untraced", "0.0")):
        flags = ["--deployment.run_dir", str(folder / name), "--observability.trace_sample", sample]
        flags += ["--gateway.grpc_listen", "127.0.0.1:0", "--gateway.http_listen", "127.0.0.1:0"]
        arms[name] = start_detached(flags, 1, 600.0, Console(stderr=True))
    try:
        pids = {name: {item.name: item.process.pid for item in state.services} for name, state in arms.items()}
        services = list(pids["traced"])
        extra_ms: dict[str, list[float]] = {service: [] for service in services}
        wall_s: dict[str, list[float]] = {name: [] for name in arms}
        first = 0
        for name in arms:
            asyncio.run(run(arms[name].urls["grpc"], 8, 10**6))
        for pair in range(pairs):
            used: dict[str, dict[str, float]] = {}
            for name in sorted(arms, reverse=bool(pair % 2)):
                before_s = {service: cpu_s(pid) for service, pid in pids[name].items()}
                wall_s[name].append(asyncio.run(run(arms[name].urls["grpc"], requests, first)))
                time.sleep(0.5)  # the exporter's last batch belongs to the run
                used[name] = {
                    service: (cpu_s(pid) - before_s[service]) * 1000 / requests for service, pid in pids[name].items()
                }
            for service in services:
                extra_ms[service].append(used["traced"][service] - used["untraced"][service])
            first += requests
    finally:
        for name in arms:
            stop_cluster(folder / name)
    edges = [sum(pair) for pair in zip(extra_ms["gateway"], extra_ms["scheduler"], strict=True)]
    ratios = [on / off for on, off in zip(wall_s["traced"], wall_s["untraced"], strict=True)]
    results = (
        *(figure_of(f"extra_cpu_per_request/{name}", values, "ms") for name, values in extra_ms.items()),
        figure_of("extra_cpu_per_request/gateway_and_scheduler", edges, "ms"),
        figure_of("wall/traced_over_untraced", ratios, "ratio"),
    )
    return Figures("tracing", results, {"pairs": pairs, "requests": requests, "clients": CLIENTS})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--json", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="octavo-bench-", ignore_cleanup_errors=True) as folder:
        figures = measure(given.pairs, given.requests, Path(folder))
    for item in figures.results:
        print(f"{item.name:<44} {item.value:8.3f} {item.unit}")
    if given.json:
        write_figures(Path(given.json), figures)


if __name__ == "__main__":
    main()
