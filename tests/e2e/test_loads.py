"""Blocks that have left the pool come back from the kvstore, loaded or with the head computed meanwhile: the same tokens, and the ledger tells."""

from __future__ import annotations

import asyncio

import pytest
from cluster import Cluster, read
from octavo.v1 import inference_pb2 as pb
from octavo_cli.ledger_link import ask_ledger

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.asyncio]

SETTINGS = {
    "engine.dtype": "float32",
    "engine.kv_dtype": "float32",
    "engine.kv_num_blocks": 40,
    "engine.threads": 1,
    "scheduler.max_num_batched_tokens": 64,
    "scheduler.max_num_batched_tokens_alone": 64,
}
BLOCK = 16


def request(i: int, length: int) -> pb.GenerateRequest:
    ids = [1000 + (i * 7919 + k * 41) % 40000 for k in range(length)]
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        options=pb.Options(max_tokens=8, ignore_eos=True),
        sampling=pb.Sampling(temperature=0.0),
    )


@pytest.mark.parametrize("way", ["overlap", "load"])
async def test_what_left_the_pool_is_loaded(way: str, make_cluster) -> None:  # type: ignore[no-untyped-def]
    cluster: Cluster = make_cluster(settings={**SETTINGS, "cache.load_path": way})
    await cluster.up()
    prompts = [(1, 400), (2, 400), (3, 300)]
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        first, blocks = [], 0
        for prompt in prompts:
            first.append(await read(stub.Generate(request(*prompt))))
            blocks += prompt[1] // BLOCK
            async with asyncio.timeout(60):
                while (await cluster.status()).counters["offloaded_blocks"] < blocks:
                    await asyncio.sleep(0.05)
        again = [await read(stub.Generate(request(*prompt))) for prompt in prompts]
    assert [answer.ids for answer in again] == [answer.ids for answer in first]
    counters = (await cluster.status()).counters
    assert counters["loaded_blocks"] > 10
    content = await asyncio.to_thread(ask_ledger, f"127.0.0.1:{cluster.ports['scheduler']}", "tier_load", "")
    (total,) = content["techniques"]
    assert total["hits"] >= 2 and total["cost_bytes"] > 0 and total["hit_tokens"] == counters["loaded_blocks"] * BLOCK
    assert content["tiers"] and all(row["bytes_per_us"] > 0 and row["loads"] for row in content["tiers"])
