"""The way through the services: a cluster of four, 16 streams through the SDK, and what each service's CPU spent on it."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc
from octavo.errors import OctavoError
from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc
from rich.console import Console

from octavo_cli.bench.grpc_target import GrpcTarget
from octavo_cli.bench.runner import Asking, Runner
from octavo_cli.bench.sample import Run
from octavo_cli.bench.workloads import Shape, make_workload
from octavo_cli.engine_bench.cpu import pss_bytes, services_cpu_s
from octavo_cli.own_cluster import own_cluster
from octavo_cli.state import ClusterState, read_state


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one shape, as many as streams."""

    streams: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of a workload through the services; seconds."""

    tokens: int
    wall_s: float
    ttft_ms: float
    client_cpu_s: float
    cpu_s: dict[str, float]
    steps: int
    messages: int
    """Chunks that the clients received."""
    gaps_ms: tuple[float, ...] = ()
    """Between two chunks of a client."""


class Services:
    """A running cluster of our own."""

    def __init__(self, url: str, state: ClusterState, ready_s: float) -> None:
        self.url, self.state, self.ready_s = url, state, ready_s
        self._seed = 0

    def run(self, work: Workload, *, multiplex: bool = True) -> Pass:
        """`multiplex` as the SDK has it. Raises OctavoError when a request failed."""
        self._seed += 1  # other prompts, so that none is cached
        before, steps = services_cpu_s(self.state), self._steps()
        run = asyncio.run(_closed_loop(self.url, work, self._seed, multiplex))
        after = services_cpu_s(self.state)
        answers = run.answered()
        if len(answers) < work.streams:
            failed = next((sample for sample in run.samples if sample.outcome != "ok"), None)
            raise OctavoError(f"through the services: {failed.outcome}: {failed.reason}" if failed else "no answers")
        return Pass(
            sum(sample.output_tokens for sample in answers),
            run.wall_s,
            statistics.median(sample.ttft_ms or 0.0 for sample in answers),
            run.client_cpu_s,
            {name: after[name] - before[name] for name in after},
            self._steps() - steps,
            sum(len(sample.arrivals) for sample in answers),
            tuple(gap for sample in answers for gap in sample.gaps_ms),
        )

    def worker_pss_bytes(self) -> int:
        """Memory of the first worker."""
        return max(pss_bytes(service.process.pid) for service in self.state.services if service.kind == "gpuworker")

    def _steps(self) -> int:
        address = next(service.address for service in self.state.services if service.kind == "scheduler")
        with grpc.insecure_channel(address) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
            status = stub.GetStatus(scheduler_pb2.GetStatusRequest(), timeout=10.0)
        return int(dict(status.counters)["steps"])


async def _closed_loop(url: str, work: Workload, seed: int, multiplex: bool) -> Run:
    """Every stream asks once, greedy, with a prompt of its own; no warm-up, whose CPU would count."""
    shape = Shape(work.streams, work.prompt_tokens, work.output_tokens, seed=seed)
    async with GrpcTarget(url, "", multiplex=multiplex) as target:
        runner = Runner(target, await target.describe(), Asking(seed=seed, cache_salt=f"engine-{seed}"))
        return await runner.closed_loop(make_workload("random", shape).sessions, work.streams)


@contextlib.contextmanager
def running_services(flags: Sequence[str]) -> Iterator[Services]:
    """A fresh cluster with these settings, stopped at the end."""
    # a request that goes without the cache as a trial is no sample of a row
    own = ["--scheduler.counterfactual_share", "0"]
    began = time.monotonic()
    with own_cluster([*own, *flags], console=Console(stderr=True, quiet=True)) as cluster:
        yield Services(cluster.state.urls["grpc"], read_state(cluster.run_dir), time.monotonic() - began)
