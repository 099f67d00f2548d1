"""Time to first token with the prefix in nothing, in the pool, in DRAM, on NVMe; one stream, one 1,024-token prefix per sample.

A pool of three prefixes and more prefixes than that: by the time one is asked for again it is only in the store. The
store's own counters say where a prefix came from; a sample from anywhere else does not count.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from octavo.client import AsyncClient, RetryPolicy
from octavo.errors import OctavoError
from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc

from octavo_cli.cache_bench.stores import StoreProbe, drop_page_cache
from octavo_cli.engine_bench.services import Services

PREFIX_TOKENS, SUFFIX_TOKENS = 1024, 32
FIRST_ID, LAST_ID = 1000, 9000
"""Token ids to draw prompts from."""


@dataclass(slots=True)
class Samples:
    """Milliseconds by row; `missed` counts samples whose prefix was not where the row says."""

    ms: dict[str, list[float]] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)

    def add(self, row: str, value_ms: float) -> None:
        self.ms.setdefault(row, []).append(value_ms)


@dataclass(frozen=True, slots=True)
class Pool:
    """The worker's pool, as the scheduler knows it."""

    block_tokens: int
    block_bytes: int

    @property
    def prefix_blocks(self) -> int:
        return PREFIX_TOKENS // self.block_tokens


class Asker:
    """Asks one request at a time."""

    def __init__(self, services: Services, seed: int) -> None:
        self._client = AsyncClient(services.url, retry=RetryPolicy(max_attempts=1, resume_window_s=0))
        self._random = random.Random(seed)

    def prefix(self) -> list[int]:
        """A fresh one."""
        return [self._random.randint(FIRST_ID, LAST_ID) for _ in range(PREFIX_TOKENS)]

    async def ttft_ms(self, prefix: Sequence[int], *, cache_off: bool = False) -> float:
        """With a fresh suffix."""
        suffix = [self._random.randint(FIRST_ID, LAST_ID) for _ in range(SUFFIX_TOKENS)]
        began_ns = time.perf_counter_ns()
        first_ns = 0
        answer = self._client.generate_stream(
            [*prefix, *suffix], max_tokens=2, temperature=0.0, ignore_eos=True, cache_off=cache_off
        )
        async with answer as stream:
            async for _ in stream:
                first_ns = first_ns or time.perf_counter_ns()
        if not first_ns:
            raise OctavoError("a request ended without a token")
        return (first_ns - began_ns) / 1e6

    async def close(self) -> None:
        await self._client.aclose()


def pool_of(services: Services) -> Pool:
    """Raises OctavoError when no worker serves."""
    address = next(service.address for service in services.state.services if service.kind == "scheduler")
    with grpc.insecure_channel(address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
        live = stub.GetLive(scheduler_pb2.GetLiveRequest(), timeout=10.0)
        status = stub.GetStatus(scheduler_pb2.GetStatusRequest(), timeout=10.0)
    if not live.workers or not status.workers:
        raise OctavoError("no worker serves")
    return Pool(16, live.workers[0].block_bytes)


async def measure_warm(
    services: Services, rounds: int, seed: int, samples: Samples, tell: Callable[[str], None]
) -> None:
    """Rows cold, off, hit/hbm, hit/dram, mixed/r10 and thrash/tier, on a cluster whose DRAM tier holds everything."""
    asker, pool = Asker(services, seed), pool_of(services)
    with StoreProbe.of_cluster(services.state) as store:
        await asker.ttft_ms(asker.prefix())  # the first request of a process pays for its pages
        prefixes = [asker.prefix() for _ in range(max(rounds, 6))]
        for number, prefix in enumerate(prefixes):
            tell(f"cold, off and pool: {number + 1} of {len(prefixes)}")
            # in turn, and in changing order: whatever else the machine does meets both alike
            pair = [("cold", prefix, False), ("off", asker.prefix(), True)]
            for row, tokens, off in pair if number % 2 else reversed(pair):
                samples.add(row, await asker.ttft_ms(tokens, cache_off=off))
            samples.add("hit/hbm", await asker.ttft_ms(prefix))
        await asyncio.to_thread(store.settle)
        for turn in range(2):
            tell(f"DRAM, pass {turn + 1} of 2 over {len(prefixes)} prefixes")
            for prefix in prefixes:
                ms = await _from(store, "dram", asker, prefix, pool, samples, "hit/dram")
                samples.add("thrash/tier", ms)
        for number in range(20):
            tokens = prefixes[-1] if number % 10 == 9 else asker.prefix()
            samples.add("mixed/r10", await asker.ttft_ms(tokens))
    await asker.close()


async def measure_nvme(
    services: Services, rounds: int, seed: int, samples: Samples, folder: Path, tell: Callable[[str], None]
) -> None:
    """Row hit/nvme, on a cluster whose DRAM tier holds a prefix and a quarter; the page cache is dropped before each sample."""
    asker, pool = Asker(services, seed), pool_of(services)
    with StoreProbe.of_cluster(services.state) as store:
        prefixes = [asker.prefix() for _ in range(max(rounds, 6))]
        for prefix in prefixes:
            await asker.ttft_ms(prefix)
            await asyncio.to_thread(store.settle)
        for number, prefix in enumerate(prefixes):
            tell(f"NVMe: {number + 1} of {len(prefixes)}")
            await asyncio.to_thread(drop_page_cache, folder)
            await _from(store, "nvme", asker, prefix, pool, samples, "hit/nvme")
    await asker.close()


async def measure_recompute(services: Services, rounds: int, seed: int, samples: Samples) -> None:
    """Row thrash/recompute: as thrash/tier, with no store."""
    asker = Asker(services, seed)
    await asker.ttft_ms(asker.prefix())
    prefixes = [asker.prefix() for _ in range(max(rounds, 6))]
    for turn in range(2):
        for prefix in prefixes:
            ms = await asker.ttft_ms(prefix)
            if turn:
                samples.add("thrash/recompute", ms)
    await asker.close()


async def _from(
    store: StoreProbe, tier: str, asker: Asker, prefix: Sequence[int], pool: Pool, samples: Samples, row: str
) -> float:
    """A sample of a row, if nearly the whole prefix came from this tier."""
    before = await asyncio.to_thread(store.figures)
    ms = await asker.ttft_ms(prefix)
    after = await asyncio.to_thread(store.figures)
    below = after.get("nvme_hits", 0) - before.get("nvme_hits", 0)
    above = after.get("dram_hits", 0) - before.get("dram_hits", 0)
    came = below if tier == "nvme" else above - below
    if came >= 0.9 * pool.prefix_blocks:
        samples.add(row, ms)
    else:
        samples.missed[row] = samples.missed.get(row, 0) + 1
    return ms
