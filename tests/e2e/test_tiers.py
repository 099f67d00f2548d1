"""The tiers in the real cluster: a prefix comes back from DRAM through shared memory, after a kill -9 of the store from disk,
and what a killed worker had of the arena comes back; the answers are the same all the way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc.aio
import pytest
from cluster import Answer, Cluster, read
from octavo.rpc.channels import open_channel
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import kvstore_pb2, kvstore_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SETTINGS = {
    "engine.dtype": "float32",
    "engine.kv_dtype": "float32",
    "engine.kv_num_blocks": 49,
    "engine.max_model_len": 600,
    "cache.dram_bytes": 256 * 2**20,
    "cache.nvme_bytes": 512 * 2**20,
}
"""A pool of one prompt and a half: each prompt pushes the one before it out."""
PROMPT_TOKENS = 480


def generate(number: int) -> pb.GenerateRequest:
    ids = [1000 + (number * 7919 + at * 41) % 40_000 for at in range(PROMPT_TOKENS)]
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.Sampling(temperature=0.0),
        options=pb.Options(max_tokens=4, ignore_eos=True),
    )


class Store:
    """The kvstore's own account."""

    def __init__(self, cluster: Cluster) -> None:
        self._address = f"127.0.0.1:{cluster.ports['kvstore']}"

    async def figures(self) -> dict[str, float]:
        async with open_channel(self._address) as channel:
            stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
            stats = await stub.GetStats(kvstore_pb2.GetStatsRequest(), timeout=5)
        return {**stats.counters, **{f"{tier.name}_hits": tier.hits for tier in stats.tiers}}

    async def until(self, condition: Callable[..., bool]) -> dict[str, float]:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):  # it may be starting
                    if condition(figures := await self.figures()):
                        return figures
                await asyncio.sleep(0.05)

    async def directory(self) -> dict[bytes, set[str]]:
        """What WatchBlocks says, rebuilt."""
        places: dict[bytes, set[str]] = {}
        async with open_channel(self._address) as channel:
            call = kvstore_pb2_grpc.KvStoreServiceStub(channel).WatchBlocks(kvstore_pb2.WatchBlocksRequest())
            async for message in call:
                for change in message.changes:
                    assert change.host == "host0" and not change.removed
                    places.setdefault(change.key, set()).add(change.tier)
                if message.whole:
                    return places
        raise AssertionError("the stream ended")


async def ask(cluster: Cluster, numbers: range) -> list[Answer]:
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        return [await read(stub.Generate(generate(number))) for number in numbers]


def same(got: list[Answer], want: list[Answer]) -> bool:
    return [answer.ids for answer in got] == [answer.ids for answer in want]


async def test_prefixes_come_back_from_every_tier_and_through_deaths(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings=SETTINGS)
    await cluster.up()
    store, prompts = Store(cluster), range(5)
    wanted: list[Answer] = []
    for number in prompts:  # each hands its blocks down before the next one takes their room
        wanted += await ask(cluster, range(number, number + 1))
        await store.until(lambda figures, least=29 * (number + 1): figures["write_behind_written"] >= least)

    before = await store.figures()
    assert same(await ask(cluster, prompts), wanted)
    after = await store.until(lambda figures: not figures["arena_lent"] and not figures["arena_reserved"])
    assert after["dram_hits"] - before["dram_hits"] >= 2 * 29 and after["nvme_hits"] == before["nvme_hits"]
    assert after["arena_slots"] > 0, "the worker of this host has mapped the arena"

    directory = await store.directory()
    assert len(directory) == after["held_keys"] and all("nvme" in tiers for tiers in directory.values())

    cluster.kill("kvstore")
    cluster.start("kvstore")
    await store.until(lambda figures: figures["held_keys"] >= 4 * 29)
    loads = (await cluster.settle()).counters["loaded_blocks"]
    async with asyncio.timeout(60):  # the scheduler learns what the new store holds
        while not (await cluster.status()).stores or (await cluster.status()).stores[0].keys < 4 * 29:
            await asyncio.sleep(0.05)
    assert same(await ask(cluster, prompts), wanted)
    warm = await store.figures()
    assert warm["nvme_hits"] >= 2 * 29, "warm from disk after a kill -9"
    assert (await cluster.settle()).counters["loaded_blocks"] > loads

    cluster.kill("gpuworker0")
    await store.until(
        lambda figures: not figures["arena_lent"] and not figures["arena_reserved"] and not figures["leases"]
    )
    cluster.start("gpuworker0")
    await cluster.wait_workers()
    assert same(await ask(cluster, prompts), wanted)
    await cluster.settle()
