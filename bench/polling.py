#!/usr/bin/env python3
"""What gRPC's polling costs a message: direct, as octavo has it, against its pool of threads, by turns.

    python bench/polling.py [--rounds 5] [--messages 2000] [--json FILE]

A server and a client in a process each, one stream both ways; each message of the client is answered with one, then the next is sent at once
(gap0) or 4 ms later (gap4, a fifth as many), about as the steps of a model come. `pool` is the same with GRPC_EXPERIMENTS set to nothing,
which octavo.polling leaves as it is. CPU is the server's, for one message in and one out; nothing computes beside it, so caches are warm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import octavo
from octavo.figures import Figures, figure_of, write_figures
from octavo.polling import EXPERIMENTS_ENV

WAYS = ("direct", "pool")
GAPS_MS = (0, 4)
PAYLOAD = bytes(300)
WARM_UP = 200


async def serve() -> None:
    """The server's process: prints its port; /bench/echo answers each message with itself, /bench/used tells what the process has used."""
    from grpc import GenericRpcHandler, aio, stream_stream_rpc_method_handler, unary_unary_rpc_method_handler

    async def echo(_: object, context: Any) -> None:
        while (message := await context.read()) is not aio.EOF:
            await context.write(message)

    async def used(_request: bytes, _context: object) -> bytes:
        return json.dumps(usage()).encode()

    class Handler(GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            if details.method == "/bench/echo":
                return stream_stream_rpc_method_handler(echo)
            return unary_unary_rpc_method_handler(used)

    server = aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


async def ask(port: str, messages: int) -> None:
    """The client's process: prints a row of figures for each gap."""
    from grpc import aio

    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        used, stream = channel.unary_unary("/bench/used"), channel.stream_stream("/bench/echo")()
        rows = {}
        for gap_ms in GAPS_MS:
            count = messages // 5 if gap_ms else messages
            for _ in range(WARM_UP):
                await exchange(stream)
            before, times_s = json.loads(await used(b"")), []
            for _ in range(count):
                if gap_ms:
                    await asyncio.sleep(gap_ms / 1e3)
                times_s.append(await exchange(stream))
            after = json.loads(await used(b""))
            times_s.sort()
            rows[f"gap{gap_ms}"] = {
                "server_cpu": (after["cpu_s"] - before["cpu_s"]) / count * 1e6,
                "switches": (after["switches"] - before["switches"]) / count,
                "both_ways_p50": times_s[count // 2] * 1e6,
                "both_ways_p99": times_s[count * 99 // 100] * 1e6,
            }
        print(json.dumps(rows), flush=True)
        stream.cancel()


async def exchange(stream: Any) -> float:
    """Seconds from a message's write to its answer."""
    began_s = time.perf_counter()
    await stream.write(PAYLOAD)
    await stream.read()
    return time.perf_counter() - began_s


def usage() -> dict[str, float]:
    """CPU seconds and voluntary context switches of this process so far."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": own.ru_utime + own.ru_stime, "switches": own.ru_nvcsw}


def one(way: str, messages: int) -> dict[str, dict[str, float]]:
    """Both processes, polling in this way."""
    environment = {name: value for name, value in os.environ.items() if name != EXPERIMENTS_ENV}
    if way == "pool":
        environment[EXPERIMENTS_ENV] = ""
    words = [sys.executable, __file__]
    server = subprocess.Popen([*words, "--serve"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        client = [*words, "--ask", port, "--messages", str(messages)]
        done = subprocess.run(client, env=environment, check=True, capture_output=True, text=True, timeout=300)
    finally:
        server.kill()
        server.wait()
    rows: dict[str, dict[str, float]] = json.loads(done.stdout)
    return rows


def measure(rounds: int, messages: int) -> Figures:
    """Both ways by turns, and the ratio of each round."""
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        rows = {way: one(way, messages) for way in sorted(WAYS, reverse=bool(number % 2))}
        for gap in rows["direct"]:
            for name in rows["direct"][gap]:
                for way in WAYS:
                    found.setdefault(f"{name}/{gap}/{way}", []).append(rows[way][gap][name])
                ratio = rows["direct"][gap][name] / rows["pool"][gap][name]
                found.setdefault(f"{name}/{gap}/direct_over_pool", []).append(ratio)
    units = {"switches": "switches"}
    results = tuple(
        figure_of(
            name, values, "ratio" if name.endswith("direct_over_pool") else units.get(name.partition("/")[0], "us")
        )
        for name, values in found.items()
    )
    return Figures("polling", results, {"rounds": rounds, "messages": messages})


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=2000, help="of a round without a gap; with one a fifth of it")
    parser.add_argument("--json", default="", help="write the figures to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ask", metavar="PORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve or given.ask:
        import uvloop

        uvloop.run(serve() if given.serve else ask(given.ask, given.messages))
        return
    assert octavo.polling.poll_directly(), "this version of grpcio is left as it is: there is nothing to compare"
    figures = measure(given.rounds, given.messages)
    if given.json:
        write_figures(Path(given.json), figures)
    for item in figures.results:
        spread = f"  ({item.spread[0]:.2f} to {item.spread[1]:.2f})" if item.spread else ""
        print(f"{item.name:<38} {item.value:8.2f} {item.unit}{spread}")


if __name__ == "__main__":
    main()
