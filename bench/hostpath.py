#!/usr/bin/env python3
"""CPU of a scheduler and of a gateway per step of 16 streams, with cold caches as in service, of two checkouts by turns, over their floor.

    python bench/hostpath.py [--against TREE] [--services relay,scheduler,gateway] [--streams 16] [--steps 200] [--warm] [--rounds 3] [--json FILE]

The floor is `relay`: a process that reads a message from one stream and writes one of the same size to another by grpc.aio, with our options
and event loop, and looks at neither. A scheduler and a gateway have that to do per step, and what they are for beside it.

A real process of the service; around it one that stands in for its neighbours and sends what they send: a report of the worker, or a
message of the scheduler, every 14.5 ms, with a token of every stream. On each processor a process reads memory meanwhile, as the engine
reads its weights: what the service touches comes from memory that others are busy with. `--warm` leaves that out. Starts and ends of requests
are not in the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import uvloop
from octavo.client import AsyncClient
from octavo.figures import Figures, figure_of, write_figures
from octavo.keys import extend_keys
from octavo.packing import pack_keys, pack_u32
from octavo.rpc.channels import LEAN_OPTIONS
from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc, worker_pb2
from octavo_cli.engine_bench.cpu import cpu_s

EOF = grpc.aio.EOF  # type: ignore[attr-defined]
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("protos", "gateway", "scheduler", "gpuworker", "kvstore", "cli")
BLOCK_TOKENS = 16
PROMPT_TOKENS = 128
TOKEN = 1000
VOCABULARY = 4_000
READ_BYTES = 256 << 20
STEP_S = 0.0145
NICE = 10
WARM_UP = 100
HEARTBEAT_STEPS = 100
"""A gateway that says nothing for long is taken for gone."""


class Steps:
    """Paces the steps, beside processes that read memory all the time, one on each processor."""

    def __init__(self, *, warm: bool) -> None:
        self._cores = sorted(os.sched_getaffinity(0)) if not warm else []

    async def run(self, count: int, pid: int, send: Callable[[], Awaitable[None]]) -> float:
        """Microseconds of the service's CPU per step, over `count` steps after some that warm up."""
        words = [sys.executable, __file__, "--read"]
        readers = [subprocess.Popen([*words, str(core)]) for core in self._cores]  # noqa: ASYNC220
        began_s = 0.0
        try:
            for number in range(WARM_UP + count):
                if number == WARM_UP:
                    began_s = cpu_s(pid)
                await send()
                await asyncio.sleep(STEP_S)
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
        return 1e6 * (cpu_s(pid) - began_s) / count


def read_memory(core: int) -> None:
    """Reads as the engine reads its weights, and gives way to whoever passes a message; until its parent is gone."""
    os.sched_setaffinity(0, {core})
    os.nice(NICE)
    memory, parent = np.zeros(READ_BYTES // 8), os.getppid()
    while os.getppid() == parent:
        memory.sum()


# -- the scheduler ---------------------------------------------------------------------------------------------------


async def scheduler_step_us(streams: int, steps: int, pace: Steps, tree: Path) -> float:
    """Of a scheduler between a worker and a gateway that this process plays."""
    with tempfile.TemporaryDirectory(prefix="octavo-hostpath-") as name:
        address = f"unix:{name}/s.sock"
        options = [f"--scheduler.local_listen={address}", "--scheduler.listen=127.0.0.1:0"]
        async with service(tree, "scheduler", Path(name), options) as process:
            await until(Path(name, "s.sock").exists)
            async with grpc.aio.insecure_channel(address) as channel:
                stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
                return await _attached(stub, streams, steps, pace, process.pid)


async def _attached(stub: Any, streams: int, steps: int, pace: Steps, pid: int) -> float:
    worker, gateway = stub.AttachWorker(), stub.AttachGateway()
    await worker.write(
        worker_pb2.AttachWorkerRequest(number=1, join=worker_pb2.WorkerJoin(worker_id="w0", boot_id="b"))
    )
    welcome = await worker.read()
    root = bytes(32)
    hello = worker_pb2.WorkerHello(
        model="smollm2", num_blocks=40_000, block_tokens=BLOCK_TOKENS, max_num_seqs=2 * streams,
        max_model_len=8192, block_bytes=368_640, root_key=root, role="both",
    )  # fmt: skip
    numbers = iter(range(2, 1 << 31))
    await worker.write(worker_pb2.AttachWorkerRequest(epoch=welcome.epoch, number=next(numbers), hello=hello))
    await gateway.write(
        scheduler_pb2.AttachGatewayRequest(
            hello=scheduler_pb2.GatewayHello(gateway_id="g", boot_id="b", takes_runs=True)
        )
    )
    admits: list[worker_pb2.Admit] = []

    async def read_orders() -> None:
        while (message := await worker.read()) is not EOF:
            admits.extend(order.admit for order in message.orders.orders if order.HasField("admit"))

    async def read_tokens() -> None:
        while (message := await gateway.read()) is not EOF:
            tokens.append(len(message.events.runs.tokens) // 4)

    tokens: list[int] = []
    reading = [asyncio.create_task(work) for work in (read_orders(), read_tokens())]
    for number in range(streams):
        prompt = array("I", [TOKEN + (number * 131 + at * 7) % VOCABULARY for at in range(PROMPT_TOKENS)])
        submit = scheduler_pb2.Submit(
            request_id=f"request-{number}", attempt=1, tenant="t", prompt_tokens=pack_u32(prompt), max_tokens=4096,
            prompt_keys=pack_keys(extend_keys(root, prompt, BLOCK_TOKENS)), namespace_root=root,
            sampling=worker_pb2.SamplingParams(top_p=1.0, repetition_penalty=1.0, logprobs=-1),
            choices=[scheduler_pb2.ChoiceState(seed=number)], gateway_state=b"{}",
        )  # fmt: skip
        await gateway.write(scheduler_pb2.AttachGatewayRequest(submit=submit))
    await until(lambda: len(admits) == streams)
    slots = [admit.slot for admit in admits]
    step = 0

    async def send() -> None:
        nonlocal step
        step += 1
        if step % HEARTBEAT_STEPS == 0:
            await gateway.write(scheduler_pb2.AttachGatewayRequest(heartbeat=scheduler_pb2.Heartbeat()))
        first = step == 1
        report = worker_pb2.Report(
            step=step, steps=1, slots=pack_u32(slots), counts=pack_u32([1] * streams),
            tokens=pack_u32([TOKEN + (slot * 977 + step * 31) % VOCABULARY for slot in slots]),
            computed_len=pack_u32([PROMPT_TOKENS + step - 1] * streams), decode_seqs=0 if first else streams,
            prefill_tokens=PROMPT_TOKENS * streams if first else 0, times=worker_pb2.StepTimes(wall_us=14_500),
        )  # fmt: skip
        if first:
            report.first_tokens.extend(worker_pb2.FirstToken(seq=admit.seq, prefill_us=1000) for admit in admits)
        await worker.write(worker_pb2.AttachWorkerRequest(epoch=welcome.epoch, number=next(numbers), report=report))

    took_us = await pace.run(steps, pid, send)
    worker.cancel()
    gateway.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    if sum(tokens) < streams * steps:
        raise RuntimeError(f"{sum(tokens)} tokens came out of {streams * steps} that went in")
    return took_us


# -- the gateway -----------------------------------------------------------------------------------------------------


class StandIn(scheduler_pb2_grpc.SchedulerServiceServicer):
    """A scheduler that takes every request at once; `step` sends a token of each."""

    def __init__(self) -> None:
        self._context: Any = None
        self._written = 0
        self.live = 0

    async def AttachGateway(self, requests: Any, context: Any) -> None:
        welcome = scheduler_pb2.GatewayWelcome(
            scheduler_boot_id="stand-in", ready=True, root_key=b"r" * 32, block_tokens=BLOCK_TOKENS, max_model_len=8192,
            max_choices=8, max_request_blocks=512, model="smollm2",
        )  # fmt: skip
        await context.write(scheduler_pb2.AttachGatewayResponse(welcome=welcome))
        self._context = context
        async for message in requests:
            if message.HasField("submit"):
                self.live += 1
                accepted = scheduler_pb2.Accepted(attempt=1, handle=self.live, max_tokens=message.submit.max_tokens)
                event = scheduler_pb2.RequestEvent(request_id=message.submit.request_id, accepted=accepted)
                events = scheduler_pb2.RequestEvents(events=[event])
                await context.write(scheduler_pb2.AttachGatewayResponse(events=events))

    async def step(self) -> None:
        """One message with a token of every request."""
        handles = list(range(1, self.live + 1))
        runs = scheduler_pb2.TokenRuns(
            handles=pack_u32(handles), indexes=pack_u32([0] * self.live), counts=pack_u32([1] * self.live),
            starts=pack_u32([self._written] * self.live),
            tokens=pack_u32([TOKEN + (handle * 977 + self._written * 31) % VOCABULARY for handle in handles]),
        )  # fmt: skip
        self._written += 1
        events = scheduler_pb2.RequestEvents(runs=runs)
        await self._context.write(scheduler_pb2.AttachGatewayResponse(events=events))


async def gateway_step_us(streams: int, steps: int, pace: Steps, tree: Path) -> float:
    """Of a gateway between a scheduler and an SDK's session that this process plays."""
    stand_in, server = StandIn(), grpc.aio.server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(stand_in, server)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory(prefix="octavo-hostpath-") as name:
        server.add_insecure_port(f"unix:{name}/s.sock")
        await server.start()
        options = [f"--gateway.scheduler=unix:{name}/s.sock", "--gateway.http_listen=127.0.0.1:0"]
        options += [f"--gateway.grpc_listen=unix:{name}/g.sock"]
        async with (
            service(tree, "gateway", Path(name), options) as process,
            AsyncClient(f"unix:{name}/g.sock") as client,
        ):
            await until(Path(name, "g.sock").exists)
            while not (await client.models())[0].max_model_len:  # noqa: ASYNC110  it does not say so by itself
                await asyncio.sleep(0.05)
            chunks = 0

            async def ask(number: int) -> None:
                nonlocal chunks
                prompt = [TOKEN + (number * 131 + at * 7) % VOCABULARY for at in range(PROMPT_TOKENS)]
                async for _chunk in client.generate_stream(prompt, max_tokens=4096, ignore_eos=True):
                    chunks += 1

            asking = [asyncio.create_task(ask(number)) for number in range(streams)]
            await until(lambda: stand_in.live == streams)
            took_us = await pace.run(steps, process.pid, stand_in.step)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            if chunks < streams * steps:
                raise RuntimeError(f"{chunks} chunks came out of {streams * steps} tokens")
        await server.stop(0)
    return took_us


async def until(condition: Callable[[], bool]) -> None:
    """Returns once it holds, TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  nothing that could say so runs here
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def service(tree: Path, name: str, folder: Path, options: list[str]) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A service's process of that checkout."""
    paths = os.pathsep.join(str(tree / package) for package in PACKAGES)
    words = [sys.executable, "-m", f"octavo_{name}", f"--deployment.run_dir={folder}", *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=tree, env={**os.environ, "PYTHONPATH": paths})  # noqa: ASYNC220
    try:
        yield process
    except BaseException:
        print((folder / "log").read_text(encoding="utf-8")[-2000:], file=sys.stderr)
        raise
    finally:
        process.terminate()
        process.wait(timeout=30)


# -- the floor -------------------------------------------------------------------------------------------------------

IN, OUT = "/bench/in", "/bench/out"


async def relay(address: str) -> None:
    """The process of the floor: what comes on one stream goes out on the other, until it is ended."""
    ended = asyncio.Event()
    out: list[Any] = []

    async def take(_: object, context: Any) -> None:
        while (message := await context.read()) is not EOF:
            await out[0].write(message)

    async def give(_: object, context: Any) -> None:
        out.append(context)
        await ended.wait()

    calls = {IN: grpc.stream_stream_rpc_method_handler(take), OUT: grpc.stream_stream_rpc_method_handler(give)}

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return calls.get(details.method)

    server = grpc.aio.server(options=LEAN_OPTIONS)
    server.add_generic_rpc_handlers((Handler(),))
    server.add_insecure_port(address)
    await server.start()
    await ended.wait()


async def relay_step_us(streams: int, steps: int, pace: Steps, tree: Path) -> float:
    """Of a process between two streams of this one; messages as long as a report with that many streams."""
    with tempfile.TemporaryDirectory(prefix="octavo-hostpath-") as name:
        address, payload = f"unix:{name}/s.sock", bytes(60 + 16 * streams)
        words = [sys.executable, str(tree / "bench" / Path(__file__).name), "--relay", address]
        process = subprocess.Popen(words)  # noqa: ASYNC220
        try:
            await until(Path(name, "s.sock").exists)
            async with grpc.aio.insecure_channel(address) as channel:
                there, back = channel.stream_stream(IN)(), channel.stream_stream(OUT)()
                await back.write(b"")
                came = 0

                async def read() -> None:
                    nonlocal came
                    while await back.read() is not EOF:
                        came += 1

                reading = asyncio.create_task(read())
                await asyncio.sleep(0.2)  # the way back must be there before the first message
                took_us = await pace.run(steps, process.pid, lambda: there.write(payload))
                await until(lambda: came == WARM_UP + steps)
                there.cancel()
                back.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        finally:
            process.terminate()
            process.wait(timeout=30)
    return took_us


MEASURED = {"relay": relay_step_us, "scheduler": scheduler_step_us, "gateway": gateway_step_us}


async def measure(given: argparse.Namespace) -> Figures:
    """Both checkouts by turns."""
    trees = {"now": ROOT}
    if given.against:
        trees["before"] = given.against
    names, pace = given.services.split(","), Steps(warm=given.warm)
    used: dict[str, list[float]] = {}
    for number in range(given.rounds):
        for name in names:
            for label in sorted(trees, reverse=bool(number % 2)):
                took_us = await MEASURED[name](given.streams, given.steps, pace, trees[label])
                used.setdefault(f"step_cpu/{name}/{label}", []).append(took_us)
            if given.against:
                now, before = (used[f"step_cpu/{name}/{label}"][-1] for label in ("now", "before"))
                used.setdefault(f"step_cpu/{name}/ratio", []).append(now / before)
    results = tuple(
        figure_of(name, values, "ratio" if name.endswith("ratio") else "us") for name, values in used.items()
    )
    return Figures("hostpath", results, {"streams": given.streams, "steps": given.steps, "cold": not given.warm})


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    about = "another checkout, measured by turns with this one"
    parser.add_argument("--against", type=lambda name: Path(name).absolute(), metavar="TREE", help=about)
    parser.add_argument(
        "--services", default="relay,scheduler,gateway", help="which of them; relay is the floor of the others"
    )
    parser.add_argument("--streams", type=int, default=16, help="requests at once")
    parser.add_argument("--steps", type=int, default=200, help="that are measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", action="store_true", help="leave the caches alone between two steps")
    parser.add_argument("--json", default="", help="write the figures to this file")
    parser.add_argument("--read", type=int, metavar="CORE", help=argparse.SUPPRESS)
    parser.add_argument("--relay", metavar="ADDRESS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read is not None:
        return read_memory(given.read)
    if given.relay:
        return uvloop.run(relay(given.relay))
    figures = asyncio.run(measure(given))
    if given.json:
        write_figures(Path(given.json), figures)
    for item in figures.results:
        low, high = item.spread or (item.value, item.value)
        print(f"{item.name:<30} {item.value:8.2f} {item.unit}  ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
