"""The parts of the time to first token: they add up, only transport is a remainder, and no stall hides in another part."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.ttft import PARTS
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import scheduler_pb2
from octavo_gateway.ttft import Measured, TtftParts, decompose

CALM = Measured(
    total=10_000, before_submit=500, send=30, tokenize=300, lost_scheduler=0, queue=1000, retry=0, dispatch=60, kv_load=0,
    worker_wait=200, prefill=6000, sample=400, report=70, relay=80, detokenize=50,
)  # fmt: skip


def test_each_duration_lands_in_its_part() -> None:
    parts, overlap = decompose(CALM)
    assert overlap == 0 and parts.total_us == 10_000
    assert parts == TtftParts(
        gateway_us=230, tokenize_us=300, queue_us=1000, dispatch_us=60, worker_wait_us=200, prefill_us=5600, sample_us=400,
        report_us=70, relay_us=80, detokenize_us=50, transport_us=2010,
    )  # fmt: skip
    assert parts.largest() == "prefill"


@pytest.mark.parametrize(
    ("field", "part"),
    [
        ("before_submit", "gateway"),
        ("send", "gateway"),
        ("queue", "queue"),
        ("retry", "retry"),
        ("lost_scheduler", "retry"),
        ("dispatch", "dispatch"),
        ("kv_load", "kv_load"),
        ("worker_wait", "worker_wait"),
        ("prefill", "prefill"),
        ("report", "report"),
        ("relay", "relay"),
        ("detokenize", "detokenize"),
        ("total", "transport"),
    ],
)
def test_a_stall_of_200_ms_shows_in_its_own_part_alone(field: str, part: str) -> None:
    before = asdict(decompose(CALM)[0])
    stalled = replace(CALM, **{field: getattr(CALM, field) + 200_000, "total": CALM.total + 200_000})
    parts, overlap = decompose(stalled)
    moved = {name: value - before[name] for name, value in asdict(parts).items() if value != before[name]}
    assert (moved, overlap) == ({f"{part}_us": 200_000}, 0)
    assert parts.largest() == part


@given(st.lists(st.integers(0, 10**7), min_size=12, max_size=12), st.integers(0, 10**6), st.integers(0, 10**6))
def test_parts_of_what_contains_them_add_up_and_none_is_negative(
    durations: list[int], sample: int, tokenize: int
) -> None:
    gateway, send, lost, queue, retry, dispatch, load, wait, prefill, report, relay, text = durations
    measured = Measured(
        total=0, before_submit=gateway + tokenize, send=send, tokenize=tokenize, lost_scheduler=lost, queue=queue, retry=retry,
        dispatch=dispatch, kv_load=load, worker_wait=wait, prefill=prefill + sample, sample=sample, report=report,
        relay=relay, detokenize=text,
    )  # fmt: skip
    total = sum(durations) + sample + tokenize + 77
    parts, overlap = decompose(replace(measured, total=total))
    assert (parts.total_us, parts.transport_us, overlap) == (total, 77, 0)
    assert min(asdict(parts).values()) >= 0


def test_an_overlap_is_told_and_never_a_negative_part() -> None:
    parts, overlap = decompose(replace(CALM, total=5000))
    assert parts.transport_us == 0 and overlap == parts.total_us - 5000 == 2990


def times(**given: int) -> dict[str, Any]:
    return {"times": scheduler_pb2.RequestTimes(**given)}


async def finished(call: Any) -> pb.Finished:
    return [response async for response in call][-1].finished


async def ask(stack: Any, before_tokens_s: float = 0.0, **travelled: int) -> tuple[pb.TtftParts, int]:
    """One request through a real gateway whose scheduler says what it measured; (parts, t_first_token_us)."""

    async def play() -> None:
        submit = await stack.scheduler.next("submit")
        stack.scheduler.accept(submit.request_id, attempt=1)
        await asyncio.sleep(before_tokens_s)
        stack.scheduler.tokens(submit.request_id, stack.ids("ab"), relay_us=1300)
        stack.scheduler.choice_finished(submit.request_id, "length", 2)
        stack.scheduler.finish(submit.request_id, cached_tokens=1, cached_by_tier={"dram": 1}, **times(**travelled))

    request = pb.GenerateRequest(text="Once", options=pb.Options(max_tokens=2))
    end, _ = await asyncio.gather(finished(stack.stub.Generate(request)), play())
    assert end.timings.HasField("ttft")
    return end.timings.ttft, end.timings.t_first_token_us


async def test_the_client_and_the_span_get_parts_that_add_up(stack: Any) -> None:
    parts, first_us = await ask(
        stack,
        0.03,
        queue_us=2000,
        kv_load_us=3000,
        worker_wait_us=100,
        prefill_us=9000,
        sample_us=500,
        dispatch_us=1100,
        report_us=1200,
        first_token_us=20_000,
    )
    values = {name: getattr(parts, f"{name}_us") for name in PARTS}
    assert abs(sum(values.values()) - first_us) <= 1000
    assert (values["queue"], values["kv_load"], values["prefill"], values["sample"]) == (2000, 3000, 8500, 500)
    assert (values["dispatch"], values["report"], values["relay"]) == (1100, 1200, 1300)
    assert min(values["transport"], values["gateway"], values["detokenize"]) > 0
    (request,) = [span for span in stack.spans.get_finished_spans() if span.name == "request"]
    for name, value in values.items():
        assert request.attributes[f"octavo.ttft.{name}_us"] == value
    assert request.attributes["octavo.cached.dram_tokens"] == 1
    total = stack.registry.get_sample_value("octavo_gateway_ttft_part_seconds_sum", {"part": "kv_load"})
    assert total == pytest.approx(0.003)
    assert stack.registry.get_sample_value("octavo_gateway_ttft_overlaps_total") == 0


async def test_a_slow_tokenizer_and_a_slow_stream_show_where_they_are(
    stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = type(stack.admission).encode

    def slow(self: Any, params: Any) -> list[int]:
        time.sleep(0.2)
        return encode(self, params)

    monkeypatch.setattr(type(stack.admission), "encode", slow)
    parts, _ = await ask(stack, 0.2, queue_us=10, prefill_us=10, first_token_us=30)
    assert parts.tokenize_us >= 200_000 and parts.transport_us >= 150_000
    assert max(parts.gateway_us, parts.queue_us, parts.prefill_us, parts.detokenize_us) < 150_000


async def test_measured_parts_that_exceed_the_whole_are_counted(stack: Any) -> None:
    parts, first_us = await ask(stack, 0.0, prefill_us=10**9, first_token_us=10**9)
    assert parts.transport_us == 0 and parts.prefill_us > first_us
    assert stack.registry.get_sample_value("octavo_gateway_ttft_overlaps_total") == 1


async def test_a_client_that_attaches_to_anothers_request_gets_no_parts(stack: Any) -> None:
    async def play() -> None:
        submit = await stack.scheduler.next("submit")
        stack.scheduler.accept(
            submit.request_id, attached=True, gateway_state=submit.gateway_state, prompt_tokens=submit.prompt_tokens
        )
        stack.scheduler.tokens(submit.request_id, stack.ids("ab"))
        stack.scheduler.choice_finished(submit.request_id, "length", 2)
        stack.scheduler.finish(submit.request_id, **times(first_token_us=5_000_000, queue_us=4_000_000))

    request = pb.GenerateRequest(text="Once", options=pb.Options(max_tokens=2))
    end, _ = await asyncio.gather(finished(stack.stub.Generate(request)), play())
    assert not end.timings.HasField("ttft")
    assert stack.registry.get_sample_value("octavo_gateway_ttft_overlaps_total") == 0
