"""What a request took, at each of its ends: final message, trailers, span, metrics, cancel answer."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import scheduler_pb2
from octavo_gateway.service import COST_TRAILER

COST = {
    "prefill_device_us": 1500, "decode_device_us": 2500, "recompute_device_us": 100, "kv_pool_byte_s": 1e6,
    "kv_dram_byte_s": 20.0, "kv_nvme_byte_s": 30.0, "saved_prefix_tokens": 16, "saved_tier_tokens": 32,
    "saved_sibling_tokens": 48,
}  # fmt: skip


def cost() -> scheduler_pb2.RequestCost:
    return scheduler_pb2.RequestCost(**COST)


def values(message: Any) -> dict[str, float]:
    return {name: getattr(message, name) for name in COST}


def span_cost(stack: Any) -> dict[str, float]:
    """`octavo.cost.*` of the one request span."""
    (span,) = [span for span in stack.spans.get_finished_spans() if span.name == "request"]
    return {name: span.attributes[f"octavo.cost.{name}"] for name in COST}


def metric(stack: Any, name: str, **labels: str) -> float:
    return stack.registry.get_sample_value(name, labels) or 0.0


async def started(stack: Any, request: Any) -> tuple[Any, Any]:
    """A call whose first token has arrived, and its submit."""
    call = stack.stub.Generate(request)
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    for index in range(len(submit.choices)):
        stack.scheduler.tokens(submit.request_id, stack.ids("a"), 0, index)
    await call.read()
    await call.read()
    return call, submit


async def remaining(call: Any) -> list[Any]:
    """What is left of a call; raises its status."""
    rest = []
    while (response := await call.read()) is not grpc.aio.EOF:
        rest.append(response)
    return rest


@pytest.mark.parametrize("n", [1, 3])
async def test_an_answer_carries_it_in_message_trailer_span_and_metrics(stack: Any, request_of: Any, n: int) -> None:
    call, submit = await started(stack, request_of(options={"n": n, "max_tokens": 1}))
    for index in range(n):
        stack.scheduler.choice_finished(submit.request_id, "length", 1, index)
    stack.scheduler.finish(submit.request_id, cost=cost())
    rest = await remaining(call)
    assert values(rest[-1].finished.cost) == COST
    trailer = dict(await call.trailing_metadata())[COST_TRAILER]
    assert values(pb.Cost.FromString(trailer)) == COST
    assert span_cost(stack) == COST
    seconds = "octavo_gateway_cost_device_seconds_total"
    assert metric(stack, seconds, phase="prefill", outcome="finished") == pytest.approx(0.0015)
    assert metric(stack, seconds, phase="recompute", outcome="finished") == pytest.approx(0.0001)
    held = "octavo_gateway_cost_kv_byte_seconds_total"
    assert [metric(stack, held, tier=tier, outcome="finished") for tier in ("pool", "dram", "nvme")] == [1e6, 20, 30]
    saved = "octavo_gateway_cost_saved_prefill_tokens_total"
    assert [metric(stack, saved, source=source) for source in ("prefix", "tier", "sibling")] == [16, 32, 48]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("cancelled", grpc.StatusCode.CANCELLED), ("deadline", grpc.StatusCode.DEADLINE_EXCEEDED),
     ("failed", grpc.StatusCode.UNAVAILABLE)],
)  # fmt: skip
async def test_every_other_end_carries_it_in_the_trailer(
    stack: Any, request_of: Any, outcome: str, status: grpc.StatusCode
) -> None:
    call, submit = await started(stack, request_of())
    stack.scheduler.finish(submit.request_id, outcome, reason="x", cost=cost())
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await remaining(call)
    assert failed.value.code() == status
    trailer = dict(failed.value.trailing_metadata())[COST_TRAILER]
    assert values(pb.Cost.FromString(trailer)) == COST
    assert span_cost(stack) == COST
    total = sum(
        sample.value
        for family in stack.registry.collect()
        for sample in family.samples
        if sample.name == "octavo_gateway_cost_device_seconds_total"
    )
    assert total == pytest.approx(0.0041)


async def test_a_client_that_leaves_is_charged_too(stack: Any, request_of: Any) -> None:
    """The span waits for the scheduler's word: what was spent until the last step is in it."""
    call, submit = await started(stack, request_of())
    call.cancel()
    await stack.scheduler.next("cancel")
    assert [span for span in stack.spans.get_finished_spans() if span.name == "request"] == []
    stack.scheduler.finish(submit.request_id, "cancelled", reason="client_disconnect", cost=cost())
    await stack.until(lambda: any(span.name == "request" for span in stack.spans.get_finished_spans()))
    assert span_cost(stack) == COST
    (span,) = [span for span in stack.spans.get_finished_spans() if span.name == "request"]
    assert span.attributes["octavo.cancel.reason"] == "client_disconnect"
    assert span.attributes["gen_ai.usage.input_tokens"] == len(submit.prompt_tokens) // 4
    assert span.attributes["gen_ai.usage.output_tokens"] == len(submit.choices), "a request that failed had tokens too"
    assert metric(stack, "octavo_gateway_cost_device_seconds_total", phase="decode", outcome="cancelled") > 0


async def test_a_cancel_is_answered_with_the_whole_cost(stack: Any, request_of: Any) -> None:
    call, submit = await started(stack, request_of(context={"request_id": "r1"}))
    cancelling = asyncio.ensure_future(stack.stub.Cancel(pb.CancelRequest(request_id="r1")))
    await stack.scheduler.next("cancel")
    stack.scheduler.finish(submit.request_id, "cancelled", reason="client_cancel", cost=cost())
    stack.scheduler.cancelled(submit.request_id, found=True, outcome="cancelled", cost=cost())
    answer = await cancelling
    assert answer.found and values(answer.cost) == COST
    call.cancel()


async def test_a_refused_request_has_no_cost(stack: Any, request_of: Any) -> None:
    call = stack.stub.Generate(request_of(options={"max_tokens": 0}))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert COST_TRAILER not in dict(failed.value.trailing_metadata() or ())
