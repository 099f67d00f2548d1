"""A stall injected into each stage shows in that stage's part of the TTFT, and `octavo diagnose` names it; one cluster for all."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
import pytest_asyncio
from cluster import Cluster, DelayProxy, free_port, read
from octavo.v1 import inference_pb2 as pb
from octavo_cli.diagnosis import Finding, Targets, diagnose, facts_of
from octavo_cli.spans import Span, read_spans
from octavo_cli.ttft import Ttft, ttft_of

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

ONE_WAY_S = 0.1
"""What a proxy holds back in each direction: 200 ms for a message and its answer."""
STALL_MS = 190.0
"""The injected stall, less what two clocks may differ."""


class Staged:
    """A cluster with a proxy before the scheduler (for the gateway) and one before the kvstore (for the worker)."""

    def __init__(self, folder: Path) -> None:
        stream, store = free_port(), free_port()
        self.metrics = {name: f"127.0.0.1:{free_port()}" for name in ("scheduler", "kvstore", "gpuworker")}
        self.cluster = Cluster(
            folder,
            settings={"engine.kv_num_blocks": 40, "scheduler.max_num_seqs": 2, "scheduler.max_waiting_requests": 2}
            | {"scheduler.max_num_batched_tokens": 32, "scheduler.max_num_batched_tokens_alone": 32},
            per_service={
                "gateway": {"gateway.scheduler": f"127.0.0.1:{stream}"},
                "gpuworker": {
                    "gpuworker.kvstore": f"127.0.0.1:{store}",
                    "gpuworker.metrics_listen": self.metrics["gpuworker"],
                },
                "scheduler": {"scheduler.metrics_listen": self.metrics["scheduler"]},
                "kvstore": {"kvstore.metrics_listen": self.metrics["kvstore"]},
            },
        )
        self.stream = DelayProxy(stream, self.cluster.ports["scheduler"], 0.0)
        self.store = DelayProxy(store, self.cluster.ports["kvstore"], 0.0)
        self.channel: grpc.aio.Channel | None = None

    async def ask(self, prompt: str | list[int], max_tokens: int, **sampling: Any) -> str:
        """One request to its end; its trace id."""
        assert self.channel is not None
        request = pb.GenerateRequest(
            sampling=pb.Sampling(temperature=0.0, **sampling),
            options=pb.Options(max_tokens=max_tokens, ignore_eos=True),
        )
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids.ids.extend(prompt)
        answer = await read(self.cluster.inference(self.channel).Generate(request))
        parts = answer.finished.timings.ttft
        assert answer.finished.timings.HasField("ttft")
        total_us = sum(getattr(parts, field.name) for field in parts.DESCRIPTOR.fields)
        assert abs(total_us - answer.finished.timings.t_first_token_us) <= 1000
        return answer.trace_id

    async def request_span(self, trace_id: str) -> Span:
        """The request's span, once it is in the files."""
        async with asyncio.timeout(20):
            while True:
                for span in read_spans(self.cluster.run_dir):
                    if span.trace_id == trace_id and span.name == "request":
                        return span
                await asyncio.sleep(0.1)

    async def ttft(self, trace_id: str) -> Ttft:
        found = ttft_of(await self.request_span(trace_id))
        assert found is not None and found.adds_up and min(found.parts.values()) >= 0, found
        return found

    async def findings(self, *trace_ids: str, **targets: float) -> list[Finding]:
        """What `octavo diagnose` says of these requests."""
        for trace_id in trace_ids:
            await self.request_span(trace_id)
        await asyncio.sleep(0.5)  # the other services' files
        spans = [span for span in read_spans(self.cluster.run_dir) if span.trace_id in trace_ids]
        return diagnose(facts_of(spans), Targets(**targets))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def staged(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Staged]:
    made = Staged(tmp_path_factory.mktemp("staged"))
    servers = [await made.stream.start(), await made.store.start()]
    try:
        await made.cluster.up()
        async with made.cluster.channel() as channel:
            made.channel = channel
            await made.ask("warm", 2)
            yield made
    finally:
        made.cluster.down()
        for server in servers:
            server.close()


async def test_a_calm_request_adds_up_and_waits_for_nothing(staged: Staged) -> None:
    ttft = await staged.ttft(await staged.ask("Once upon a time", 4))
    assert min(ttft.parts[name] for name in ("prefill", "dispatch", "report", "relay", "detokenize")) > 0
    assert ttft.parts["retry"] == ttft.parts["kv_load"] == 0
    assert max(ttft.parts["queue"], ttft.parts["tokenize"]) < STALL_MS


async def test_a_slow_stream_shows_as_transport(staged: Staged) -> None:
    staged.stream.delay_s = ONE_WAY_S
    try:
        trace_id = await staged.ask("A slow road", 2)
    finally:
        staged.stream.delay_s = 0.0
    ttft = await staged.ttft(trace_id)
    assert ttft.largest() == "transport" and ttft.parts["transport"] >= STALL_MS
    assert max(value for name, value in ttft.parts.items() if name != "transport") < STALL_MS
    first = (await staged.findings(trace_id, ttft_ms=100.0, itl_ms=1e5))[0]
    assert (first.symptom, first.phase, first.bound) == ("transport", "transport", "transfer") and first.over


async def test_a_full_worker_shows_as_queue(staged: Staged) -> None:
    busy = [asyncio.create_task(staged.ask(f"Number {number} tells", 60)) for number in range(2)]
    while (await staged.cluster.status()).requests_running < 2:
        await asyncio.sleep(0.02)
    trace_id = await staged.ask("Me too", 2)
    await asyncio.gather(*busy)
    ttft = await staged.ttft(trace_id)
    assert ttft.largest() == "queue"
    first = (await staged.findings(trace_id, ttft_ms=100.0, itl_ms=1e5))[0]
    assert (first.symptom, first.bound) == ("queue", "queue") and first.over


async def test_a_long_prompt_shows_as_prefill_and_long_answers_as_decode(staged: Staged) -> None:
    long_id = await staged.ask(list(range(1000, 1450)), 2)
    ttft = await staged.ttft(long_id)
    assert ttft.largest() == "prefill"
    chunks = (await spans_of(staged, long_id, "prefill"))["prefill"]
    assert len(chunks.events) == chunks.attributes["octavo.prefill.chunks"] == -(-450 // 32)
    rows = await staged.findings(long_id, ttft_ms=10.0, itl_ms=1e5)
    assert rows[0].symptom == "prefill" and rows[0].bound in ("compute", "memory", "host")
    decode_id = await staged.ask("Tell", 40)
    rows = await staged.findings(decode_id, ttft_ms=1e6, itl_ms=0.5)
    assert rows[0].symptom == "decode" and rows[0].bound in ("compute", "memory", "host")
    assert "of peak bytes/s" in rows[0].evidence


async def test_a_slow_kvstore_shows_as_kv_load(staged: Staged) -> None:
    prompt = list(range(2000, 2000 + 10 * 16))
    await staged.ask([*prompt, 7], 2)
    for other in (3000, 4000, 5000):  # the pool holds 39 blocks: these push the first out, to the kvstore
        await staged.ask(list(range(other, other + 30 * 16)), 2)
    await staged.cluster.settle()
    staged.store.delay_s = ONE_WAY_S  # a Pin, whose answer names the slots to copy: 200 ms
    try:
        trace_id = await staged.ask([*prompt, 8], 2)
    finally:
        staged.store.delay_s = 0.0
    span, ttft = await staged.request_span(trace_id), await staged.ttft(trace_id)
    assert ttft.largest() == "kv_load" and ttft.parts["kv_load"] >= STALL_MS
    tiers = {key: value for key, value in span.attributes.items() if key.startswith("octavo.cached.")}
    assert 16 <= sum(tiers.values()) == span.attributes["gen_ai.usage.cached_tokens"] <= len(prompt)
    assert any(
        key in ("octavo.cached.dram_tokens", "octavo.cached.queue_tokens", "octavo.cached.nvme_tokens") for key in tiers
    )
    first = (await staged.findings(trace_id, ttft_ms=100.0, itl_ms=1e5))[0]
    assert (first.symptom, first.bound) == ("kv_load", "transfer") and "MB/s" in first.evidence


async def test_a_full_pool_shows_as_preemption(staged: Staged) -> None:
    ids = await asyncio.gather(staged.ask("One long tale", 340), staged.ask("Another long tale", 340))
    spans = [await staged.request_span(trace_id) for trace_id in ids]
    assert sum(int(span.attributes["octavo.preemptions"]) for span in spans) >= 1
    rows = await staged.findings(*ids, ttft_ms=1e6, itl_ms=50.0)
    first = rows[0]
    assert (first.symptom, first.phase, first.bound) == ("preemption", "preempted", "memory"), rows
    named = {span.name: span for span in read_spans(staged.cluster.run_dir) if span.trace_id in ids}
    assert named["preempted"].links == ((named["attempt"].trace_id, named["attempt"].span_id),)


async def spans_of(staged: Staged, trace_id: str, *names: str) -> dict[str, Span]:
    """The spans of a trace by name, once all of `names` are in the files."""
    async with asyncio.timeout(20):
        while True:
            found = {span.name: span for span in read_spans(staged.cluster.run_dir) if span.trace_id == trace_id}
            if {*names, "request"} <= set(found):
                return found
            await asyncio.sleep(0.1)


async def leave(staged: Staged, prompt: list[int] | str, until: str) -> str:
    """Asks, leaves once the request is `queued`, in `prefill` or in `decode`; its trace id."""
    assert staged.channel is not None
    trace_id = f"{time.time_ns():032x}"
    header = (("traceparent", f"00-{trace_id}-{'1' * 16}-01"),)
    request = pb.GenerateRequest(options=pb.Options(max_tokens=100, ignore_eos=True))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    before = (await staged.cluster.status()).counters["prefill_tokens"]
    call = staged.cluster.inference(staged.channel).Generate(request, metadata=header)
    async for response in call:
        if until == "queued" or (until == "decode" and len(response.delta.token_ids)):
            break
        if until == "prefill":
            while (await staged.cluster.status()).counters["prefill_tokens"] <= before:  # the first of many chunks
                await asyncio.sleep(0.005)
            break
    call.cancel()
    return trace_id


async def test_a_cancel_shows_the_stage_it_came_in(staged: Staged) -> None:
    decoding = await spans_of(staged, await leave(staged, "Leave me", "decode"), "cancel", "queue", "prefill", "decode")
    assert decoding["decode"].attributes["octavo.finish.reason"] == "cancel"
    prompt = list(range(6000, 6500))
    prefilling = await spans_of(staged, await leave(staged, prompt, "prefill"), "cancel", "queue", "prefill")
    assert prefilling["prefill"].attributes["octavo.finish.reason"] == "cancel" and "decode" not in prefilling
    assert prefilling["queue"].attributes["octavo.outcome"] == "admitted"
    busy = [asyncio.create_task(staged.ask(f"Number {number} says", 60)) for number in range(2)]
    while (await staged.cluster.status()).requests_running < 2:
        await asyncio.sleep(0.02)
    queued = await spans_of(staged, await leave(staged, "Never mind", "queued"), "cancel", "queue")
    await asyncio.gather(*busy)
    assert queued["queue"].attributes["octavo.outcome"] == "cancelled" and "prefill" not in queued
    for spans in (decoding, prefilling, queued):
        assert spans["request"].attributes["octavo.outcome"] == "cancelled"
        assert spans["cancel"].attributes["octavo.reason"] == "client_disconnect"
        assert spans["request"].parent_id == "1" * 16 and spans["cancel"].parent_id == spans["request"].span_id
    await staged.cluster.settle()


async def test_a_deadline_and_a_refusal_have_their_spans(staged: Staged) -> None:
    assert staged.channel is not None
    stub = staged.cluster.inference(staged.channel)
    refused_id = f"{time.time_ns():032x}"
    spans: dict[str, Span] = {}
    for deadline_ms in (400, 700, 1100, 1600, 2300):  # one that the door finds possible and 400 tokens do not keep
        late = pb.GenerateRequest(text="In time?", options=pb.Options(max_tokens=400, ignore_eos=True))
        late.context.deadline_ms = deadline_ms
        late_id = f"{time.time_ns():032x}"
        with pytest.raises(grpc.aio.AioRpcError):
            await read(stub.Generate(late, metadata=(("traceparent", f"00-{late_id}-{'1' * 16}-01"),)))
        spans = await spans_of(staged, late_id)
        if not str(spans["request"].attributes["octavo.reason"]).startswith("rejected"):
            break
    spans = await spans_of(staged, late_id, "queue", "prefill", "cancel")
    assert (
        spans["cancel"].attributes["octavo.reason"] == "deadline" and spans["cancel"].attributes["octavo.blocks_freed"]
    )
    assert spans["request"].attributes["octavo.outcome"] == "evicted-deadline" and spans["request"].error

    busy = [asyncio.create_task(staged.ask(f"Number {number} waits", 50)) for number in range(4)]
    while (await staged.cluster.status()).requests_waiting < 2:
        await asyncio.sleep(0.01)
    with pytest.raises(grpc.aio.AioRpcError) as full:
        one_more = pb.GenerateRequest(text="And me", options=pb.Options(max_tokens=2))
        await read(stub.Generate(one_more, metadata=(("traceparent", f"00-{refused_id}-{'1' * 16}-01"),)))
    assert full.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await asyncio.gather(*busy)
    spans = await spans_of(staged, refused_id, "rejected")
    assert spans["rejected"].attributes["octavo.reason"] == "rejected-queue-requests"
    assert spans["rejected"].attributes["octavo.waiting"] == 2
    assert spans["request"].attributes["octavo.reason"] == "rejected-queue-requests"


async def test_every_query_of_the_dashboard_returns_data_after_this_load(staged: Staged) -> None:
    """The real texts of all four services, as Prometheus would scrape them."""
    dashboard = json.loads((Path(__file__).parents[2] / "observability/grafana/dashboards/octavo.json").read_text())
    names = {
        name for panel in dashboard["panels"] for target in panel.get("targets", []) for name in _names(target["expr"])
    }
    samples = await _scrape(staged)
    assert {name for name in names if name not in samples} == set()
    assert samples["octavo_scheduler_blocks_leaked"] == samples["octavo_gateway_ttft_overlaps_total"] == 0
    assert samples["vllm:cache_config_info"] == 1 and "vllm:num_requests_running" in samples
    assert 0 <= samples["vllm:kv_cache_usage_perc"] <= 1
    moved = (
        "preemptions_total",
        "recomputed_tokens_total",
        "evicted_blocks_total",
        "loaded_blocks_total",
        "offloaded_blocks_total",
    )
    assert [name for name in moved if not samples[f"octavo_scheduler_{name}"]] == []
    assert samples["octavo_worker_step_bytes_total"] > 0 and samples["octavo_worker_peak_flops_per_second"] > 0


def _names(query: str) -> list[str]:
    return [
        word
        for word in query.replace("(", " ").replace(")", " ").replace("[", " ").split()
        if word.startswith(("octavo_", "vllm:"))
    ]


async def _scrape(staged: Staged) -> dict[str, float]:
    """Sample name -> the sum of its values over labels, over all services."""
    texts: list[str] = []
    urls = [f"{staged.cluster.http_url}/metrics", *(f"http://{address}/metrics" for address in staged.metrics.values())]
    async with httpx.AsyncClient() as client:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:  # the scheduler's load reaches gateways about once a second
            texts = [(await client.get(url)).text for url in urls]
            if "vllm:cache_config_info{" in texts[0]:
                break
            await asyncio.sleep(0.3)
    samples: dict[str, float] = {}
    for line in "\n".join(texts).splitlines():
        if not line.startswith("#") and line:
            name, value = line.partition("{")[0].split()[0], float(line.rpartition(" ")[2])
            samples[name] = samples.get(name, 0.0) + value
    return samples
