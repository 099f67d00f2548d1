"""max_num_seqs, max_model_len and max_num_batched_tokens are three settings; block sizes and both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc.aio
import pytest
from cluster import Cluster, read
from octavo.v1 import inference_pb2 as pb

pytestmark = pytest.mark.e2e


def generate(length: int, max_tokens: int) -> pb.GenerateRequest:
    ids = [1000 + (i * 37) % 40000 for i in range(length)]
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.Sampling(temperature=0.0),
        options=pb.Options(max_tokens=max_tokens, ignore_eos=True),
    )


@pytest.mark.timeout(400)
async def test_6000_plus_1000_tokens_run_in_chunks_of_512(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(
        settings={"scheduler.max_num_batched_tokens": 512, "scheduler.max_num_batched_tokens_alone": 512}
    )
    await cluster.up()
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        counts = await stub.CountTokens(pb.CountTokensRequest(text="x"))
        assert counts.max_model_len == 8192
        answer = await read(stub.Generate(generate(6000, 1000)))
    status = await cluster.settle(30)
    assert len(answer.ids[0]) == 1000
    assert status.counters["prefill_tokens"] == 6000
    assert status.counters["steps"] >= 1000 - 1 + 12  # 6000 tokens in chunks of 512 are 12 steps


@pytest.mark.parametrize(("block_tokens", "loop"), [(8, "asyncio"), (32, "uvloop")])
async def test_small_limits_hold(make_cluster: Callable[..., Cluster], block_tokens: int, loop: str) -> None:
    cluster = make_cluster(
        settings={
            "engine.kv_block_tokens": block_tokens,
            "deployment.event_loop": loop,
            "engine.max_model_len": 256,
            "scheduler.max_num_seqs": 2,
        }
    )
    await cluster.up()
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(stub.Generate(generate(250, 7)))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        fits = await read(stub.Generate(generate(250, 6)))
        assert len(fits.ids[0]) == 6
        running = [asyncio.create_task(read(stub.Generate(generate(20 + i, 60)))) for i in range(5)]
        most = 0
        while not all(task.done() for task in running):
            most = max(most, *(worker.running for worker in (await cluster.status()).workers))
            await asyncio.sleep(0.02)
        assert [len((await task).ids[0]) for task in running] == [60] * 5
        assert 1 <= most <= 2
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            request = generate(20, 4)
            request.options.n = 3
            await read(stub.Generate(request))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    await cluster.settle()
