#!/usr/bin/env python3
"""What tracing costs: pairs of runs on one cluster, whose requests are sampled or not, CPU of each service per request.

    python bench/tracing.py [--pairs 40] [--wall-pairs 10] [--json FILE]

The arms differ in the flag of their requests' `traceparent` alone and take turns, the first of a pair drawn by its number, on the same
processes: two clusters differ by more than spans cost. CPU is taken from requests of 2 output tokens, which have the spans of any plain
request and little else that varies; wall time from those of 16. Gateway and scheduler tell: the worker's and the kvstore's rows hold
their compute and their writes. The interval is that of the median over the pairs, 95%.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path

from octavo.figures import Figure, Figures, write_figures
from octavo.rpc.channels import open_channel
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc
from octavo_cli.bench.compare import bootstrap
from octavo_cli.own_cluster import own_cluster
from rich.console import Console

PROMPT_TOKENS, CLIENTS = 64, 4
CPU_TOKENS, CPU_REQUESTS = 2, 24
WALL_TOKENS, WALL_REQUESTS = 16, 40
EXPORT_S = 0.3
"""The exporters' last batch belongs to the run: they wake every 200 ms."""
ARMS = {"traced": True, "untraced": False}


def cpu_s(pid: int) -> float:
    """User and system seconds of a process, all threads."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():  # nanoseconds, where stat has hundredths of a second
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


class Load:
    """Requests of a running cluster; prompts differ, so nothing is cached. Each request has a trace of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._next = 0

    async def run(self, requests: int, output_tokens: int, *, sampled: bool) -> float:
        """Wall seconds of so many requests by CLIENTS clients."""
        numbers = iter(range(self._next, self._next + requests))
        self._next += requests
        options = pb.Options(max_tokens=output_tokens, ignore_eos=True)

        async def client_loop(stub: inference_pb2_grpc.InferenceServiceStub) -> None:
            for number in numbers:
                prompt = [1000 + (number * 131 + at * 7) % 40_000 for at in range(PROMPT_TOKENS)]
                asked = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling=pb.Sampling(), options=options)
                parent = f"00-{number + 1:032x}-{number + 1:016x}-0{int(sampled)}"
                async for _ in stub.Generate(asked, metadata=(("traceparent", parent),)):
                    pass

        async with open_channel(self._address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            began_s = time.perf_counter()
            await asyncio.gather(*(client_loop(stub) for _ in range(CLIENTS)))
            return time.perf_counter() - began_s


def cpu_pairs(load: Load, pids: dict[str, int], pairs: int) -> dict[str, list[float]]:
    """Milliseconds per request that a traced one takes more, by service, one value per pair."""
    extra_ms: dict[str, list[float]] = {service: [] for service in pids}
    for pair in range(pairs):
        used_ms: dict[str, dict[str, float]] = {}
        for name in sorted(ARMS, reverse=bool(pair % 2)):
            before_s = {service: cpu_s(pid) for service, pid in pids.items()}
            asyncio.run(load.run(CPU_REQUESTS, CPU_TOKENS, sampled=ARMS[name]))
            time.sleep(EXPORT_S)
            used_ms[name] = {
                service: (cpu_s(pid) - before_s[service]) * 1000 / CPU_REQUESTS for service, pid in pids.items()
            }
        for service in pids:
            extra_ms[service].append(used_ms["traced"][service] - used_ms["untraced"][service])
    return extra_ms


def wall_pairs(load: Load, pairs: int) -> list[float]:
    """Wall time of a traced run over that of an untraced one."""
    ratios = []
    for pair in range(pairs):
        took_s = {}
        for name in sorted(ARMS, reverse=bool(pair % 2)):
            took_s[name] = asyncio.run(load.run(WALL_REQUESTS, WALL_TOKENS, sampled=ARMS[name]))
            time.sleep(EXPORT_S)
        ratios.append(took_s["traced"] / took_s["untraced"])
    return ratios


def measure(pairs: int, with_wall: int) -> Figures:
    """Both arms, interleaved."""
    with own_cluster(console=Console(stderr=True)) as cluster:
        load = Load(cluster.state.urls["grpc"].removeprefix("grpc://"))
        pids = {item.name: item.process.pid for item in cluster.state.services}
        for sampled in ARMS.values():
            asyncio.run(load.run(2 * CPU_REQUESTS, CPU_TOKENS, sampled=sampled))
        extra_ms = cpu_pairs(load, pids, pairs)
        ratios = wall_pairs(load, with_wall)
    edges = [sum(pair) for pair in zip(extra_ms["gateway"], extra_ms["scheduler"], strict=True)]
    rows = {f"extra_cpu_per_request/{name}": (values, "ms") for name, values in extra_ms.items()}
    rows["extra_cpu_per_request/gateway_and_scheduler"] = (edges, "ms")
    rows["wall/traced_over_untraced"] = (ratios, "ratio")
    results = [
        Figure(name, statistics.median(values), unit, len(values), bootstrap(values, 0))
        for name, (values, unit) in rows.items()
    ]
    config = {"pairs": pairs, "wall_pairs": with_wall, "clients": CLIENTS, "spread": "95% interval of the median"}
    return Figures("tracing", tuple(results), config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40, help="of runs whose CPU is taken")
    parser.add_argument("--wall-pairs", type=int, default=10, help="of runs whose wall time is taken")
    parser.add_argument("--json", default="")
    given = parser.parse_args()
    figures = measure(given.pairs, given.wall_pairs)
    for item in figures.results:
        low, high = item.spread or (item.value, item.value)
        print(f"{item.name:<44} {item.value:8.3f} {item.unit:<6} {low:.3f} to {high:.3f}")
    if given.json:
        write_figures(Path(given.json), figures)


if __name__ == "__main__":
    main()
