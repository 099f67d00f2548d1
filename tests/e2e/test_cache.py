"""The cache of a live cluster as people use it: preloads, wishes of requests, eviction, rotation, explanations; and who finds what."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from cluster import SOURCES, Cluster, read
from mann_whitney import mann_whitney
from octavo.client import AsyncCache, AsyncClient
from octavo.errors import InvalidRequest, OctavoError, UnknownPreload
from octavo.keys import extend_keys, namespace_root
from octavo.manifest import Deployment
from octavo.packing import pack_keys
from octavo.rpc.channels import open_channel
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import kvstore_pb2, kvstore_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

KEYS = {"key-a": "alpha", "key-b": "beta", "key-o": "ops", "key-q": "small"}
SETTINGS = {
    "tenants.keys": KEYS,
    "tenants.admins": ["ops"],
    "cache.pin_quota_bytes": {"beta": 40 * 368_640},
    "cache.quota_bytes": {"small": {"dram": 4 * 368_640, "nvme": 10 * 368_640}},
    "cache.dram_bytes": 96 * 2**20,
    "cache.nvme_bytes": 192 * 2**20,
}
SIDE = 200
"""Requests a side of a timing test."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    shared = Cluster(tmp_path_factory.mktemp("cache"), settings=SETTINGS)
    try:
        await shared.up()
        yield shared
    finally:
        shared.down()


def words(seed: int, count: int = 400) -> str:
    """Text that nobody else sends."""
    draw = Random(seed)
    return " ".join(draw.choice(("river", "stone", "lamp", "seven", "quiet", "bread", "north")) for _ in range(count))


def ids(seed: int, length: int) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(1000, 40_000) for _ in range(length)]


async def ask(client: AsyncClient, prompt: Any, **options: Any) -> Any:
    return await client.generate(
        prompt, max_tokens=options.pop("max_tokens", 2), temperature=0.0, ignore_eos=True, **options
    )


async def until(condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := await condition()):
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.05)
    return found


async def test_a_preload_is_found_updated_explained_and_removed(cluster: Cluster, tmp_path: Path) -> None:
    async with (
        AsyncClient(cluster.grpc_address, api_key="key-a") as client,
        AsyncCache(cluster.grpc_address, api_key="key-a") as cache,
    ):
        done = await cache.preload("handbook", [words(1), words(2)])
        assert (done.preload.state, done.preload.pinned, done.replaced) == ("ready", True, False)
        assert done.preload.source == {"computed": done.preload.tokens}
        first = await client.chat("What is it about?", max_tokens=4, temperature=0.0, cache={"preload": "handbook"})
        assert first.usage.cached_tokens == done.preload.blocks * 16
        assert first.usage.prompt_tokens > done.preload.tokens
        plain = await client.chat(
            [{"role": "system", "content": f"{words(1)}\n\n{words(2)}"}, {"role": "user", "content": "What is it about?"}],
            max_tokens=4, temperature=0.0,
        )  # fmt: skip
        assert plain.text == first.text and plain.usage.prompt_tokens == first.usage.prompt_tokens
        why = await cache.explain(first.request_id)
        assert why.nearest == "preload/handbook" and why.reason in ("text", "whole")

        path = tmp_path / "new.txt"
        path.write_text(words(3))
        command = [sys.executable, "-m", "octavo_cli", "cache", "preload", str(path), "--name", "handbook", "--json"]
        command += ["--url", f"grpc://{cluster.grpc_address}", "--api-key", "key-a"]
        ran = await asyncio.to_thread(
            subprocess.run,
            command,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": SOURCES},
        )
        assert ran.returncode == 0, ran.stderr
        said = json.loads(ran.stdout)
        assert said["replaced"] and said["preload"]["version"] == 2
        assert 0 < said["build_s"] < said["first_answer_s"] < 60
        second = await client.chat("What is it about?", max_tokens=4, temperature=0.0, cache={"preload": "handbook"})
        assert second.usage.cached_tokens == said["preload"]["blocks"] * 16 != first.usage.cached_tokens
        (listed,) = (await cache.preloads()).preloads
        assert (listed.name, listed.version, listed.uses) == ("handbook", 2, 3)
        assert (await cache.evict(name="handbook")).blocks >= listed.blocks
        assert (await cache.stat("handbook")).state == "evicted"  # type: ignore[union-attr]
        assert (await cache.pin("handbook")).pinned  # type: ignore[union-attr]
        assert await cache.remove("handbook") is not None and await cache.remove("handbook") is None
        with pytest.raises(UnknownPreload):
            await client.chat("x", cache={"preload": "handbook"})


async def test_what_cannot_be_preloaded_says_both_numbers(cluster: Cluster) -> None:
    async with AsyncCache(cluster.grpc_address, api_key="key-b") as cache:
        with pytest.raises(InvalidRequest, match=r"\d+ tokens exceed the \d+ .* context of \d+"):
            await cache.preload("long", [words(4, 40_000)])
        with pytest.raises(
            InvalidRequest, match=r"\d+ bytes beside 0 that are pinned exceed the pin quota of 14745600 bytes"
        ):
            await cache.preload("fat", [words(5, 800)])
        with pytest.raises(InvalidRequest, match="one block of 16"):
            await cache.preload("thin", ["Hi"], form="raw")
        with pytest.raises(InvalidRequest, match="tenant"):
            async with AsyncCache(cluster.grpc_address, api_key="key-b", tenant="alpha") as other:
                await other.preloads()


async def test_another_tenant_s_preloads_and_blocks_are_not_there(cluster: Cluster) -> None:
    prompt = ids(10, 100)
    async with (
        AsyncClient(cluster.grpc_address, api_key="key-a") as alpha,
        AsyncClient(cluster.grpc_address, api_key="key-b") as beta,
        AsyncCache(cluster.grpc_address, api_key="key-a") as cache,
    ):
        await cache.preload("mine", [words(6, 60)])
        with pytest.raises(UnknownPreload):
            await beta.chat("x", cache={"preload": "mine"})
        await ask(alpha, prompt)
        assert (await ask(alpha, prompt)).usage.cached_tokens == 96
        assert (await ask(beta, prompt)).usage.cached_tokens == 0
        assert (await ask(alpha, prompt, cache={"salt": "s"})).usage.cached_tokens == 0
        assert (await ask(alpha, prompt, cache={"salt": "s"})).usage.cached_tokens == 96
        await cache.remove("mine")


async def test_explain_names_salt_and_text_and_off(cluster: Cluster) -> None:
    prompt = ids(11, 64)
    async with (
        AsyncClient(cluster.grpc_address, api_key="key-a") as client,
        AsyncCache(cluster.grpc_address, api_key="key-a") as cache,
        AsyncCache(cluster.grpc_address, api_key="key-b") as stranger,
    ):
        await ask(client, prompt)
        left = await ask(client, [*prompt[:40], *ids(12, 20)])
        found = await cache.explain(left.request_id)
        assert (found.reason, found.left_at, found.cached_tokens) == ("text", 40, 32) and found.own_text
        salted = await ask(client, prompt, cache={"salt": "other"})
        assert (await cache.explain(salted.request_id)).reason == "salt"
        off = await ask(client, prompt, cache={"off": True})
        assert (await cache.explain(off.request_id)).reason == "off"
        with pytest.raises(OctavoError, match="not known"):
            await stranger.explain(off.request_id)


async def test_eviction_by_prefix_and_times_to_live(cluster: Cluster) -> None:
    text = words(20, 60)
    async with (
        AsyncClient(cluster.grpc_address, api_key="key-a") as client,
        AsyncCache(cluster.grpc_address, api_key="key-a") as cache,
    ):
        await ask(client, text)
        assert (await ask(client, text)).usage.cached_tokens
        assert (await cache.evict(prefix=text)).blocks >= 1
        found = (await ask(client, text)).usage.cached_tokens
        await cache.evict(prefix=words(20, 20))
        assert (await ask(client, text)).usage.cached_tokens < found
        brief = ids(21, 64)
        await ask(client, brief, cache={"ttl": 1.0})
        assert (await ask(client, brief, cache={"ttl": 1.0})).usage.cached_tokens == 48
        await asyncio.sleep(1.5)
        assert (await ask(client, brief)).usage.cached_tokens == 0
        with pytest.raises(InvalidRequest, match=r"cache\.pin: needs cache\.ttl"):
            await ask(client, brief, cache={"pin": True})


async def test_a_rotation_forgets_a_tenant_everywhere_and_its_preloads_come_back(cluster: Cluster) -> None:
    prompt = ids(30, 100)
    async with (
        AsyncClient(cluster.grpc_address, api_key="key-a") as alpha,
        AsyncClient(cluster.grpc_address, api_key="key-b") as beta,
        AsyncCache(cluster.grpc_address, api_key="key-a") as cache,
        AsyncCache(cluster.grpc_address, api_key="key-o", tenant="alpha") as admin,
    ):
        kept = (await cache.preload("kept", [words(31, 80)])).preload
        for client in (alpha, beta):
            await ask(client, prompt)
            assert (await ask(client, prompt)).usage.cached_tokens == 96
        await until(lambda: stored(cluster, "alpha", prompt, 0))
        done = await admin.rotate()
        assert done.generation == 1 and done.blocks >= 6 and done.preloads == 1
        await until(lambda: gone(cluster, "alpha", prompt, 0))
        assert (await ask(alpha, prompt)).usage.cached_tokens == 0
        assert (await ask(alpha, prompt)).usage.cached_tokens == 96
        assert (await ask(beta, prompt)).usage.cached_tokens == 96

        async def ready() -> bool:
            found = await cache.stat("kept")
            return found is not None and found.pinned

        await until(ready)
        again = await alpha.chat("x", max_tokens=2, temperature=0.0, cache={"preload": "kept"})
        assert again.usage.cached_tokens == kept.blocks * 16


async def _where(cluster: Cluster, tenant: str, prompt: list[int], generation: int) -> list[str]:
    root_key = bytes.fromhex((await _models(cluster))[0])
    root = namespace_root(root_key, Deployment().secret.encode(), tenant, "", generation)
    keys = extend_keys(root, prompt, 16)
    async with open_channel(f"127.0.0.1:{cluster.ports['kvstore']}") as channel:
        stub: Any = kvstore_pb2_grpc.KvStoreServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = await stub.Contains(kvstore_pb2.ContainsRequest(keys=pack_keys(keys), layout=root_key))
        return list(answer.tiers)


async def _models(cluster: Cluster) -> list[str]:
    async with AsyncClient(cluster.grpc_address, api_key="key-a") as client:
        return [model.fingerprint for model in await client.models()]


async def stored(cluster: Cluster, tenant: str, prompt: list[int], generation: int) -> bool:
    return all(await _where(cluster, tenant, prompt, generation))


async def gone(cluster: Cluster, tenant: str, prompt: list[int], generation: int) -> bool:
    return not any(await _where(cluster, tenant, prompt, generation))


async def payload(cluster: Cluster, tenant: str, prompt: list[int]) -> bytes:
    """The first block's bytes, from the store."""
    root_key = bytes.fromhex((await _models(cluster))[0])
    keys = extend_keys(namespace_root(root_key, Deployment().secret.encode(), tenant), prompt, 16)
    async with open_channel(f"127.0.0.1:{cluster.ports['kvstore']}") as channel:
        stub: Any = kvstore_pb2_grpc.KvStoreServiceStub(channel)  # type: ignore[no-untyped-call]
        async for block in stub.Get(kvstore_pb2.GetRequest(keys=keys[0], layout=root_key)):
            return bytes(block.payload)
    raise AssertionError("the store does not hold it")


def everything_of_the_store(cluster: Cluster) -> bytes:
    """Every byte that the store process keeps: its files, and what it and the workers map shared."""
    pid = cluster.processes["kvstore"].pid
    paths = {path for path in cluster.run_dir.rglob("*") if path.is_file() and path.suffix not in (".log", ".jsonl")}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        name = line.split(maxsplit=5)[-1]
        if name.startswith("/dev/shm/"):
            paths.add(Path(name.removesuffix(" (deleted)")))
    return b"".join(path.read_bytes() for path in sorted(paths) if path.is_file())


async def heap_holds(cluster: Cluster, needle: bytes) -> bool:
    """The anonymous memory of the store process, where a DRAM tier without an arena lies."""
    pid = cluster.processes["kvstore"].pid
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            parts = line.split()
            if "r" not in parts[1] or (len(parts) > 5 and parts[5].startswith(("/", "[v"))):
                continue
            low, high = (int(word, 16) for word in parts[0].split("-"))
            try:
                memory.seek(low)
                if needle in memory.read(high - low):
                    return True
            except OSError:
                continue
    return False


async def test_cache_off_leaves_no_byte_of_a_block_in_any_tier(cluster: Cluster) -> None:
    prompt = ids(40, 48)
    async with AsyncClient(cluster.grpc_address, api_key="key-b") as client:
        await ask(client, prompt, cache={"off": True})
        await asyncio.sleep(0.5)
        before = everything_of_the_store(cluster)
        assert (await ask(client, prompt)).usage.cached_tokens == 0
        await until(lambda: stored(cluster, "beta", prompt, 0))
    block = await payload(cluster, "beta", prompt)
    needles = [block[at : at + 256] for at in range(0, len(block) - 256, len(block) // 8)]
    needles = [needle for needle in needles if len(set(needle)) > 32]
    assert len(needles) >= 4
    assert not any(needle in before for needle in needles)
    after = everything_of_the_store(cluster)
    assert any(needle in after for needle in needles) or await heap_holds(cluster, needles[0]), (
        "the search finds nothing at all"
    )


async def held(cluster: Cluster, tenant: str, prompts: list[list[int]]) -> dict[str, int]:
    """How many blocks of these prompts each tier of the store holds."""
    root_key = bytes.fromhex((await _models(cluster))[0])
    root = namespace_root(root_key, Deployment().secret.encode(), tenant)
    own = {key for prompt in prompts for key in extend_keys(root, prompt, 16)}
    found = {"dram": 0, "nvme": 0, "queue": 0}
    async with open_channel(f"127.0.0.1:{cluster.ports['kvstore']}") as channel:
        stub: Any = kvstore_pb2_grpc.KvStoreServiceStub(channel)  # type: ignore[no-untyped-call]
        async for part in stub.WatchBlocks(kvstore_pb2.WatchBlocksRequest()):
            for change in part.changes:
                found[change.tier] += (change.key in own) * (-1 if change.removed else 1)
            if part.whole:
                return found
    raise AssertionError("the watch ended")


async def test_a_tenant_above_its_quota_loses_its_own_blocks_in_each_tier(cluster: Cluster) -> None:
    other, prompts = ids(700, 128), [ids(701 + number, 128) for number in range(3)]
    async with (
        AsyncClient(cluster.grpc_address, api_key="key-b") as beta,
        AsyncClient(cluster.grpc_address, api_key="key-q") as small,
    ):
        await ask(beta, other)
        await until(lambda: stored(cluster, "beta", other, 0))
        for prompt in prompts:
            await ask(small, prompt)

        async def full() -> bool:
            return (await held(cluster, "small", prompts))["nvme"] >= 9

        await until(full)
        await asyncio.sleep(0.5)  # what was still on its way is there, and what was too much is gone
    found = await held(cluster, "small", prompts)
    assert 0 < found["dram"] <= 4 and 9 <= found["nvme"] <= 10, "24 blocks were computed"
    assert await held(cluster, "beta", [other]) == {"dram": 8, "nvme": 8, "queue": 0}, "never another's"


async def test_a_preload_outlives_scheduler_and_worker_and_says_where_it_came_from(cluster: Cluster) -> None:
    async with (
        AsyncClient(cluster.grpc_address, api_key="key-b") as client,
        AsyncCache(cluster.grpc_address, api_key="key-b") as cache,
    ):
        kept = (await cache.preload("durable", [words(50, 100)])).preload

        async def again() -> dict[str, int]:
            try:
                found = await cache.stat("durable")
            except OctavoError:
                return {}
            return dict(found.source) if found is not None and found.pinned else {}

        cluster.kill("scheduler")
        cluster.start("scheduler")
        await cluster.wait_ready()
        source = await until(again)
        assert source == {"hbm": kept.blocks * 16}
        prefilled = (await cluster.status()).counters["prefill_tokens"]

        cluster.kill("gpuworker0")
        cluster.start("gpuworker0")
        await cluster.wait_ready()
        await cluster.wait_workers()

        async def elsewhere() -> dict[str, int]:
            return found if "hbm" not in (found := await again()) else {}

        source = await until(elsewhere)
        # what had reached the store is loaded, the rest computed
        assert sum(source.values()) == kept.tokens and source["computed"] < kept.tokens
        assert source["computed"] <= (await cluster.status()).counters["prefill_tokens"] - prefilled < kept.tokens
        answer = await client.chat("x", max_tokens=2, temperature=0.0, cache={"preload": "durable"})
        assert answer.usage.cached_tokens == kept.blocks * 16
        await cache.remove("durable")


async def ttft_ms(stub: Any, prompt: list[int], key: str) -> float:
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt),
        sampling=pb.Sampling(temperature=0.0),
        options=pb.Options(max_tokens=1, ignore_eos=True),
    )
    call = stub.Generate(request, metadata=(("authorization", f"Bearer {key}"),))
    began = time.perf_counter()
    async for response in call:
        if response.WhichOneof("event") == "delta":
            took = time.perf_counter() - began
            break
    await read(call)
    return took * 1000


async def timed(channel: grpc.aio.Channel, cluster: Cluster, asking: str, side: int, seed: int) -> float:
    """p of: prompts that tenant alpha has cached take `asking`'s key as long as prompts that nobody sent. Interleaved."""
    stub = cluster.inference(channel)
    known, fresh = [], []
    for number in range(side):
        cached = ids(seed + 2 * number, 80)
        await ttft_ms(stub, cached, "key-a")
        pair = [(known, cached), (fresh, ids(seed + 2 * number + 1, 80))]
        for times, prompt in pair if number % 2 else reversed(pair):
            times.append(await ttft_ms(stub, prompt, asking))
    return mann_whitney(known, fresh)


@pytest.mark.parametrize("side", [60, pytest.param(SIDE, marks=pytest.mark.soak)])
async def test_nobody_learns_from_the_time_what_another_tenant_asked(cluster: Cluster, side: int) -> None:
    async with cluster.channel() as channel:
        own = await timed(channel, cluster, "key-a", side, 1_000_000 + side)
        other = await timed(channel, cluster, "key-b", side, 2_000_000 + side)
    print(f"side {side}: p within one tenant {own:.3g}, across tenants {other:.3g}")
    assert own < 1e-6, "the test could not have seen a difference"
    assert other > 0.001
