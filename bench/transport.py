#!/usr/bin/env python3
"""Where the time to the first token goes beside queue and prefill, alone and with 16 streams: parts, and requests above 5 ms of transport.

    python bench/transport.py [--requests 200] [--json FILE]

One cluster; 128 prompt tokens each, no two alike. `alone`: one request at a time, 8 tokens out; `streams16`: 16 clients in a closed
loop, 48 tokens out, so that first tokens meet running steps. Parts as in docs/tracing.md, from each answer's own timings.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Iterator
from pathlib import Path

from octavo.figures import Figure, Figures, write_figures
from octavo.rpc.channels import open_channel
from octavo.ttft import PARTS
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc
from octavo_cli.own_cluster import own_cluster
from rich.console import Console

PROMPT_TOKENS, BOUND_MS = 128, 5.0
HOST_PARTS = ("gateway", "dispatch", "worker_wait", "report", "relay", "detokenize", "transport")
"""What the services add to queue and prefill."""


def request(number: int, output: int) -> pb.GenerateRequest:
    """Greedy, of a fixed length, sharing no block with another."""
    ids = [1000 + (number * 7919 + at * 41 + (number >> 3) * 13) % 40_000 for at in range(PROMPT_TOKENS)]
    options = pb.Options(max_tokens=output, ignore_eos=True)
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=pb.Sampling(temperature=0.0), options=options)


async def streams(
    stub: inference_pb2_grpc.InferenceServiceStub, numbers: Iterator[int], clients: int, output: int
) -> list[dict[str, float]]:
    """The parts of every request in milliseconds, by `clients` clients in a closed loop."""
    found: list[dict[str, float]] = []

    async def client() -> None:
        for number in numbers:
            async for response in stub.Generate(request(number, output)):
                if response.HasField("finished"):
                    ttft = response.finished.timings.ttft
                    found.append({name: getattr(ttft, f"{name}_us") / 1e3 for name in PARTS})

    await asyncio.gather(*(client() for _ in range(clients)))
    return found


def figures_of(state: str, found: list[dict[str, float]]) -> list[Figure]:
    """Quantiles of each part, and how many requests lie above the bound."""
    results = []
    for part in HOST_PARTS:
        cuts = statistics.quantiles((item[part] for item in found), n=100)
        results += [
            Figure(f"{part}_p{share}/{state}", cuts[share - 1], "ms", len(found), None) for share in (50, 90, 99)
        ]
    above = sum(item["transport"] > BOUND_MS for item in found)
    return [*results, Figure(f"transport_above_5ms/{state}", float(above), "requests", len(found), None)]


async def measure(address: str, requests: int) -> list[Figure]:
    """Both states."""
    async with open_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        await streams(stub, iter(range(10_000, 10_016)), 4, 8)
        alone = await streams(stub, iter(range(requests)), 1, 8)
        beside = await streams(stub, iter(range(20_000, 20_000 + requests)), 16, 48)
    return [*figures_of("alone", alone), *figures_of("streams16", beside)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--json", default="")
    given = parser.parse_args()
    with own_cluster(console=Console(stderr=True)) as cluster:
        results = asyncio.run(measure(cluster.state.urls["grpc"].removeprefix("grpc://"), given.requests))
    for item in results:
        print(f"{item.name:<32} {item.value:8.2f} {item.unit:<9} n={item.n}")
    if given.json:
        write_figures(Path(given.json), Figures("transport", tuple(results), {"requests": given.requests}))


if __name__ == "__main__":
    main()
