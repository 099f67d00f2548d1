#!/usr/bin/env python3
"""CPU of a gateway and of its client per client message, on one shared stream and on a stream per request, by turns.

    python bench/gateway.py [--streams 16] [--step-ms 10] [--tokens 200] [--rounds 3] [--json FILE]

A real gateway process; in the place of the scheduler a stand-in in this process that sends one message per step with a token of every
request, as the scheduler does. The client is a process of its own. A client message is a new token of one request, however many
of them travel in one message of the stream; starts and ends of requests are in the figures. No engine runs beside it, so caches are warmer
than in service.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
from octavo.client import AsyncClient
from octavo.figures import Figures, figure_of, write_figures
from octavo.packing import pack_u32
from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc
from octavo_cli.engine_bench.cpu import cpu_s

WAYS = ("session", "plain")
TOKEN = 1000
VOCABULARY = 40_000


class StandIn(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Takes every request at once and gives each a token per step until it has enough."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    async def AttachGateway(self, requests: Any, context: Any) -> None:
        welcome = scheduler_pb2.GatewayWelcome(
            scheduler_boot_id="stand-in", ready=True, root_key=b"r" * 32, block_tokens=16, max_model_len=8192,
            max_choices=8, max_request_blocks=512, model="smollm2",
        )  # fmt: skip
        await context.write(scheduler_pb2.AttachGatewayResponse(welcome=welcome))
        waiting: list[scheduler_pb2.Submit] = []
        reading = asyncio.create_task(self._read(requests, waiting))
        live: dict[int, tuple[str, int, int]] = {}  # handle -> request, tokens given, tokens wanted
        handles = 0
        try:
            while True:
                message = scheduler_pb2.AttachGatewayResponse(events=scheduler_pb2.RequestEvents())
                add, runs = message.events.events.add, message.events.runs
                stepping = list(live)
                runs.handles = pack_u32(stepping)
                runs.indexes = pack_u32([0] * len(stepping))
                runs.starts = pack_u32([live[handle][1] for handle in stepping])
                runs.counts = pack_u32([1] * len(stepping))
                runs.tokens = pack_u32([TOKEN + (handle + live[handle][1]) % VOCABULARY for handle in stepping])
                for handle in stepping:
                    name, given, wanted = live[handle]
                    live[handle] = name, given + 1, wanted
                    if given + 1 == wanted:
                        add(request_id=name).choice_finished.CopyFrom(
                            scheduler_pb2.ChoiceFinished(reason="length", tokens=wanted)
                        )
                        add(request_id=name).finished.CopyFrom(scheduler_pb2.RequestFinished(outcome="finished"))
                        del live[handle]
                while waiting:
                    submit, handles = waiting.pop(), handles + 1
                    live[handles] = submit.request_id, 0, submit.max_tokens
                    add(request_id=submit.request_id).accepted.CopyFrom(
                        scheduler_pb2.Accepted(attempt=1, handle=handles, max_tokens=submit.max_tokens)
                    )
                await context.write(message)
                await asyncio.sleep(self._step_s)
        finally:
            reading.cancel()

    async def _read(self, requests: Any, waiting: list[scheduler_pb2.Submit]) -> None:
        async for message in requests:
            if message.HasField("submit"):
                waiting.append(message.submit)


async def load(address: str, way: str, streams: int, tokens: int) -> None:
    """The client's process: one request per stream; prints its own CPU seconds and the chunks it got."""
    chunks = 0

    async def ask(client: AsyncClient, number: int) -> None:
        nonlocal chunks
        prompt = [TOKEN + (number * 131 + at * 7) % VOCABULARY for at in range(32)]
        async for _chunk in client.generate_stream(prompt, max_tokens=tokens, ignore_eos=True):
            chunks += 1

    async with AsyncClient(address, multiplex=way == "session") as client:
        await client.models()
        began_s = time.process_time()
        await asyncio.gather(*(ask(client, number) for number in range(streams)))
        print(time.process_time() - began_s, chunks)


@contextlib.asynccontextmanager
async def gateway_process(step_s: float, folder: Path) -> AsyncIterator[tuple[str, int]]:
    """Address and pid of a gateway in front of a stand-in."""
    server = grpc.aio.server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(StandIn(step_s), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    words = [
        sys.executable,
        "-m",
        "octavo_gateway",
        f"--gateway.scheduler=127.0.0.1:{port}",
        f"--deployment.run_dir={folder}",
    ]
    words += ["--gateway.grpc_listen=unix:" + str(folder / "gateway.sock"), "--gateway.http_listen=127.0.0.1:0"]
    with (folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)  # noqa: ASYNC220  before anything else runs here
    address = f"unix:{folder / 'gateway.sock'}"
    try:
        async with AsyncClient(address) as client:
            async with asyncio.timeout(60):
                while not (folder / "gateway.sock").exists() or not (await client.models())[0].max_model_len:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(timeout=30)
        await server.stop(0)


async def measure(streams: int, step_ms: float, tokens: int, rounds: int) -> Figures:
    """Both ways by turns; the first round warms up."""
    used: dict[str, list[float]] = {f"message_cpu/{who}/{way}": [] for way in WAYS for who in ("gateway", "client")}
    with tempfile.TemporaryDirectory(prefix="octavo-gateway-") as name:
        async with gateway_process(step_ms / 1e3, Path(name)) as (address, pid):
            for number in range(rounds + 1):
                for way in sorted(WAYS, reverse=bool(number % 2)):
                    before_s = cpu_s(pid)
                    words = [sys.executable, __file__, "--load", address, way, str(streams), str(tokens)]
                    client = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
                    said, _ = await client.communicate()
                    own_s, chunks = said.split()
                    if number:
                        used[f"message_cpu/gateway/{way}"].append(1e6 * (cpu_s(pid) - before_s) / int(chunks))
                        used[f"message_cpu/client/{way}"].append(1e6 * float(own_s) / int(chunks))
    results = tuple(figure_of(name, values, "us") for name, values in used.items())
    return Figures("gateway", results, {"streams": streams, "step_ms": step_ms, "tokens": tokens})


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=16, help="requests at once")
    parser.add_argument("--step-ms", type=float, default=10.0, help="between two messages of the stand-in")
    parser.add_argument("--tokens", type=int, default=200, help="per request")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", default="", help="write the figures to this file")
    parser.add_argument("--load", nargs=4, metavar=("ADDRESS", "WAY", "STREAMS", "TOKENS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        address, way, streams, tokens = given.load
        asyncio.run(load(address, way, int(streams), int(tokens)))
        return
    figures = asyncio.run(measure(given.streams, given.step_ms, given.tokens, given.rounds))
    if given.json:
        write_figures(Path(given.json), figures)
    for item in figures.results:
        print(f"{item.name:<30} {item.value:8.1f} {item.unit}  ({item.spread[0]:.1f} to {item.spread[1]:.1f})")


if __name__ == "__main__":
    main()
