#!/usr/bin/env python3
"""What tracing costs: pairs of runs on one cluster, whose requests are sampled or not, CPU of each service per request.

    python bench/tracing.py [--pairs 20] [--requests 40] [--json FILE]

The arms differ in the flag of their requests' `traceparent` alone and take turns, the first of a pair drawn by its number, on the same
processes: two clusters differ by more than spans cost. The worker's and the kvstore's rows hold their compute and their
writes, which vary by more too; gateway and scheduler tell. One request is 64 prompt tokens and 16 output tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from octavo.figures import Figures, figure_of, write_figures
from octavo.rpc.channels import open_channel
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc
from octavo_cli.up import start_detached, stop_cluster
from rich.console import Console

PROMPT_TOKENS, OUTPUT_TOKENS, CLIENTS = 64, 16, 4


def cpu_s(pid: int) -> float:
    """User and system seconds of a process, all threads."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():  # nanoseconds, where stat has hundredths of a second
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


async def run(address: str, requests: int, first: int, *, sampled: bool) -> float:
    """Wall seconds of `requests` requests by CLIENTS clients; prompts differ, so nothing is cached. Each has a trace of its own."""
    numbers = iter(range(first, first + requests))
    options = pb.Options(max_tokens=OUTPUT_TOKENS, ignore_eos=True)

    async def client_loop(stub: inference_pb2_grpc.InferenceServiceStub) -> None:
        for number in numbers:
            prompt = [1000 + (number * 131 + at * 7) % 40_000 for at in range(PROMPT_TOKENS)]
            asked = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling=pb.Sampling(), options=options)
            parent = f"00-{number + 1:032x}-{number + 1:016x}-0{int(sampled)}"
            async for _ in stub.Generate(asked, metadata=(("traceparent", parent),)):
                pass

    async with open_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        began_s = time.perf_counter()
        await asyncio.gather(*(client_loop(stub) for _ in range(CLIENTS)))
        return time.perf_counter() - began_s


def measure(pairs: int, requests: int, folder: Path) -> Figures:
    """Both arms, interleaved."""
    arms = {"traced": True, "untraced": False}
    flags = ["--deployment.run_dir", str(folder), "--gateway.grpc_listen", "127.0.0.1:0"]
    state = start_detached([*flags, "--gateway.http_listen", "127.0.0.1:0"], 1, 600.0, Console(stderr=True))
    try:
        address = state.urls["grpc"].removeprefix("grpc://")
        pids = {item.name: item.process.pid for item in state.services}
        extra_ms: dict[str, list[float]] = {service: [] for service in pids}
        wall_s: dict[str, list[float]] = {name: [] for name in arms}
        first = 0
        for sampled in arms.values():
            asyncio.run(run(address, 8, 10**6 + sampled * 8, sampled=sampled))
        for pair in range(pairs):
            used: dict[str, dict[str, float]] = {}
            for name in sorted(arms, reverse=bool(pair % 2)):
                before_s = {service: cpu_s(pid) for service, pid in pids.items()}
                wall_s[name].append(asyncio.run(run(address, requests, first, sampled=arms[name])))
                time.sleep(0.5)  # the exporter's last batch belongs to the run
                used[name] = {
                    service: (cpu_s(pid) - before_s[service]) * 1000 / requests for service, pid in pids.items()
                }
                first += requests
            for service in pids:
                extra_ms[service].append(used["traced"][service] - used["untraced"][service])
    finally:
        stop_cluster(folder)
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
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--json", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="octavo-bench-", ignore_cleanup_errors=True) as folder:
        figures = measure(given.pairs, given.requests, Path(folder))
    for item in figures.results:
        low, high = item.spread or (item.value, item.value)
        print(f"{item.name:<44} {item.value:8.3f} {item.unit:<6} {low:.3f} to {high:.3f}")
    if given.json:
        write_figures(Path(given.json), figures)


if __name__ == "__main__":
    main()
