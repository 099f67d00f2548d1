"""A local cluster of real service processes that a test can kill, pause and restart one by one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
from octavo.rpc.channels import open_channel
from octavo.v1 import inference_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join(
    str(ROOT / name) for name in ("protos", "gateway", "scheduler", "gpuworker", "kvstore", "cli")
)
START_TIMEOUT_S = 90.0


TAKEN: set[int] = set()
"""Ports this run has handed out: the kernel may offer one twice before its first owner listens."""


def free_port() -> int:
    """A TCP port that is free right now and was not handed out before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in TAKEN:
            TAKEN.add(port)
            return port


@dataclass
class Cluster:
    """Four services on free loopback ports. `settings` go to every process, `per_service` to those of one service, or to one by its name."""

    run_dir: Path
    workers: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    per_service: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kvstore: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("scheduler", "kvstore", "grpc", "http", "grpc2", "http2"):
            self.ports[name] = free_port()

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.ports['grpc']}"

    def names(self) -> list[str]:
        kvstores = ["kvstore"] if self.kvstore else []
        return ["scheduler", *kvstores, *(f"gpuworker{i}" for i in range(self.workers)), "gateway"]

    def flags(self, name: str) -> list[str]:
        """The command line of one process; `gateway2` is a second gateway on ports of its own."""
        service = name.rstrip("0123456789")
        scheduler = f"127.0.0.1:{self.ports.get('scheduler_via', self.ports['scheduler'])}"
        given: dict[str, Any] = {
            "deployment.run_dir": str(self.run_dir),
            "deployment.drain_timeout_s": 5.0,
            "scheduler.counterfactual_share": 0.0,  # a test that counts hits wants all of them
            **self.settings,
        }
        if service == "scheduler":
            given["scheduler.listen"] = f"127.0.0.1:{self.ports['scheduler']}"
        elif service == "kvstore":
            given["kvstore.listen"] = f"127.0.0.1:{self.ports['kvstore']}"
            given["kvstore.scheduler"] = f"127.0.0.1:{self.ports['scheduler']}"
            given["kvstore.store_id"] = "host0"
        elif service == "gpuworker":
            given["gpuworker.scheduler"] = scheduler
            given["gpuworker.worker_id"] = name
            if self.kvstore:
                given["gpuworker.kvstore"] = f"127.0.0.1:{self.ports['kvstore']}"
        else:
            second = "2" if name == "gateway2" else ""
            given["gateway.grpc_listen"] = f"127.0.0.1:{self.ports['grpc' + second]}"
            given["gateway.http_listen"] = f"127.0.0.1:{self.ports['http' + second]}"
            given["gateway.scheduler"] = f"127.0.0.1:{self.ports['scheduler']}"
            given["gateway.gateway_id"] = name
        given.update(self.per_service.get(service, {}))
        given.update(self.per_service.get(name, {}))
        words = [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in given.items()]
        return [sys.executable, "-m", f"octavo_{service}", *words]

    def start(self, name: str) -> None:
        """Starts one process; its output goes to <run_dir>/<name>.log."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        log = (self.run_dir / f"{name}.log").open("ab")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OCTAVO_", "OTEL_"))}
        environment |= {"PYTHONPATH": SOURCES, "TOKENIZERS_PARALLELISM": "false", **self.environment}
        self.processes[name] = subprocess.Popen(
            self.flags(name), stdout=log, stderr=log, env=environment, cwd=self.run_dir
        )
        log.close()

    def kill(self, name: str, signum: int = signal.SIGKILL) -> None:
        """Sends a signal and, for the deadly ones, waits for the end."""
        process = self.processes[name]
        process.send_signal(signum)
        if signum in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            process.wait(timeout=30)

    def log_text(self, name: str) -> str:
        return (self.run_dir / f"{name}.log").read_text(errors="replace")

    async def up(self) -> None:
        """Starts everything and waits until a request would be answered by any of the workers."""
        for name in self.names():
            self.start(name)
        await self.wait_ready()
        await self.wait_workers()

    async def wait_ready(self, timeout_s: float = START_TIMEOUT_S, url: str = "") -> None:
        deadline = time.monotonic() + timeout_s
        async with httpx.AsyncClient() as client:
            while True:
                for name, process in self.processes.items():
                    if process.poll() not in (None, 0, -signal.SIGKILL, -signal.SIGTERM):
                        raise RuntimeError(f"{name} ended with {process.returncode}: {self.log_text(name)[-2000:]}")
                try:
                    if (await client.get((url or self.http_url) + "/ready", timeout=2)).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                if time.monotonic() > deadline:
                    tails = "\n".join(f"--- {name}\n{self.log_text(name)[-1500:]}" for name in self.processes)
                    raise TimeoutError(f"not ready after {timeout_s:.0f} s\n{tails}")
                await asyncio.sleep(0.1)

    async def wait_workers(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """The gateway is ready with its first worker; this waits for all of them."""
        async with asyncio.timeout(timeout_s):
            while sum(worker.state == "serving" for worker in (await self.status()).workers) < self.workers:
                await asyncio.sleep(0.05)

    def down(self) -> None:
        """SIGTERM to all, SIGKILL to what is left after the drain."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=5)

    def channel(self, address: str = "") -> grpc.aio.Channel:
        return open_channel(address or self.grpc_address)

    def inference(self, channel: grpc.aio.Channel) -> inference_pb2_grpc.InferenceServiceStub:
        return inference_pb2_grpc.InferenceServiceStub(channel)

    async def status(self) -> scheduler_pb2.GetStatusResponse:
        """The scheduler's own account."""
        async with open_channel(f"127.0.0.1:{self.ports['scheduler']}") as channel:
            return await scheduler_pb2_grpc.SchedulerServiceStub(channel).GetStatus(
                scheduler_pb2.GetStatusRequest(), timeout=5
            )

    async def busiest(self) -> tuple[str, int]:
        """The worker with the most running sequences, and how many: placement follows measured costs, so it may be any."""
        workers = (await self.status()).workers
        return max(((worker.worker_id, worker.running) for worker in workers), key=lambda pair: pair[1])

    async def settle(self, timeout_s: float = 60.0) -> scheduler_pb2.GetStatusResponse:
        """The status once nothing runs, waits or is held; fails with the last status when that never comes."""
        deadline = time.monotonic() + timeout_s
        while True:
            status = await self.status()
            if (
                not status.requests_running
                and not status.requests_waiting
                and status.blocks_free == status.blocks_total
            ):
                assert status.blocks_leaked == 0
                return status
            assert time.monotonic() < deadline, f"never settled: {status}"
            await asyncio.sleep(0.1)


@dataclass(slots=True)
class Answer:
    """One stream, read to its end."""

    request_id: str = ""
    trace_id: str = ""
    prompt_tokens: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, int] = field(default_factory=dict)
    finished: Any = None
    terminals: int = 0
    arrivals_s: list[float] = field(default_factory=list)

    def take(self, response: Any) -> None:
        kind = response.WhichOneof("event")
        if kind == "started":
            self.request_id = response.started.request_id
            self.trace_id = response.started.trace_id
            self.prompt_tokens = response.started.prompt_tokens
        elif kind == "delta":
            delta = response.delta
            self.arrivals_s.append(time.monotonic())
            self.texts[delta.index] = self.texts.get(delta.index, "") + delta.text
            self.ids.setdefault(delta.index, []).extend(delta.token_ids)
            if delta.finish_reason:
                self.reasons[delta.index] = delta.finish_reason
        else:
            self.finished = response.finished
            self.terminals += 1


async def read(call: Any) -> Answer:
    """Reads a Generate, Chat or Attach stream to its end; raises grpc.aio.AioRpcError as the call does."""
    answer = Answer()
    async for response in call:
        answer.take(response)
    return answer


class DelayProxy:
    """A TCP proxy that holds every byte back for `delay_s`, in both directions; it may change while nothing is under way."""

    def __init__(self, port: int, target_port: int, delay_s: float) -> None:
        self._port, self._target_port, self.delay_s = port, target_port, delay_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                loop.call_later(self.delay_s, sink.write, data)
        loop.call_later(self.delay_s, sink.close)
