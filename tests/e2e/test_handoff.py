"""Two worker processes, one prefills and one decodes: same tokens as one worker, less than a block recomputed, nothing left
behind when either is killed; preemption with swap in a small pool; a tool pause and its resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from cluster import Answer, Cluster, read
from octavo.client import AsyncClient
from octavo.ttft import PARTS
from octavo.v1 import inference_pb2 as pb
from octavo_cli.spans import Span, read_spans

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

SETTINGS = {
    # ties within bfloat16 rounding would make a moved greedy stream diverge; float32 leaves none on these prompts
    "engine.dtype": "float32",
    "engine.kv_dtype": "float32",
    "engine.kv_num_blocks": 49,
    "engine.threads": 1,
    "scheduler.max_num_batched_tokens": 64,
    "scheduler.max_num_batched_tokens_alone": 64,
}
ROLES = {"gpuworker0": {"gpuworker.role": "prefill"}, "gpuworker1": {"gpuworker.role": "decode"}}
BLOCK = 16


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """One prefill and one decode worker on one kvstore."""
    shared = Cluster(tmp_path_factory.mktemp("handoff"), workers=2, settings=SETTINGS, per_service=ROLES)
    try:
        await shared.up()
        yield shared
    finally:
        shared.down()


def request(i: int, *, length: int, max_tokens: int, seeded: bool = False, alone: bool = False) -> pb.GenerateRequest:
    """`alone`: kept out of every cache, and so served in one place."""
    ids = [1000 + (i * 7919 + k * 41) % 40000 for k in range(length)]
    return pb.GenerateRequest(
        context=pb.RequestContext(cache_off=alone),
        token_ids=pb.TokenIds(ids=ids),
        sampling=pb.Sampling(temperature=0.9 if seeded else 0.0, seed=100 + i),
        options=pb.Options(max_tokens=max_tokens, ignore_eos=True),
    )


async def follow(call: Any, answer: Answer) -> Answer:
    async for response in call:
        answer.take(response)
    return answer


async def traced(cluster: Cluster, name: str, traces: set[str]) -> list[Span]:
    """The span of this name in each of `traces`, once all are in the run folder's files."""
    async with asyncio.timeout(30):
        while True:
            found = [span for span in read_spans(cluster.run_dir) if span.name == name and span.trace_id in traces]
            if {span.trace_id for span in found} == traces:
                return found
            await asyncio.sleep(0.2)


async def counted(cluster: Cluster, *names: str) -> list[float]:
    counters = (await cluster.status()).counters
    return [counters[name] for name in names]


async def test_same_tokens_as_one_worker_and_less_than_a_block_recomputed(pair: Cluster) -> None:
    lengths = (200, 208, 33, 300)
    async with pair.channel() as channel:
        stub = pair.inference(channel)
        handed, alone = [], []
        for i, length in enumerate(lengths):
            options: dict[str, Any] = {"length": length, "max_tokens": 20, "seeded": i % 2 == 1}
            alone.append(await read(stub.Generate(request(i, alone=True, **options))))
            handed.append(await read(stub.Generate(request(i, **options))))
    assert [answer.ids for answer in handed] == [answer.ids for answer in alone]
    done, failed, recomputed, early = await counted(
        pair, "handoffs_done", "handoffs_failed", "handoff_recomputed_tokens", "handoff_early_blocks"
    )
    assert (done, failed) == (len(lengths), 0)
    assert recomputed == sum(length % BLOCK for length in lengths)
    assert early > 0  # blocks left while the long prompts were still computed
    for answer in handed:  # the prefill worker gave the first token: a handoff is in none of its parts, and they add up
        timings = answer.finished.timings
        total_us = sum(getattr(timings.ttft, f"{name}_us") for name in PARTS)
        assert abs(total_us - timings.t_first_token_us) <= 1000
        assert timings.ttft.retry_us == 0 == timings.ttft.kv_load_us
    await pair.settle()
    spans = await traced(pair, "handoff", {answer.trace_id for answer in handed})
    assert {span.attributes["octavo.cause"] for span in spans} == {"done"}
    assert all(int(span.attributes["octavo.recomputed_tokens"]) < BLOCK for span in spans)


async def test_choices_of_one_prompt_are_handed_over_once(pair: Cluster) -> None:
    """Two choices, drawn and greedy: one prefill, and each goes on where it decodes with the tokens that it has alone."""
    before = await counted(pair, "handoffs_done", "handoffs_failed")
    async with pair.channel() as channel:
        stub = pair.inference(channel)
        for i, seeded in ((12, True), (13, False)):
            alone = request(i, length=150, max_tokens=12, seeded=seeded, alone=True)
            handed = request(i, length=150, max_tokens=12, seeded=seeded)
            alone.options.n = handed.options.n = 2
            wanted, answer = await read(stub.Generate(alone)), await read(stub.Generate(handed))
            assert answer.ids == wanted.ids and set(answer.ids) == {0, 1}
    after = await counted(pair, "handoffs_done", "handoffs_failed")
    assert (after[0] - before[0], after[1] - before[1]) == (2, 0)
    await pair.settle()


async def test_a_preempted_stream_is_swapped_and_goes_on_the_same(pair: Cluster) -> None:
    """An urgent request takes the room of others, greedy and sampled: each goes on with the tokens that it has alone."""
    cases = [request(20 + i, length=290 + i, max_tokens=40, seeded=i % 2 == 1) for i in range(2)]
    urgent = request(30, length=150, max_tokens=8)  # 10 blocks, and the two leave 8 of 48
    urgent.context.priority = 5
    before = await counted(pair, "preemptions", "swaps", "swapped_blocks")
    async with pair.channel() as channel:
        stub = pair.inference(channel)
        answers = [Answer() for _ in cases]
        streams = [
            asyncio.create_task(follow(stub.Generate(case), answer))
            for case, answer in zip(cases, answers, strict=True)
        ]
        async with asyncio.timeout(60):
            while any(len(answer.ids.get(0, [])) < 4 for answer in answers):
                await asyncio.sleep(0.02)
        first = await read(stub.Generate(urgent))
        await asyncio.gather(*streams)
        after = await counted(pair, "preemptions", "swaps", "swapped_blocks")
        wanted = [await read(stub.Generate(case)) for case in cases]
        assert (await read(stub.Generate(urgent))).ids == first.ids
    assert [answer.ids for answer in answers] == [answer.ids for answer in wanted]
    assert sum(answer.finished.timings.preemptions for answer in answers) == after[0] - before[0] > 0
    assert after[1] > before[1]
    await pair.settle()


async def test_a_tool_pause_is_kept_and_its_resume_continues(pair: Cluster) -> None:
    prompt = [2000 + k for k in range(120)]
    async with AsyncClient(pair.grpc_address) as client:
        options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 24}
        turn = await client.generate(prompt, request_id="turn-1", **options)
        pausing = await client.pause("turn-1", tool="search", expected_ms=60_000)
        assert pausing.found and pausing.decision in ("keep", "offload")
        longer = prompt + list(turn.choices[0].token_ids) + [2500, 2501]
        resumed = await client.generate(longer, request_id="turn-2", resumes="turn-1", **options)
        assert resumed.usage.cached_tokens >= len(prompt)
        assert not (await client.pause("nobody")).found
    async with httpx.AsyncClient(base_url=pair.http_url) as http:  # and the same over HTTP
        said = await http.post("/v1/requests/turn-2/pause", json={"tool": "search", "expected_ms": 1000})
        assert said.status_code == 200 and said.json()["decision"] in ("keep", "offload", "drop", "later")
        assert (await http.post("/v1/requests/nobody/pause", json={})).status_code == 404
    spared, back = await counted(pair, "pause_spared_tokens", "pauses_resumed")
    assert spared >= len(prompt) and back == 1
    await pair.settle()


@pytest.mark.parametrize("victim", ["gpuworker0", "gpuworker1"], ids=["prefill", "decode"])
async def test_either_end_killed_leaves_nothing_behind(pair: Cluster, victim: str) -> None:
    """Killed while prompts are prefilled, handed over and decoded; the streams go on with the same tokens."""
    requests = [request(40 + i, length=250, max_tokens=16) for i in range(3)]
    async with pair.channel() as channel:
        stub = pair.inference(channel)
        wanted = [await read(stub.Generate(item)) for item in requests]
        answers = [Answer() for _ in requests]
        fresh = [request(60 + i, length=250, max_tokens=16) for i in range(3)]
        streams = [
            asyncio.create_task(follow(stub.Generate(item), answer))
            for item, answer in zip([*requests, *fresh], [*answers, *(Answer() for _ in fresh)], strict=True)
        ]
        async with asyncio.timeout(60):
            while not any(answer.ids for answer in answers):
                await asyncio.sleep(0.01)
        pair.kill(victim)
        pair.start(victim)
        await asyncio.gather(*streams)
    assert [answer.ids for answer in answers] == [answer.ids for answer in wanted]
    await pair.wait_workers()
    status = await pair.settle()
    assert status.counters["protocol_errors"] == 0
