"""Sharing is real: counters show that shared tokens are computed once."""

from __future__ import annotations

import asyncio

import pytest
from cluster import Cluster, read
from octavo.v1 import inference_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


def generate(ids: list[int], max_tokens: int = 4, n: int = 1, temperature: float = 0.0) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.Sampling(temperature=temperature, seed=1),
        options=pb.Options(max_tokens=max_tokens, ignore_eos=True, n=n),
    )


def prompt(start: int, length: int) -> list[int]:
    return [1000 + (start * 7919 + i * 31) % 40000 for i in range(length)]


@pytest.mark.parametrize("length", [1024, 1000])
async def test_four_choices_of_one_prompt_prefill_it_once(cluster: Cluster, length: int) -> None:
    before = (await cluster.settle()).counters["prefill_tokens"]
    async with cluster.channel() as channel:
        answer = await read(cluster.inference(channel).Generate(generate(prompt(length, length), n=4, temperature=1.0)))
    assert len(answer.ids) == 4
    assert (await cluster.settle()).counters["prefill_tokens"] - before == length


async def test_512_shared_tokens_are_not_computed_twice(cluster: Cluster) -> None:
    shared = prompt(3, 512)
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        await read(stub.Generate(generate(shared + prompt(4, 40))))
        before = (await cluster.settle()).counters
        answer = await read(stub.Generate(generate(shared + prompt(5, 40))))
    after = (await cluster.settle()).counters
    assert answer.finished.usage.cached_tokens == 512
    assert after["prefill_tokens"] - before["prefill_tokens"] == 40
    assert after["prefix_hit_tokens"] - before["prefix_hit_tokens"] == 512


async def test_one_forward_serves_decodes_and_prefill(cluster: Cluster) -> None:
    before = (await cluster.settle()).counters
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        answers = await asyncio.gather(
            *(read(stub.Generate(generate(prompt(20 + i, 150 + 60 * i), max_tokens=24))) for i in range(8))
        )
    after = (await cluster.settle()).counters
    assert all(len(answer.ids[0]) == 24 for answer in answers)
    assert after["mixed_steps"] > before["mixed_steps"]
    steps = after["steps"] - before["steps"]
    assert steps < 8 * 24 / 2, "eight streams must share their steps"
