"""Storms over a small pool while processes die: every answer equals the undisturbed one, and everything comes back."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cluster import Cluster, read
from octavo.v1 import inference_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

DRAM_BYTES = 48 * 2**20
SMALL = {
    "engine.dtype": "float32",
    "engine.kv_dtype": "float32",
    "engine.kv_num_blocks": 96,
    "engine.max_model_len": 1024,
    "engine.threads": 1,
    "scheduler.max_num_seqs": 16,
    "cache.dram_bytes": DRAM_BYTES,
    "cache.nvme_bytes": 512 * 2**20,
}
"""float32: ties within bfloat16 rounding would let a moved greedy stream diverge. 95 blocks hold 1,520 tokens."""
REFUSED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""A request that arrives while nothing can take it may be told so, before its first token."""


def generate(i: int) -> pb.GenerateRequest:
    """One of a dozen greedy requests; each third of them shares a prefix of 160 tokens."""
    length, max_tokens = (40, 130, 260, 420)[i % 4], (8, 90, 16, 8, 40)[i % 5]
    shared = [2000 + 17 * (i % 3) + k for k in range(160)] if length > 200 else []
    ids = (shared + [1000 + (i * 7919 + k * 41) % 40000 for k in range(length)])[:length]
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.Sampling(temperature=0.0, seed=i),
        options=pb.Options(max_tokens=max_tokens, ignore_eos=True),
    )


@dataclass
class Storm:
    """Clients that ask for known answers until the time is over."""

    cluster: Cluster
    requests: list[pb.GenerateRequest]
    wanted: list[list[int]] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    most_preemptions: int = 0
    attempts: int = 0

    async def learn(self) -> None:
        """The answers of an undisturbed run."""
        async with self.cluster.channel() as channel:
            stub = self.cluster.inference(channel)
            for request in self.requests:
                self.wanted.append((await read(stub.Generate(request))).ids[0])

    async def client(self, seed: int, until_s: float) -> None:
        rng = random.Random(seed)
        async with self.cluster.channel() as channel:
            stub = self.cluster.inference(channel)
            while time.monotonic() < until_s:
                i = rng.randrange(len(self.requests))
                call = stub.Generate(self.requests[i])
                cancelled = rng.random() < 0.1
                if cancelled:
                    asyncio.get_running_loop().call_later(rng.uniform(0, 2), call.cancel)
                try:
                    answer = await read(call)
                except asyncio.CancelledError:
                    if not cancelled:
                        raise
                    self.ends["cancelled"] += 1
                    continue
                except grpc.aio.AioRpcError as error:
                    if cancelled and error.code() is grpc.StatusCode.CANCELLED:
                        self.ends["cancelled"] += 1
                    elif error.code() in REFUSED:
                        self.ends["refused"] += 1
                        await asyncio.sleep(0.5)
                    else:
                        self.wrong.append(f"request {i}: {error.code().name} {error.details()}")
                    continue
                self.ends["finished"] += 1
                self.most_preemptions = max(self.most_preemptions, answer.finished.timings.preemptions)
                self.attempts = max(self.attempts, answer.finished.timings.attempts)
                if answer.terminals != 1:
                    self.wrong.append(f"request {i}: {answer.terminals} terminal events")
                if answer.ids[0] != self.wanted[i]:
                    at = next((k for k, pair in enumerate(zip(answer.ids[0], self.wanted[i], strict=False)) if pair[0] != pair[1]), -1)  # fmt: skip
                    self.wrong.append(
                        f"request {i}: differs at {at}, lengths {len(answer.ids[0])}, {len(self.wanted[i])}"
                    )

    async def run(self, seconds: float, clients: int, disturb: Callable[[float], object] | None = None) -> None:
        until_s = time.monotonic() + seconds
        disturbing = asyncio.ensure_future(disturb(until_s)) if disturb is not None else None  # type: ignore[arg-type]
        async with asyncio.timeout(seconds + 120):
            await asyncio.gather(*(self.client(seed, until_s) for seed in range(clients)))
        if disturbing is not None:
            await disturbing


def anonymous_bytes(pid: int) -> int:
    """Resident memory that is no file: an LMDB map counts as a file."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


async def disturb(cluster: Cluster, victims: list[str], pause_s: float, until_s: float, killed: list[str]) -> None:
    """Kills and restarts one process after the other."""
    rng = random.Random(4)
    order = victims[:]
    rng.shuffle(order)
    while time.monotonic() < until_s:
        name = order[len(killed) % len(order)]
        cluster.kill(name, signal.SIGKILL)
        killed.append(name)
        await asyncio.sleep(0.3)
        cluster.start(name)
        await asyncio.sleep(pause_s)


async def survive(cluster: Cluster, seconds: float, pause_s: float) -> None:
    await cluster.up()
    storm = Storm(cluster, [generate(i) for i in range(12)])
    await storm.learn()
    killed: list[str] = []
    victims = ["gpuworker0", "kvstore", "scheduler", "gpuworker1"]
    await storm.run(seconds, 16, lambda until_s: disturb(cluster, victims, pause_s, until_s, killed))
    await cluster.wait_ready()
    status = await cluster.settle(60)
    kvstore_bytes = anonymous_bytes(cluster.processes["kvstore"].pid)
    print(
        f"{dict(storm.ends)}, killed {Counter(killed)}, attempts <= {storm.attempts}, kvstore {kvstore_bytes >> 20} MiB"
    )
    print({name: value for name, value in status.counters.items() if value})
    assert storm.wrong == []
    assert storm.ends["finished"] > seconds / 4
    assert storm.ends["refused"] <= 16 * killed.count("scheduler") + 16
    assert set(victims) <= set(killed)
    assert status.counters["protocol_errors"] == 0, cluster.log_text("scheduler")[-4000:]
    assert kvstore_bytes < 2 * DRAM_BYTES + 64 * 2**20 + 200 * 2**20


async def test_a_storm_survives_the_death_of_everything_but_the_gateway(make_cluster: Callable[..., Cluster]) -> None:
    await survive(make_cluster(workers=2, settings=SMALL), seconds=30, pause_s=7)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_hundreds_of_kills(make_cluster: Callable[..., Cluster]) -> None:
    await survive(make_cluster(workers=2, settings=SMALL), seconds=1800, pause_s=6)


async def test_a_small_pool_preempts_offloads_loads_and_stays_right(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings={**SMALL, "engine.kv_num_blocks": 65, "engine.max_model_len": 900})
    await cluster.up()
    storm = Storm(cluster, [generate(i) for i in range(12)])
    await storm.learn()
    await storm.run(20, 16)
    counters = (await cluster.settle(60)).counters
    print(dict(storm.ends), {name: value for name, value in counters.items() if value})
    assert storm.wrong == []
    assert storm.ends["refused"] == 0
    assert storm.most_preemptions <= 4
    assert counters["offloaded_blocks"] > 0
    assert counters["loaded_blocks"] > 0
    assert counters["protocol_errors"] == 0, cluster.log_text("scheduler")[-4000:]
