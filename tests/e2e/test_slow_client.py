"""A client that stops reading loses its own request, with a reason of its own; the others never notice."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable

import grpc.aio
import psutil
import pytest
from cluster import Cluster, read
from octavo.v1 import inference_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def generate(i: int, max_tokens: int, logprobs: int | None = None) -> pb.GenerateRequest:
    ids = [1000 + (i * 7919 + k * 41) % 40000 for k in range(20)]
    options = pb.Options(max_tokens=max_tokens, ignore_eos=True)
    if logprobs is not None:
        options.logprobs = logprobs  # makes each delta large, so that the transport's buffers fill within seconds
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=pb.Sampling(temperature=0.0), options=options)


async def test_grpc_client_that_stops_reading(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings={"gateway.slow_client_timeout_s": 3.0})
    await cluster.up()
    options = [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0), ("grpc.http2.write_buffer_size", 1)]
    async with (
        grpc.aio.insecure_channel(cluster.grpc_address, options=options) as slow_channel,
        cluster.channel() as channel,
    ):
        slow = cluster.inference(slow_channel).Generate(generate(0, 6000, logprobs=20))
        async for response in slow:
            if response.WhichOneof("event") == "delta":
                break
        answers = await asyncio.gather(
            *(read(cluster.inference(channel).Generate(generate(i, 60))) for i in range(1, 17))
        )
        assert all(len(answer.ids[0]) == 60 for answer in answers)
        memory = psutil.Process(cluster.processes["gateway"].pid).memory_info().rss
        async with asyncio.timeout(90):
            while (await cluster.status()).requests_running:
                await asyncio.sleep(0.2)
        assert psutil.Process(cluster.processes["gateway"].pid).memory_info().rss - memory < 64 * 2**20
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in slow:
                pass
        assert caught.value.code() != grpc.StatusCode.OK
    assert "slow_client" in cluster.log_text("gateway")
    await cluster.settle()


async def test_http_client_that_stops_reading(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings={"gateway.slow_client_timeout_s": 3.0})
    await cluster.up()
    body = json.dumps(
        {"model": "smollm2", "prompt": "Once", "max_tokens": 6000, "ignore_eos": True, "stream": True, "logprobs": 5}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", cluster.ports["http"]))
        await asyncio.to_thread(slow.sendall, head + body)
        await asyncio.to_thread(slow.recv, 200)
        async with cluster.channel() as channel:
            answers = await asyncio.gather(
                *(read(cluster.inference(channel).Generate(generate(i, 60))) for i in range(1, 17))
            )
        assert all(len(answer.ids[0]) == 60 for answer in answers)
        async with asyncio.timeout(90):
            while (await cluster.status()).requests_running:
                await asyncio.sleep(0.2)
    assert "slow_client" in cluster.log_text("gateway")
    await cluster.settle()
