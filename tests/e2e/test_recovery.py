"""Kill -9 of each service: the client sees a pause (or one clear error), the tokens go on, one terminal event each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from cluster import Answer, Cluster, read
from octavo.v1 import inference_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FLOAT32 = {"engine.dtype": "float32", "engine.kv_dtype": "float32"}
"""Ties within bfloat16 rounding would make a moved greedy stream diverge; float32 leaves none on these prompts."""


def generate(
    i: int, *, seeded: bool, max_tokens: int = 60, length: int = 0, request_id: str = ""
) -> pb.GenerateRequest:
    ids = [1000 + (i * 7919 + k * 41) % 40000 for k in range(length or 20 + 5 * i)]
    return pb.GenerateRequest(
        context=pb.RequestContext(request_id=request_id),
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.Sampling(temperature=0.9 if seeded else 0.0, seed=100 + i),
        options=pb.Options(max_tokens=max_tokens, ignore_eos=True),
    )


async def wait_tokens(answers: list[Answer], count: int) -> None:
    async with asyncio.timeout(60):
        while any(len(answer.ids.get(0, [])) < count for answer in answers):
            await asyncio.sleep(0.02)


async def follow(call: Any, answer: Answer) -> Answer:
    async for response in call:
        answer.take(response)
    return answer


def same(got: Answer, want: Answer) -> bool:
    return got.terminals == 1 and got.ids == want.ids and got.texts == want.texts


async def test_worker_killed_under_16_streams(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(workers=2, settings=FLOAT32)
    await cluster.up()
    requests = [generate(i, seeded=i % 2 == 1) for i in range(16)]
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        wanted = await asyncio.gather(*(read(stub.Generate(request)) for request in requests))
        answers = [Answer() for _ in requests]
        streams = [
            asyncio.create_task(follow(stub.Generate(request), answer))
            for request, answer in zip(requests, answers, strict=True)
        ]
        await wait_tokens(answers, 3)
        victim, running = await cluster.busiest()
        assert running
        cluster.kill(victim)
        await asyncio.gather(*streams)
    assert [i for i, (got, want) in enumerate(zip(answers, wanted, strict=True)) if not same(got, want)] == []
    assert sum(answer.finished.timings.attempts > 1 for answer in answers) == running
    await cluster.settle()


async def test_scheduler_killed_under_streams(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings=FLOAT32)
    await cluster.up()
    requests = [generate(i, seeded=i % 2 == 1) for i in range(6)]
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        wanted = await asyncio.gather(*(read(stub.Generate(request)) for request in requests))
        answers = [Answer() for _ in requests]
        streams = [
            asyncio.create_task(follow(stub.Generate(request), answer))
            for request, answer in zip(requests, answers, strict=True)
        ]
        await wait_tokens(answers, 3)
        cluster.kill("scheduler")
        await asyncio.sleep(0.5)
        cluster.start("scheduler")
        await asyncio.gather(*streams)
        assert [i for i, (got, want) in enumerate(zip(answers, wanted, strict=True)) if not same(got, want)] == []
        status = await cluster.settle()
        assert status.blocks_cached > 0
        again = await read(stub.Generate(generate(5, seeded=False, max_tokens=2)))
        assert again.finished.usage.cached_tokens > 0, (
            "a restarted scheduler must rebuild its index from the worker's labels"
        )


async def test_gateway_killed_and_the_sdk_resumes(make_cluster: Callable[..., Cluster]) -> None:
    from octavo import AsyncClient

    cluster = make_cluster()
    await cluster.up()
    prompt = "Once upon a time"
    async with AsyncClient(cluster.grpc_address) as client:
        whole = await client.generate(prompt, max_tokens=80, temperature=0.0, ignore_eos=True)
        text, killed = "", False
        async with client.generate_stream(prompt, max_tokens=80, temperature=0.0, ignore_eos=True) as stream:
            async for delta in stream:
                text += delta.text
                if len(text) > 20 and not killed:
                    killed = True
                    cluster.kill("gateway")
                    cluster.start("gateway")
    assert killed
    assert text == whole.text
    await cluster.settle()


@pytest.mark.timeout(300)
async def test_kvstore_killed_while_blocks_move(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings={**FLOAT32, "engine.kv_num_blocks": 65, "engine.max_model_len": 900})
    await cluster.up()
    requests = [generate(i, seeded=False, max_tokens=4, length=640) for i in range(6)]
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        wanted = [await read(stub.Generate(request)) for request in requests]
        for request in requests[:3]:
            await read(stub.Generate(request))
        counters = (await cluster.settle()).counters
        async with asyncio.timeout(60):
            while counters["offloaded_blocks"] < 100 or counters["loaded_blocks"] < 50:
                for request in requests:
                    await read(stub.Generate(request))
                counters = (await cluster.settle()).counters
        streams = [asyncio.create_task(read(stub.Generate(request))) for request in requests]
        before = (await cluster.status()).counters["loads_started"]
        async with asyncio.timeout(60):
            while (await cluster.status()).counters["loads_started"] == before and not all(
                task.done() for task in streams
            ):
                await asyncio.sleep(0.002)
        assert (await cluster.status()).counters["loads_started"] > before, "no load was in flight"
        cluster.kill("kvstore")
        answers = await asyncio.gather(*streams)
        after = [await read(stub.Generate(request)) for request in requests]
    assert [i for i, (got, want) in enumerate(zip(answers, wanted, strict=True)) if not same(got, want)] == []
    assert [i for i, (got, want) in enumerate(zip(after, wanted, strict=True)) if not same(got, want)] == []
    await cluster.settle()


async def test_worker_alone_killed_and_restarted(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings=FLOAT32)
    await cluster.up()
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        want = await read(stub.Generate(generate(1, seeded=True, max_tokens=100)))
        answer = Answer()
        stream = asyncio.create_task(follow(stub.Generate(generate(1, seeded=True, max_tokens=100)), answer))
        await wait_tokens([answer], 5)
        cluster.kill("gpuworker0")
        cluster.start("gpuworker0")
        await stream
    assert same(answer, want)
    assert answer.finished.timings.attempts == 2
    await cluster.settle()
