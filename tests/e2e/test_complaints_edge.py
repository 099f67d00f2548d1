"""Complaints about identity, isolation, ends of streams, overload, traces and readiness, and races at the gateway's edge."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import psutil
import pytest
import uvloop
from cluster import Cluster, read
from octavo.client import AsyncClient, AsyncStream
from octavo.errors import Cancelled, InvalidRequest, OctavoError, Overloaded
from octavo.v1 import inference_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

COMPLETIONS = "/v1/completions"


def generate(request_id: str = "", max_tokens: int = 16, key: str = "", **options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        context=pb.RequestContext(request_id=request_id, idempotency_key=key),
        text=options.pop("text", "Once upon a time"),
        sampling=pb.Sampling(temperature=1.0),
        options=pb.Options(max_tokens=max_tokens, ignore_eos=True, **options),
    )


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True, **fields}


async def outcome(call: Any) -> Any:
    """The Answer, or the status code that the call ended with."""
    try:
        return await read(call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    except asyncio.CancelledError:
        return grpc.StatusCode.CANCELLED


async def metric(cluster: Cluster, name: str) -> float:
    async with httpx.AsyncClient() as client:
        lines = (await client.get(cluster.http_url + "/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)


# -- 6: a failure never looks like success -------------------------------------------------------------------------


async def test_an_ended_http_stream_has_an_error_event_and_no_done(cluster: Cluster) -> None:
    body = completion(max_tokens=4000, stream=True)
    lines: list[str] = []
    async with (
        httpx.AsyncClient(base_url=cluster.http_url, timeout=60) as client,
        cluster.channel() as channel,
        client.stream("POST", COMPLETIONS, json=body, headers={"x-request-id": "ended-1"}) as response,
    ):
        async for line in response.aiter_lines():
            if not line:
                continue
            lines.append(line)
            if len(lines) == 3:
                answer = await cluster.inference(channel).Cancel(pb.CancelRequest(request_id="ended-1"))
                assert answer.found
    assert "[DONE]" not in "".join(lines)
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert error["code"] == "client_cancel"
    assert sum('"error"' in line for line in lines) == 1
    await cluster.settle()


@pytest.mark.parametrize("manner", ["reset", "half-close"])
async def test_a_client_that_resets_or_half_closes(cluster: Cluster, manner: str) -> None:
    before = (await cluster.settle()).counters["requests_cancelled"]
    body = json.dumps(completion(max_tokens=3000, stream=True)).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", cluster.ports["http"])) as connection:
        await asyncio.to_thread(connection.sendall, head.encode() + body)
        await asyncio.to_thread(connection.recv, 500)
        if manner == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            connection.close()
        else:
            connection.shutdown(socket.SHUT_WR)
        status = await cluster.settle()
    assert status.counters["requests_cancelled"] == before + 1


# -- 9: one id, one generation -------------------------------------------------------------------------------------


async def test_fifty_requests_of_one_id_at_once_are_one_generation(cluster: Cluster) -> None:
    before = (await cluster.settle()).counters
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        answers = await asyncio.gather(*(read(stub.Generate(generate("dup-50", 32))) for _ in range(50)))
    assert len({tuple(answer.ids[0]) for answer in answers}) == 1
    assert {answer.request_id for answer in answers} == {"dup-50"}
    assert all(answer.terminals == 1 and len(answer.ids[0]) == 32 for answer in answers)
    after = (await cluster.settle()).counters
    assert after["requests_finished"] - before["requests_finished"] == 1
    assert await metric(cluster, "octavo_gateway_live_requests") == 0


async def test_fifty_bodies_of_one_id_at_once_run_once(cluster: Cluster) -> None:
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        ends = await asyncio.gather(
            *(outcome(stub.Generate(generate("dup-bodies", 24, text=f"Body {i % 5}"))) for i in range(50))
        )
    answers = [end for end in ends if not isinstance(end, grpc.StatusCode)]
    assert len(answers) == 10
    assert len({tuple(answer.ids[0]) for answer in answers}) == 1
    assert {end for end in ends if isinstance(end, grpc.StatusCode)} == {grpc.StatusCode.ALREADY_EXISTS}
    await cluster.settle()


async def test_a_key_is_for_one_kind_of_request(cluster: Cluster) -> None:
    async with AsyncClient(cluster.grpc_address) as client:
        first = await client.generate("Hi", idempotency_key="kind-1", max_tokens=4)
        again = await client.generate("Hi", idempotency_key="kind-1", max_tokens=4)
        assert again.choices[0].token_ids == first.choices[0].token_ids
        for attempt in (
            client.chat("Hi", idempotency_key="kind-1", max_tokens=4),
            client.generate("Hi", idempotency_key="kind-1", max_tokens=5),
        ):
            with pytest.raises(OctavoError) as caught:
                await attempt
            assert caught.value.status == grpc.StatusCode.ALREADY_EXISTS


async def test_an_attach_storm_with_cancels_in_it(cluster: Cluster) -> None:
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        owner = asyncio.create_task(outcome(stub.Generate(generate("storm", 60))))
        await until(lambda: True)
        calls = [stub.Attach(pb.AttachRequest(request_id="storm", from_byte=i % 7)) for i in range(60)]
        readers = [asyncio.create_task(outcome(call)) for call in calls]
        await asyncio.sleep(0.2)
        for call in calls[::2]:
            call.cancel()
        ends = await asyncio.gather(*readers)
        whole = await owner
    assert whole.terminals == 1
    assert len(whole.ids[0]) == 60
    for i, end in enumerate(ends):
        if isinstance(end, grpc.StatusCode):
            assert end in (grpc.StatusCode.CANCELLED, grpc.StatusCode.NOT_FOUND)
            assert i % 2 == 0 or end is grpc.StatusCode.NOT_FOUND  # asked before the owner's own submit arrived
        else:
            want = whole.texts[0].encode()[i % 7 :].decode("utf-8", "ignore")
            assert end.texts[0] == want
    await cluster.settle()


async def test_cancel_while_attaching_ends_everybody_once(cluster: Cluster) -> None:
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        for i in range(10):
            name = f"race-{i}"
            owner = stub.Generate(generate(name, 3000))
            await anext(aiter(owner))
            readers = [asyncio.create_task(outcome(stub.Attach(pb.AttachRequest(request_id=name)))) for _ in range(3)]
            cancels = [stub.Cancel(pb.CancelRequest(request_id=name)) for _ in range(3)]
            answers = [await call for call in cancels]
            assert any(answer.found for answer in answers)
            assert {answer.outcome for answer in answers if answer.found} == {"cancelled"}
            ends = [await outcome(owner), *await asyncio.gather(*readers)]
            assert ends[0] is grpc.StatusCode.CANCELLED
            assert set(ends) <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.NOT_FOUND}
    await cluster.settle()


async def test_a_deadline_of_one_millisecond(cluster: Cluster) -> None:
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        requests = [generate(f"late-{i}", 100) for i in range(30)]
        for request in requests:
            request.context.deadline_ms = 1
        ends = await asyncio.gather(*(outcome(stub.Generate(request)) for request in requests))
        timed = await asyncio.gather(
            *(outcome(stub.Generate(generate(max_tokens=100), timeout=0.001)) for _ in range(30))
        )
    assert set(ends) == set(timed) == {grpc.StatusCode.DEADLINE_EXCEEDED}
    await cluster.settle()


# -- 14: overload is told, at once, with a time to come back -------------------------------------------------------


async def test_overload_and_a_flood_of_tiny_requests(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings={"scheduler.max_waiting_requests": 40, "scheduler.max_num_seqs": 4})
    await cluster.up()
    gateway = psutil.Process(cluster.processes["gateway"].pid)

    async def flood(count: int, at_once: int) -> dict[str, int]:
        gate, ends = asyncio.Semaphore(at_once), {"finished": 0, "shed": 0}

        async def one(i: int) -> None:
            async with gate:
                try:
                    answer = await read(stub.Generate(generate(max_tokens=1, text=f"{i}")))
                    ends["finished"] += answer.terminals
                except grpc.aio.AioRpcError as error:
                    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                    ends["shed"] += 1

        await asyncio.gather(*(one(i) for i in range(count)))
        return ends

    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        assert await flood(200, 20) == {"finished": 200, "shed": 0}
        memory = gateway.memory_info().rss
        ends = await flood(1500, 300)
        assert sum(ends.values()) == 1500
        assert ends["shed"] > 0
        assert gateway.memory_info().rss - memory < 48 * 2**20
        assert await flood(100, 20) == {"finished": 100, "shed": 0}
        calls = [stub.Generate(generate(max_tokens=2000)) for _ in range(60)]
        readers = [asyncio.create_task(outcome(call)) for call in calls]
        async with asyncio.timeout(20):
            while (await cluster.status()).requests_waiting < 40:
                await asyncio.sleep(0.05)
        async with httpx.AsyncClient(base_url=cluster.http_url) as http:
            shed = await http.post(COMPLETIONS, json=completion())
        assert (shed.status_code, shed.json()["error"]["code"]) == (429, "rejected-queue-requests")
        assert int(shed.headers["retry-after"]) >= 1
        async with AsyncClient(cluster.grpc_address, deadline_s=0.5) as client:
            with pytest.raises(Overloaded) as caught:
                await client.generate("x", max_tokens=1)
        assert caught.value.retry_after_s >= 0.1  # by the rate at which the queue drained so far
        for call in calls:
            call.cancel()
        await asyncio.gather(*readers)
    await cluster.settle(30)


# -- tenants, and what is never written down -----------------------------------------------------------------------

MARK = "xylophone-marzipan-7731"


async def test_tenants_never_meet_and_text_is_never_logged(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(
        settings={
            "tenants.keys": {"sk-a": "alice", "sk-b": "bob", "sk-d": "default"},
            "deployment.log_level": "debug",
        }
    )
    await cluster.up()
    cluster.start("gateway2")
    await cluster.wait_ready(url=f"http://127.0.0.1:{cluster.ports['http2']}")
    second = f"127.0.0.1:{cluster.ports['grpc2']}"
    alice, bob, default = ((("authorization", f"Bearer sk-{name}"),) for name in "abd")
    async with cluster.channel() as channel, cluster.channel(second) as channel2:
        stub, stub2 = cluster.inference(channel), cluster.inference(channel2)
        mine = stub.Generate(generate("shared-name", 600, "shared-key", text=f"Alice says {MARK}"), metadata=alice)
        await anext(aiter(mine))
        for other in (bob, default):
            for gateway in (stub, stub2):
                for name in ("shared-name", "alice/shared-name"):
                    try:
                        answer = await gateway.Cancel(pb.CancelRequest(request_id=name), metadata=other)
                        assert not answer.found
                    except grpc.aio.AioRpcError as error:
                        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT  # no slash in an id
                for asked in ({"request_id": "shared-name"}, {"idempotency_key": "shared-key"}):
                    end = await outcome(gateway.Attach(pb.AttachRequest(**asked), metadata=other))
                    assert end is grpc.StatusCode.NOT_FOUND
        theirs = await read(stub2.Generate(generate("shared-name", 4, "shared-key", text="Bob"), metadata=bob))
        assert len(theirs.ids[0]) == 4
        attached = stub2.Attach(pb.AttachRequest(idempotency_key="shared-key"), metadata=alice)
        await anext(aiter(attached))
        answer = await stub2.Cancel(pb.CancelRequest(request_id="shared-name"), metadata=alice)
        assert (answer.found, answer.outcome) == (True, "cancelled")
        assert await outcome(mine) is grpc.StatusCode.CANCELLED
        assert await outcome(attached) is grpc.StatusCode.CANCELLED
        same = [f"{MARK} " * 20] * 2
        answers = [
            await read(stub.Generate(generate(max_tokens=2, text=same[0]), metadata=tenant)) for tenant in (alice, bob)
        ]
        assert answers[0].finished.usage.cached_tokens == answers[1].finished.usage.cached_tokens == 0
        again = await read(stub.Generate(generate(max_tokens=2, text=same[1]), metadata=alice))
        assert again.finished.usage.cached_tokens > 0
        async with httpx.AsyncClient(base_url=cluster.http_url, timeout=30) as http:
            assert (await http.get("/v1/models")).status_code == 401
            key = {"authorization": "Bearer sk-a"}
            chat = {"messages": [{"role": "user", "content": MARK}], "max_tokens": 4}
            assert (await http.post("/v1/chat/completions", json=chat, headers=key)).status_code == 200
            bad = completion(prompt=MARK, stop=[MARK, ""])
            assert (await http.post(COMPLETIONS, json=bad, headers=key)).status_code == 400
            broken = f'{{"prompt": "{MARK}", "temperature": NaN}}'
            headers = {**key, "content-type": "application/json"}
            assert (await http.post(COMPLETIONS, content=broken, headers=headers)).status_code == 400
            assert (await http.post("/tokenize", json={"prompt": MARK}, headers=key)).status_code == 200
    await cluster.settle()
    cluster.down()
    texts = [path for path in cluster.run_dir.rglob("*") if path.suffix in (".log", ".jsonl", ".json")]
    assert {path.suffix for path in texts} >= {".log", ".jsonl"}
    for path in texts:
        content = path.read_bytes()
        for secret in (MARK.encode(), MARK.split("-")[1].encode(), b"sk-a"):
            assert secret not in content, (path, secret)


# -- 30: traces ----------------------------------------------------------------------------------------------------


def spans_of(run_dir: Path) -> list[dict[str, Any]]:
    """Every span in the run folder's OTLP-JSON files."""
    found = []
    for path in run_dir.glob("traces-*.jsonl"):
        for line in path.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    found += scope["spans"]
    return found


PARENT = "00-{}-b7ad6b7169203331-{}"


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (PARENT.format("1a" * 16, "01"), True),
        (PARENT.format("2b" * 16, "00"), True),
        ("", False),
        ("00-zz-1-01", False),
        (PARENT.format("00" * 16, "01"), False),
        ("\u00fc" * 55, False),
    ],
)
async def test_one_root_whatever_the_traceparent(cluster: Cluster, given: str, same: bool) -> None:
    headers = {"traceparent": given.encode("latin-1")} if given else {}
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=60) as client:
        response = await client.post(COMPLETIONS, json=completion(n=2, temperature=1), headers=headers)
    assert response.status_code == 200
    trace_id = response.headers["x-octavo-trace-id"]
    assert (trace_id == given[3:35]) is same

    def tree() -> list[dict[str, Any]]:
        return [span for span in spans_of(cluster.run_dir) if span["traceId"] == trace_id]

    if given.endswith("-00"):
        await asyncio.sleep(0.5)
        assert tree() == []
        return
    wanted = {"request", "tokenize", "queue", "prefill", "decode"}
    await until(lambda: wanted <= {span["name"] for span in tree()})
    spans = tree()
    roots = [span for span in spans if span["name"] == "request"]
    assert len(roots) == 1
    assert roots[0].get("parentSpanId", "") == ("b7ad6b7169203331" if same else "")
    children = [span for span in spans if span is not roots[0]]
    assert {span["parentSpanId"] for span in children} == {roots[0]["spanId"]}
    slack = 5_000_000
    for span in children:
        assert int(roots[0]["startTimeUnixNano"]) - slack <= int(span["startTimeUnixNano"])
        assert int(span["endTimeUnixNano"]) <= int(roots[0]["endTimeUnixNano"]) + slack


# -- 32: readiness -------------------------------------------------------------------------------------------------


async def test_alive_before_ready_and_bad_input_is_told_so_meanwhile(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(kvstore=False)
    cluster.start("scheduler")
    cluster.start("gateway")
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=30) as http, cluster.channel() as channel:
        async with asyncio.timeout(60):
            while True:
                try:
                    assert (await http.get("/health")).status_code == 200
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
        assert (await http.get("/ready")).status_code == 503
        assert (await http.post(COMPLETIONS, json=completion(temperature=-1))).status_code == 400
        early = await http.post(COMPLETIONS, json=completion())
        assert (early.status_code, int(early.headers["retry-after"]) >= 1) == (503, True)
        stub = cluster.inference(channel)
        assert await outcome(stub.Generate(generate(max_tokens=0))) is grpc.StatusCode.INVALID_ARGUMENT
        assert await outcome(stub.Generate(generate())) is grpc.StatusCode.UNAVAILABLE
        cluster.start("gpuworker0")
        await cluster.wait_ready()
        first = await http.post(COMPLETIONS, json=completion())
        assert first.status_code == 200


# -- the SDK -------------------------------------------------------------------------------------------------------


async def test_the_sdk_on_uvloop(cluster: Cluster) -> None:
    async def session() -> tuple[str, str, bool]:
        async with AsyncClient(cluster.grpc_address) as client:
            whole = await client.chat("Count to five.", max_tokens=16, temperature=0.0)
            async with client.chat_stream("Count to five.", max_tokens=16, temperature=0.0) as stream:
                text = "".join([chunk.text async for chunk in stream])
            async with client.generate_stream("Once", max_tokens=2000, ignore_eos=True) as long:
                await anext(aiter(long))
                cancelled = await long.cancel()
                with pytest.raises(Cancelled):
                    await long.result()
            return whole.text, text, cancelled.found

    whole, text, found = await asyncio.to_thread(lambda: uvloop.run(session()))
    assert (whole, found) == (text, True)
    await cluster.settle()


async def test_the_sdk_names_the_field_of_a_request_that_is_too_large(cluster: Cluster) -> None:
    async with AsyncClient(cluster.grpc_address) as client:
        with pytest.raises(InvalidRequest) as caught:
            await client.generate("x" * 10 * 2**20)
    assert caught.value.field == "body"


async def test_a_replay_of_many_logprobs_fits_its_messages(cluster: Cluster) -> None:
    async with AsyncClient(cluster.grpc_address) as client:
        options: dict[str, Any] = {"max_tokens": 300, "n": 8, "logprobs": 20, "ignore_eos": True, "temperature": 1.0}
        first = await client.generate("Once", request_id="replay-many", **options)
        again = await client.generate("Once", request_id="replay-many", **options)
    assert [choice.token_ids for choice in again.choices] == [choice.token_ids for choice in first.choices]
    assert [len(choice.logprobs) for choice in again.choices] == [300] * 8


async def test_a_stalled_sdk_stream_ends_alone_beside_others_of_its_own_channel(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(settings={"gateway.slow_client_timeout_s": 2.0})
    await cluster.up()
    async with AsyncClient(cluster.grpc_address, multiplex=False) as client:
        slow = client.generate_stream("Once", max_tokens=6000, ignore_eos=True, logprobs=20)
        await stalls_beside_others(cluster, client, slow)
        with pytest.raises(Cancelled) as caught:
            await slow.result()
        assert caught.value.reason == "slow_client"
    async with AsyncClient(cluster.grpc_address) as client:
        # on a shared stream the client goes on reading: the answer waits here, whole
        slow = client.generate_stream("Once", max_tokens=400, ignore_eos=True, logprobs=20)
        await stalls_beside_others(cluster, client, slow)
        answer = await slow.result()
        assert answer.usage.completion_tokens == len(answer.choices[0].logprobs) == 400
    await cluster.settle()


async def stalls_beside_others(cluster: Cluster, client: AsyncClient, slow: AsyncStream) -> None:
    """Nobody reads `slow` past its first event; returns once nothing runs any more."""
    await anext(aiter(slow))
    stalled = asyncio.create_task(cluster_idle(cluster))
    done = [
        await asyncio.gather(*(client.generate(f"Tale {i}", max_tokens=24, ignore_eos=True) for i in range(16)))
        for _ in range(2)
    ]
    assert all(answer.usage.completion_tokens == 24 for answers in done for answer in answers)
    await stalled


async def cluster_idle(cluster: Cluster) -> None:
    """Returns once nothing runs."""
    async with asyncio.timeout(90):
        while True:
            await asyncio.sleep(0.2)
            status = await cluster.status()
            if not status.requests_running and not status.requests_waiting:
                return
