"""The SDK's one stream per gateway against real processes: what a plain call promises, every call of a session keeps."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest
from cluster import SOURCES, Cluster, read
from octavo.client import AsyncClient, AsyncStream
from octavo.errors import Cancelled, DeadlineExceeded, OctavoError
from octavo.v1 import inference_pb2 as pb
from octavo_cli.engine_bench.child import Child
from octavo_cli.spans import read_spans

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


def prompt(i: int, length: int = 20) -> list[int]:
    return [1000 + (i * 7919 + k * 41) % 40000 for k in range(length)]


async def to_end(stream: AsyncStream, cancel_after: int = 0) -> str:
    """How it ended; `cancel_after` chunks the client leaves."""
    chunks = 0
    async with stream:
        async for _chunk in stream:
            chunks += 1
            if chunks == cancel_after:
                return "left"
    return "finished"


async def test_200_calls_on_one_stream_some_of_which_leave(cluster: Cluster) -> None:
    options: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "temperature": 0.0}
    async with AsyncClient(cluster.grpc_address) as client:
        streams = [client.generate_stream(prompt(i), request_id=f"many-{i}", **options) for i in range(200)]
        ends = await asyncio.gather(*(to_end(stream, 2 if i % 5 == 0 else 0) for i, stream in enumerate(streams)))
        assert client.multiplexed
    assert ends == ["left" if i % 5 == 0 else "finished" for i in range(200)]
    for stream in streams:
        done = stream.completion
        if done is not None:
            assert len(done.choices[0].token_ids) == done.usage.completion_tokens == 24
            assert done.finish_reason == "length" and done.resumes == 0
            assert done.cost.decode_device_us > 0
    status = await cluster.settle()
    assert not status.requests_running
    await asyncio.sleep(0.5)  # the exporters' last batch
    spans = read_spans(cluster.run_dir)
    for stream in streams[1:5]:
        names = [span.name for span in spans if span.trace_id == stream.trace_id]
        assert names.count("request") == 1 and {"tokenize", "queue", "prefill", "decode", "detokenize"} <= set(names)
    assert len({stream.trace_id for stream in streams if stream.trace_id}) == 200


async def test_a_call_says_what_a_plain_one_says(cluster: Cluster) -> None:
    async with cluster.channel() as channel, AsyncClient(cluster.grpc_address) as client:
        stub = cluster.inference(channel)
        for i in range(3):
            request = pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=prompt(i, 40)),
                sampling=pb.Sampling(temperature=0.8, seed=i),
                options=pb.Options(max_tokens=20, n=2, logprobs=2),
                context=pb.RequestContext(cache_salt=f"plain-{i}"),
            )
            plain = await read(stub.Generate(request))
            ours = await client.generate(
                prompt(i, 40), temperature=0.8, seed=i, max_tokens=20, n=2, logprobs=2, cache_salt=f"session-{i}"
            )
            assert {choice.index: list(choice.token_ids) for choice in ours.choices} == plain.ids
            assert {choice.index: choice.text for choice in ours.choices} == plain.texts
            usage = plain.finished.usage
            assert ours.usage.prompt_tokens == usage.prompt_tokens
            assert ours.usage.completion_tokens == usage.completion_tokens
            assert [len(choice.logprobs) for choice in ours.choices] == [len(ids) for ids in plain.ids.values()]
            assert ours.cost.saved_sibling_tokens == plain.finished.cost.saved_sibling_tokens
            assert ours.cost.prefill_device_us > 0 and ours.timings.t_first_token_us > 0
    await cluster.settle()


async def test_deadline_cancel_pause_and_resume(cluster: Cluster) -> None:
    async with AsyncClient(cluster.grpc_address) as client:
        late = client.generate_stream(prompt(1), max_tokens=4000, ignore_eos=True, deadline_s=1.0)
        long = client.generate_stream(prompt(2), max_tokens=4000, ignore_eos=True, request_id="long")
        ending = asyncio.create_task(late.result())
        assert (await anext(long)).token_ids
        with pytest.raises(DeadlineExceeded):
            await ending
        assert (await anext(long)).token_ids  # the others go on
        stopped = await long.cancel()
        assert stopped.found and stopped.blocks_freed
        with pytest.raises(Cancelled):
            await long.result()
        first = await client.generate(
            prompt(3, 64), max_tokens=8, ignore_eos=True, request_id="turn", pause={"tool": "search", "expected_ms": 50}
        )
        assert (await client.pause("turn", "search", 50)).found
        longer = [*prompt(3, 64), *first.choices[0].token_ids, *prompt(4, 8)]
        second = await client.generate(longer, max_tokens=8, ignore_eos=True, resumes="turn")
        assert second.usage.cached_tokens >= 64
    await cluster.settle()


async def test_a_client_that_is_killed_leaves_nothing_behind(cluster: Cluster) -> None:
    program = f"""
import asyncio, octavo
async def main():
    async with octavo.AsyncClient({cluster.grpc_address!r}) as client:
        streams = [client.generate_stream([1000 + i, 7], max_tokens=4000, ignore_eos=True) for i in range(8)]
        await asyncio.gather(*(stream.result() for stream in streams))
asyncio.run(main())
"""
    before = (await cluster.status()).counters["requests_cancelled"]
    client = subprocess.Popen([sys.executable, "-c", program], env={"PYTHONPATH": SOURCES})
    async with asyncio.timeout(60):
        while (await cluster.status()).requests_running != 8:
            await asyncio.sleep(0.05)
    client.send_signal(signal.SIGKILL)
    client.wait()
    status = await cluster.settle()
    assert status.counters["requests_cancelled"] == before + 8


async def test_calls_go_on_when_the_gateway_is_killed(cluster: Cluster) -> None:
    async with AsyncClient(cluster.grpc_address) as client:
        streams = [
            client.generate_stream(prompt(50 + i), max_tokens=200, ignore_eos=True, temperature=0.0) for i in range(8)
        ]
        for stream in streams:
            await anext(stream)
        reading = [asyncio.create_task(stream.result()) for stream in streams]
        cluster.kill("gateway")
        cluster.start("gateway")
        answers = await asyncio.gather(*reading)
        assert client.multiplexed
        await cluster.wait_ready()
        await client.generate(prompt(60), max_tokens=2)
        cluster.kill("gateway", signal.SIGTERM)  # a session without calls does not hold a drain up
        assert cluster.processes["gateway"].returncode == 0
        assert "drain: " not in cluster.log_text("gateway")
        cluster.start("gateway")
        await cluster.wait_ready()
        assert (await client.generate(prompt(60), max_tokens=2)).usage.completion_tokens
    assert all(done.resumes for done in answers)
    assert [len(done.choices[0].token_ids) for done in answers] == [200] * 8
    assert all(done.usage.completion_tokens == 200 for done in answers)
    await cluster.settle()


async def test_the_benchs_client_times_first_tokens_on_one_session(cluster: Cluster) -> None:
    def measured() -> list[float]:
        with Child.of_module("the client", "octavo_cli.engine_bench.client_child", [cluster.grpc_address]) as child:
            with pytest.raises(OctavoError, match="say open first"):
                child.ask(do="ask", seed=1)
            asked = [child.ask(do=what, seed=seed) for seed, what in enumerate(("open", "ask", "ask", "open"))]
            with pytest.raises(OctavoError, match="the client: KeyError"):
                child.ask(do="ask")
            return [answer["seconds"] for answer in asked]

    before = dict((await cluster.status()).counters)["requests_finished"]
    seconds = await asyncio.to_thread(measured)
    assert len(seconds) == 4 and all(0 < each < 60 for each in seconds)
    assert dict((await cluster.status()).counters)["requests_finished"] == before + 4
