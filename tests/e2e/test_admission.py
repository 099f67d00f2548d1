"""The door on a real cluster: deadlines, tenants, classes that shed and degrade, hints when to come back, over gRPC and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import httpx
import pytest
import pytest_asyncio
from cluster import Cluster, read
from google.rpc import error_details_pb2, status_pb2
from octavo.client import AsyncClient
from octavo.v1 import inference_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

KEYS = {"key-big": "big", "key-small": "small", "key-capped": "capped"}
CLASSES = {
    "default": {"ttft_ms": 60000},
    "shed": {"ttft_ms": 100, "on_overload": "reject"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    cluster = Cluster(
        tmp_path_factory.mktemp("door"),
        kvstore=False,
        settings={
            "scheduler.max_num_seqs": 2,
            "scheduler.slo_classes": CLASSES,
            "tenants.keys": KEYS,
            "tenants.admins": ["big"],
            "tenants.limits": {
                "small": {"rate_tokens_per_s": 5, "burst_tokens": 40},
                "capped": {"concurrency": 1, "kv_share": 0.5},
            },
            "gpuworker.labels": ["only"],
        },
    )
    try:
        await cluster.up()
        yield cluster
    finally:
        cluster.down()


def body(tokens: int, **more: object) -> dict[str, object]:
    return {"prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **more}


def details(error: grpc.aio.AioRpcError) -> tuple[str, float]:
    """(reason, seconds of RetryInfo or 0)."""
    trailer = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    reason, retry_s = "", 0.0
    for item in status_pb2.Status.FromString(trailer).details:
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if item.Unpack(info):
            reason = info.reason
        elif item.Unpack(retry):
            retry_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return reason, retry_s


async def busy(cluster: Cluster, key: str = "key-big", streams: int = 6) -> list[asyncio.Task[None]]:
    """Streams that fill both slots and the queue."""

    async def ask(number: int) -> None:
        async with AsyncClient(cluster.grpc_address, api_key=key) as client:
            await client.generate(f"{number} thoughts about the sea", max_tokens=400, ignore_eos=True)

    tasks = [asyncio.create_task(ask(number)) for number in range(streams)]
    async with asyncio.timeout(30):
        while (await cluster.status()).requests_waiting < streams - 2:
            await asyncio.sleep(0.05)
    return tasks


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_tenants_have_their_limits_and_status_shows_them(door: Cluster) -> None:
    async with httpx.AsyncClient(base_url=door.http_url, timeout=60) as http:
        small = {"Authorization": "Bearer key-small"}
        first = await http.post("/v1/completions", json=body(30), headers=small)
        assert first.status_code == 200
        second = await http.post("/v1/completions", json=body(30), headers=small)
        assert (second.status_code, second.json()["error"]["code"]) == (429, "rejected-tenant-tokens")
        assert 1 <= int(second.headers["retry-after"]) <= 10
        moment = (await http.get("/live", headers={"Authorization": "Bearer key-big"})).json()
    assert {item["tenant"] for item in moment["tenants"]} >= {"small", "capped"}
    status = await door.status()
    rows = {row.tenant: row for row in status.tenants}
    assert rows["small"].rejected == 1 and rows["small"].tokens_left < 40 and rows["capped"].concurrency == 1
    assert list(status.workers[0].labels) == ["only"]
    capped = await busy_one(door)
    async with AsyncClient(door.grpc_address, api_key="key-capped") as client:
        with pytest.raises(Exception) as caught:
            await client.generate("x", max_tokens=2, deadline_s=0.5)
    assert getattr(caught.value, "reason", "") == "rejected-tenant-concurrency"
    await stop(capped)


async def busy_one(cluster: Cluster) -> list[asyncio.Task[None]]:
    async def ask() -> None:
        async with AsyncClient(cluster.grpc_address, api_key="key-capped") as client:
            await client.generate("a long story", max_tokens=400, ignore_eos=True)

    task = asyncio.create_task(ask())
    async with asyncio.timeout(30):
        while not (await cluster.status()).requests_running:
            await asyncio.sleep(0.02)
    return [task]


async def test_overload_sheds_and_says_when_to_come_back(door: Cluster) -> None:
    await door.settle()
    async with httpx.AsyncClient(base_url=door.http_url, timeout=60) as http:
        http.headers["Authorization"] = "Bearer key-big"
        for _ in range(8):  # costs become known, and lengths that make the queue of `busy` a long one
            assert (await http.post("/v1/completions", json=body(64))).status_code == 200
        streams = await busy(door)
        shed = await http.post("/v1/completions", json=body(8), headers={"X-Octavo-Slo-Class": "shed"})
        assert (shed.status_code, shed.json()["error"]["code"]) == (429, "rejected-overload")
        assert int(shed.headers["retry-after"]) >= 1
        late = await http.post("/v1/completions", json=body(8, deadline_ms=5))
        assert (late.status_code, late.json()["error"]["code"]) == (504, "rejected-deadline")
        assert "retry-after" not in late.headers, "no wait makes 8 tokens fit into 5 ms"
        async with door.channel() as channel:
            call = door.inference(channel).Generate(
                pb.GenerateRequest(
                    text="x", context=pb.RequestContext(slo_class="shed"), options=pb.Options(max_tokens=8)
                ),
                metadata=(("authorization", "Bearer key-big"),),
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await read(call)
        reason, retry_s = details(caught.value)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason == "rejected-overload" and retry_s > 0
        await stop(streams)
    await door.settle()


async def test_a_deadline_in_decode_ends_a_stream_with_a_status_of_its_own(door: Cluster) -> None:
    await door.settle()
    async with door.channel() as channel:
        call = door.inference(channel).Generate(
            pb.GenerateRequest(
                text="Once upon a time",
                context=pb.RequestContext(deadline_ms=700),
                options=pb.Options(max_tokens=1500, ignore_eos=True),
            ),
            metadata=(("authorization", "Bearer key-big"),),
        )
        deltas = 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for event in call:
                deltas += event.WhichOneof("event") == "delta"
                assert event.WhichOneof("event") != "finished"
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    reason, _retry_s = details(caught.value)
    assert reason in ("evicted-deadline", "rejected-deadline") and (deltas > 0) == (reason == "evicted-deadline")
    await door.settle()
    assert (await door.status()).counters["start_predictions"] > 0
