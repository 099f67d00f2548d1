"""Chunks at other positions on a live cluster: served, said so, never left behind as exact; and exact where blending is off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import httpx
import pytest
import pytest_asyncio
from cluster import Cluster
from octavo.client import AsyncCache, AsyncClient
from octavo.errors import InvalidRequest, UnknownPreload
from octavo_cli.ledger_link import ask_ledger

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
NAMES = ("hill", "river", "mill")
QUESTION = " What does it say about bread?"


def words(seed: int, count: int) -> str:
    """Text that nobody else sends."""
    draw = Random(seed)
    return " ".join(draw.choice(("river", "stone", "lamp", "seven", "quiet", "bread", "north")) for _ in range(count))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    shared = Cluster(tmp_path_factory.mktemp("blending"), settings={"cache.blending": True})
    try:
        await shared.up()
        async with AsyncCache(shared.grpc_address) as cache:
            for number, name in enumerate(NAMES):
                await cache.preload(name, [words(90 + number, 100)], form="raw")
            await cache.preload("rules", [words(95, 60)], form="system")
        yield shared
    finally:
        shared.down()


async def ask(client: AsyncClient, chunks: tuple[str, ...], **options: Any) -> Any:
    return await client.generate(
        QUESTION, max_tokens=4, temperature=0.0, ignore_eos=True, cache={"chunks": chunks}, **options
    )


async def test_chunks_in_another_order_are_blended_and_said_to_be(cluster: Cluster) -> None:
    async with AsyncClient(cluster.grpc_address) as client, AsyncCache(cluster.grpc_address) as cache:
        kept = {item.name: item for item in (await cache.preloads()).preloads}
        done = await ask(client, ("river", "hill", "mill"))
        assert done.usage.blended_tokens == 16 * (kept["hill"].blocks + kept["mill"].blocks)
        assert done.usage.cached_tokens == 0 and len(done.choices[0].token_ids) == 4
        assert done.usage.prompt_tokens > sum(kept[name].tokens for name in NAMES)
        again = await ask(client, ("river", "hill", "mill"), n=2)
        assert [choice.token_ids for choice in again.choices] == [done.choices[0].token_ids] * 2
    content = await asyncio.to_thread(ask_ledger, f"127.0.0.1:{cluster.ports['scheduler']}", "blending", "")
    (booked,) = content["techniques"]
    assert booked["hit_tokens"] > 0 and booked["saved_ms"] > 0


async def test_nothing_blended_is_found_as_exact(cluster: Cluster) -> None:
    async with AsyncClient(cluster.grpc_address) as client, AsyncCache(cluster.grpc_address) as cache:
        kept = {item.name: item for item in (await cache.preloads()).preloads}
        await ask(client, ("mill", "river"))
        # one name alone is a prefix: the same prompt, continued exactly, finds that chunk and no more
        text = words(91, 100) + QUESTION
        whole = await client.generate(text, max_tokens=4, temperature=0.0, cache={"preload": "mill"})
        assert whole.usage.cached_tokens == 16 * kept["mill"].blocks and whole.usage.blended_tokens == 0
        off = await client.generate(text, max_tokens=4, temperature=0.0, cache={"off": True})
        assert off.usage.cached_tokens == off.usage.blended_tokens == 0


async def test_over_http_and_in_a_chat(cluster: Cluster) -> None:
    body = {
        "messages": [{"role": "user", "content": "What do they say?"}], "max_tokens": 3, "temperature": 0,
        "cache": {"chunks": ["rules", "mill", "hill"]},
    }  # fmt: skip
    async with httpx.AsyncClient(base_url=cluster.http_url) as web:
        answer = await web.post("/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens_details"]["blended_tokens"] > 0
        body["cache"] = {"chunks": ["mill", "rules"]}
        refused = await web.post("/v1/chat/completions", json=body, timeout=60)
        assert refused.status_code == 400 and "system message" in refused.text


async def test_what_cannot_be_named(cluster: Cluster) -> None:
    async with AsyncClient(cluster.grpc_address) as client:
        with pytest.raises(UnknownPreload, match=r"cache\.chunks"):
            await ask(client, ("hill", "nowhere"))
        with pytest.raises(InvalidRequest, match=r"beside cache\.preload"):
            await client.generate("x", cache={"chunks": ["hill"], "preload": "mill"})


async def test_chunks_that_only_the_store_holds_are_loaded_and_blended(make_cluster: Callable[..., Cluster]) -> None:
    settings = {
        "cache.blending": True, "cache.load_path": "load", "engine.kv_num_blocks": 65, "engine.max_model_len": 600,
        "cache.dram_bytes": 256 * 2**20, "cache.nvme_bytes": 512 * 2**20,
    }  # fmt: skip
    small = make_cluster(settings=settings)
    await small.up()
    async with AsyncClient(small.grpc_address) as client, AsyncCache(small.grpc_address) as cache:
        for number, name in enumerate(NAMES[:2]):
            await cache.preload(name, [words(90 + number, 100)], form="raw")
        there = await ask(client, NAMES[:2])
        assert there.usage.blended_tokens > 0
        for name in NAMES[:2]:
            await cache.pin(name, pinned=False)
        for number in range(6):  # each takes more than half of the pool
            await client.generate(words(200 + number, 450), max_tokens=2, temperature=0.0)
        before = (await small.settle()).counters["loaded_blocks"]
        back = await ask(client, NAMES[:2])
        after = (await small.settle()).counters["loaded_blocks"]
    assert back.usage.blended_tokens == there.usage.blended_tokens and after > before
    assert back.choices[0].token_ids == there.choices[0].token_ids
