"""Cancel reaches the worker's next iteration boundary, and every block comes back."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import grpc.aio
import httpx
import pytest
from cluster import Cluster, read
from octavo.v1 import inference_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


def generate(request_id: str = "", length: int = 20, max_tokens: int = 4000, n: int = 1) -> pb.GenerateRequest:
    ids = [1000 + (i * 41) % 40000 for i in range(length)]
    return pb.GenerateRequest(
        context=pb.RequestContext(request_id=request_id),
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.Sampling(temperature=0.7, seed=5),
        options=pb.Options(max_tokens=max_tokens, ignore_eos=True, n=n),
    )


async def first_deltas(call: Any, count: int) -> None:
    seen = 0
    async for response in call:
        seen += response.WhichOneof("event") == "delta"
        if seen >= count:
            return


async def running(cluster: Cluster, want: int, timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while (await cluster.status()).requests_running != want:
            await asyncio.sleep(0.02)


async def test_cancel_rpc_answers_with_step_and_blocks(cluster: Cluster) -> None:
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        call = stub.Generate(generate("cancel-1", length=100))
        await first_deltas(call, 3)
        answer = await stub.Cancel(pb.CancelRequest(request_id="cancel-1", reason="test"))
        assert answer.found
        assert answer.outcome == "cancelled"
        assert answer.blocks_freed >= 100 // 16
        assert answer.last_step > 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await first_deltas(call, 10_000)
        assert caught.value.code() == grpc.StatusCode.CANCELLED
        again = await stub.Cancel(pb.CancelRequest(request_id="cancel-1"))
        unknown = await stub.Cancel(pb.CancelRequest(request_id="never-was"))
        assert not unknown.found
        assert again.outcome in ("", "cancelled")
    await cluster.settle()


@pytest.mark.parametrize("deltas", [0, 1, 5])
async def test_closing_the_stream_stops_the_work(cluster: Cluster, deltas: int) -> None:
    async with cluster.channel() as channel:
        call = cluster.inference(channel).Generate(generate(length=400 if deltas == 0 else 20))
        if deltas:
            await first_deltas(call, deltas)
        else:
            await asyncio.sleep(0.05)
        call.cancel()
        await cluster.settle()


async def test_n3_and_queued_requests_are_cancelled_too(cluster: Cluster) -> None:
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        calls = [stub.Generate(generate(n=3)) for _ in range(14)]
        readers = [asyncio.create_task(first_deltas(call, 10_000)) for call in calls]
        async with asyncio.timeout(60):
            while not ((status := await cluster.status()).requests_waiting and status.requests_running):
                await asyncio.sleep(0.02)
        for call in calls:
            call.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await cluster.settle()


async def test_200_cancels_at_once(cluster: Cluster) -> None:
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        calls = [stub.Generate(generate(length=10 + i % 50)) for i in range(200)]
        readers = [asyncio.create_task(first_deltas(call, 10_000)) for call in calls]
        await asyncio.sleep(1.0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await cluster.settle(30)


@pytest.mark.parametrize("stream", [False, True])
async def test_broken_http_connection_stops_the_work(cluster: Cluster, stream: bool) -> None:
    before = (await cluster.status()).counters["requests_cancelled"]
    body = json.dumps(
        {"model": "smollm2", "prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", cluster.ports["http"])) as connection:
        await asyncio.to_thread(connection.sendall, head + body)
        await running(cluster, 1)
    status = await cluster.settle()
    assert status.counters["requests_cancelled"] == before + 1


async def test_third_request_is_served_after_two_clients_died(cluster: Cluster) -> None:
    async with httpx.AsyncClient(base_url=cluster.http_url) as client:
        for _ in range(2):
            async with client.stream(
                "POST",
                "/v1/completions",
                json={"model": "smollm2", "prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True},
            ) as response:
                lines = response.aiter_lines()
                for _ in range(3):
                    await anext(lines)
        answer = await client.post(
            "/v1/completions", json={"model": "smollm2", "prompt": "Once", "max_tokens": 4}, timeout=30
        )
        assert answer.status_code == 200
    await cluster.settle()


async def test_deadline_is_its_own_outcome_never_length(cluster: Cluster) -> None:
    before = (await cluster.status()).counters["requests_deadline"]
    request = generate(max_tokens=4000)
    request.context.deadline_ms = 1500
    async with cluster.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(cluster.inference(channel).Generate(request))
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await cluster.settle()).counters["requests_deadline"] == before + 1
