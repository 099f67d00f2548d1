"""Clients that leave, stall, come back or ask twice; deadlines; spans and counters."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from octavo.packing import pack_u32
from octavo.v1 import inference_pb2 as pb
from octavo_gateway.requests import Delta, EdgeContext, Finished, RequestParams


async def collect(call: Any) -> list[Any]:
    return [response async for response in call]


def end(stack: Any, name: str, tokens: int, reason: str = "length") -> None:
    stack.scheduler.choice_finished(name, reason, tokens)
    stack.scheduler.finish(name)


async def test_backlog_comes_as_one_delta(stack: Any) -> None:
    starting = asyncio.create_task(
        stack.gateway.start(RequestParams("generate", prompt_text="Hi"), EdgeContext("grpc"))
    )
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    generation = await starting
    text = "many tokens 🌶"
    for i, token in enumerate(stack.ids(text)):
        stack.scheduler.tokens(submit.request_id, [token], i)
    end(stack, submit.request_id, len(stack.ids(text)))
    await stack.until(lambda: stack.gateway.live_count == 0)
    events = [event async for event in generation]
    assert [type(event) for event in events] == [Delta, Finished]
    assert (events[0].text, events[0].finish_reason) == (text, "length")


async def test_closing_a_stream_cancels_upstream(stack: Any, request_of: Any) -> None:
    call = stack.stub.Generate(request_of())
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, stack.ids("a"))
    await call.read()
    call.cancel()
    order = await stack.scheduler.next("cancel")
    assert (order.request_id, order.reason) == (submit.request_id, "client_disconnect")
    stack.scheduler.finish(submit.request_id, "cancelled", reason="client_disconnect")
    await stack.until(lambda: stack.gateway.live_count == 0)
    span = next(span for span in stack.spans.get_finished_spans() if span.name == "request")
    assert span.attributes["octavo.outcome"] == "cancelled"
    assert span.attributes["octavo.cancel.reason"] == "client_disconnect"
    assert span.attributes["rpc.grpc.status_code"] == 1
    assert stack.registry.get_sample_value(
        "octavo_gateway_requests_total", {"outcome": "cancelled", "reason": "client_disconnect"}
    ) == 1  # fmt: skip


async def test_leaving_before_the_scheduler_answered_cancels(stack: Any, request_of: Any) -> None:
    call = stack.stub.Generate(request_of())
    submit = await stack.scheduler.next("submit")
    call.cancel()
    assert (await stack.scheduler.next("cancel")).request_id == submit.request_id


async def test_close_is_idempotent_and_a_no_op_after_the_end(stack: Any) -> None:
    starting = asyncio.create_task(
        stack.gateway.start(RequestParams("generate", prompt_text="Hi"), EdgeContext("grpc"))
    )
    await stack.scheduler.play(stack.ids("x"))
    generation = await starting
    _ = [event async for event in generation]
    await generation.close("client_disconnect")
    await generation.close("slow_client")
    assert stack.scheduler.none("cancel")
    assert [event async for event in generation] == []


async def test_a_slow_client_loses_its_request_alone(
    make_stack: Any, admission: Any, request_of: Any, put_together: Any
) -> None:
    async with make_stack(admission, slow_s=0.5) as stack:
        stack.scheduler.welcome.max_model_len = 100_000
        stack.scheduler.set_ready(True)
        await stack.until(lambda: stack.upstream.limits.max_model_len == 100_000)
        # Flow control holds writes back once the client's window (4 MB at most) is full; this client reads nothing.
        sizes = [len(data) for data in admission.tokenizer.token_bytes]
        longest = sizes.index(max(sizes))
        slow = stack.stub.Generate(request_of(options={"max_tokens": 90_000}))
        submit = await stack.scheduler.next("submit")
        name = submit.request_id
        stack.scheduler.accept(name)

        async def flood() -> None:
            start = 0
            while stack.scheduler.none("cancel") and start < 80_000:
                stack.scheduler.tokens(name, [longest] * 500, start)
                start += 500
                await asyncio.sleep(0.005)

        flooding = asyncio.create_task(flood())
        quick = asyncio.create_task(collect(stack.stub.Generate(request_of())))
        await stack.scheduler.play(stack.ids("quick"))
        assert put_together(await quick)[0] == "quick"
        order = await stack.scheduler.next("cancel")
        assert (order.request_id, order.reason) == (name, "slow_client")
        await flooding
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(slow)
        assert caught.value.code() == grpc.StatusCode.CANCELLED
        assert "took nothing" in (caught.value.details() or "")


async def test_the_deadline_of_the_call_travels_and_ends_it(stack: Any, request_of: Any) -> None:
    call = stack.stub.Generate(request_of(context={"deadline_ms": 60_000}), timeout=0.4)
    submit = await stack.scheduler.next("submit")
    assert 0 < submit.remaining_deadline_us <= 400_000
    stack.scheduler.accept(submit.request_id)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await stack.scheduler.next("cancel")).reason in ("deadline", "client_disconnect")


async def test_a_deadline_in_the_body_ends_it_without_the_scheduler(stack: Any, request_of: Any) -> None:
    call = stack.stub.Generate(request_of(context={"deadline_ms": 50}))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await stack.scheduler.next("cancel")).reason == "deadline"
    assert stack.gateway.live_count == 0


@pytest.mark.parametrize("names", [({"request_id": "same"}, {"request_id": "same"}),
                                   ({"idempotency_key": "k"}, {"request_id": "other", "idempotency_key": "k"})])  # fmt: skip
async def test_same_request_twice_is_one_generation(stack: Any, request_of: Any, put_together: Any, names: Any) -> None:
    first = asyncio.create_task(collect(stack.stub.Generate(request_of(context=names[0]))))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, stack.ids("ab"))
    second = asyncio.create_task(collect(stack.stub.Generate(request_of(context=names[1]))))
    live = next(iter(stack.upstream._live.values()))
    await stack.until(lambda: len(live.wakeups) == 2)
    stack.scheduler.tokens(submit.request_id, stack.ids("c"), start=2)
    end(stack, submit.request_id, 3)
    for responses in await asyncio.gather(first, second):
        assert put_together(responses)[0] == "abc"
        assert responses[0].started.request_id == submit.request_id
    assert stack.scheduler.none("submit")


async def test_one_of_two_readers_may_leave(stack: Any, request_of: Any, put_together: Any) -> None:
    context = {"request_id": "same"}
    first = stack.stub.Generate(request_of(context=context))
    await stack.scheduler.next("submit")
    stack.scheduler.accept("same")
    await first.read()
    second = asyncio.create_task(collect(stack.stub.Generate(request_of(context=context))))
    live = next(iter(stack.upstream._live.values()))
    await stack.until(lambda: len(live.wakeups) == 2)
    first.cancel()
    await stack.until(lambda: len(live.wakeups) == 1)
    stack.scheduler.tokens("same", stack.ids("x"))
    end(stack, "same", 1)
    assert put_together(await second)[0] == "x"
    assert stack.scheduler.none("cancel")


async def test_same_id_with_another_body_already_exists(stack: Any, request_of: Any) -> None:
    first = asyncio.create_task(collect(stack.stub.Generate(request_of("one", context={"request_id": "same"}))))
    await stack.scheduler.next("submit")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stack.stub.Generate(request_of("two", context={"request_id": "same"})))
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    stack.scheduler.accept("same")
    stack.scheduler.tokens("same", stack.ids("x"))
    end(stack, "same", 1)
    await first
    live = stack.registry.get_sample_value("octavo_gateway_live_requests")
    assert live == 0


async def test_a_stored_result_is_replayed_with_its_own_seed(stack: Any, request_of: Any, put_together: Any) -> None:
    context = {"request_id": "r1"}
    first = await asyncio.gather(
        stack.scheduler.play(stack.ids("ab")), collect(stack.stub.Generate(request_of(context=context)))
    )
    again = asyncio.create_task(collect(stack.stub.Generate(request_of(context=context))))
    submit = await stack.scheduler.next("submit")
    assert submit.body_hash == first[0].body_hash
    state = {"gateway_state": first[0].gateway_state, "prompt_tokens": first[0].prompt_tokens}
    stack.scheduler.accept("r1", attached=True, **state)
    stack.scheduler.tokens("r1", stack.ids("ab"))
    end(stack, "r1", 2)
    responses = await again
    assert put_together(responses)[0] == "ab"
    assert responses[0].started.seed == first[1][0].started.seed


@pytest.mark.parametrize("by_key", [False, True])
async def test_attach_rebuilds_the_text_from_the_schedulers_state(stack: Any, request_of: Any, by_key: bool) -> None:
    text, context = "ab 🌶 END tail", {"request_id": "r1", "idempotency_key": "k1"}
    options = {"stop": ["END"], "max_tokens": 40}
    running = asyncio.create_task(collect(stack.stub.Generate(request_of(context=context, options=options))))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.finish("r1", "failed", reason="worker-failed")
    with pytest.raises(grpc.aio.AioRpcError):
        await running
    ids = stack.ids(text)
    for from_byte in (0, 1, 3, 5, 8):
        attach = pb.AttachRequest(
            from_byte=from_byte, **({"idempotency_key": "k1"} if by_key else {"request_id": "r1"})
        )
        reading = asyncio.create_task(collect(stack.stub.Attach(attach)))
        order = await stack.scheduler.next("attach")
        assert order.idempotency_key == ("k1" if by_key else "")
        label = order.request_id  # events come under the name that this gateway used
        stack.scheduler.accept(
            label, attached=True, gateway_state=submit.gateway_state, prompt_tokens=submit.prompt_tokens
        )
        stack.scheduler.tokens(label, ids[:5])
        stack.scheduler.tokens(label, ids[5:], start=5)
        await stack.scheduler.next("stop_choice")
        end(stack, label, len(ids), "stop")
        responses = await reading
        got = "".join(response.delta.text for response in responses)
        assert got == "ab 🌶 ".encode()[from_byte:].decode("utf-8", "ignore")
        assert responses[-2].delta.byte_end == 8
        assert responses[-1].finished.choices[0].bytes == 8


async def test_attach_to_a_live_request_here(stack: Any, request_of: Any) -> None:
    call = stack.stub.Generate(request_of(context={"request_id": "r1"}))
    await stack.scheduler.next("submit")
    stack.scheduler.accept("r1")
    stack.scheduler.tokens("r1", stack.ids("abc"))
    await call.read()
    live = next(iter(stack.upstream._live.values()))
    await stack.until(lambda: live.completion_tokens == 3)
    attached = asyncio.create_task(collect(stack.stub.Attach(pb.AttachRequest(request_id="r1", from_byte=2))))
    await stack.until(lambda: len(live.wakeups) == 2)
    call.cancel()
    await stack.until(lambda: len(live.wakeups) == 1)
    stack.scheduler.tokens("r1", stack.ids("d"), start=3)
    end(stack, "r1", 4)
    deltas = [response.delta for response in await attached if response.WhichOneof("event") == "delta"]
    assert "".join(delta.text for delta in deltas) == "cd"
    assert deltas[0].token_end - len(deltas[0].token_ids) == 2
    assert stack.scheduler.none("attach")


async def test_a_request_does_not_join_an_attach_that_finds_nothing(
    stack: Any, request_of: Any, put_together: Any
) -> None:
    attaching = asyncio.create_task(collect(stack.stub.Attach(pb.AttachRequest(request_id="r1"))))
    await stack.scheduler.next("attach")
    asking = asyncio.create_task(collect(stack.stub.Generate(request_of(context={"request_id": "r1"}))))
    await asyncio.sleep(0.05)
    assert stack.scheduler.none("submit")
    stack.scheduler.finish("r1", "not_found")
    submit = await stack.scheduler.play(stack.ids("own"))
    assert submit.request_id == "r1"
    assert put_together(await asking)[0] == "own"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await attaching
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_attach_to_nothing_is_not_found(stack: Any) -> None:
    reading = asyncio.create_task(collect(stack.stub.Attach(pb.AttachRequest(request_id="nobody"))))
    order = await stack.scheduler.next("attach")
    stack.scheduler.finish(order.request_id, "not_found")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reading
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stack.stub.Attach(pb.AttachRequest()))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_spans_have_one_root_and_children_inside_it(stack: Any, request_of: Any) -> None:
    secret = "a prompt nobody else should read"
    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    call = stack.stub.Generate(request_of(secret, context={"request_id": "r1"}), metadata=(("traceparent", parent),))
    submit, responses = await asyncio.gather(stack.scheduler.play(stack.ids("ok"), "stop"), collect(call))
    spans = {span.name: span for span in stack.spans.get_finished_spans()}
    assert set(spans) == {"request", "tokenize", "detokenize"}
    root = spans["request"]
    assert f"{root.context.trace_id:032x}" == "ab" * 16 == responses[0].started.trace_id
    assert f"{root.parent.span_id:016x}" == "cd" * 8
    assert submit.traceparent == f"00-{'ab' * 16}-{root.context.span_id:016x}-01"
    for name in ("tokenize", "detokenize"):
        child = spans[name]
        assert child.parent.span_id == root.context.span_id
        assert root.start_time <= child.start_time <= child.end_time <= root.end_time + 2_000_000
    attributes = root.attributes
    assert attributes["gen_ai.request.id"] == "r1"
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (
        len(stack.admission.tokenizer.encode(secret)),
        2,
    )
    assert 0 < attributes["gen_ai.latency.time_to_first_token"] <= attributes["gen_ai.latency.e2e"]
    assert not any("nobody" in str(span.to_json()) for span in spans.values())


async def test_a_bad_request_has_a_span_that_is_no_server_error(stack: Any, request_of: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await collect(stack.stub.Generate(request_of(options={"n": 99})))
    (span,) = stack.spans.get_finished_spans()
    assert span.attributes["octavo.reason"] == "rejected-invalid"
    assert span.status.is_unset


async def test_counters_equal_usage(stack: Any, request_of: Any) -> None:
    total = 0
    for n, length in ((1, 3), (3, 5)):
        _, responses = await asyncio.gather(
            stack.scheduler.play(stack.ids("x" * length)), collect(stack.stub.Generate(request_of(options={"n": n})))
        )
        total += responses[-1].finished.usage.completion_tokens
    assert total == 18
    assert stack.registry.get_sample_value("octavo_gateway_tokens_total", {"type": "completion"}) == total
    assert stack.registry.get_sample_value("octavo_gateway_time_to_first_token_seconds_count") == 2
    assert stack.registry.get_sample_value("octavo_gateway_requests_total", {"outcome": "finished", "reason": ""}) == 2
    assert pack_u32([1]) == b"\x01\0\0\0"


async def test_drain_lets_requests_end_and_takes_no_new_ones(stack: Any, request_of: Any, put_together: Any) -> None:
    running = asyncio.create_task(collect(stack.stub.Generate(request_of())))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    draining = asyncio.create_task(stack.gateway.drain())
    await asyncio.sleep(0)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stack.stub.Generate(request_of()))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    stack.scheduler.tokens(submit.request_id, stack.ids("x"))
    end(stack, submit.request_id, 1)
    assert put_together(await running)[0] == "x"
    await draining


async def test_a_drain_that_runs_out_of_time_ends_every_request(stack: Any, request_of: Any) -> None:
    running = asyncio.create_task(collect(stack.stub.Generate(request_of())))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await stack.gateway.drain()
    assert (await stack.scheduler.next("cancel")).reason == "shutdown"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_request_attached_by_key_is_cancelled_by_its_own_id(stack: Any, request_of: Any) -> None:
    running = asyncio.create_task(
        collect(stack.stub.Generate(request_of(context={"request_id": "r1", "idempotency_key": "k"})))
    )
    submit = await stack.scheduler.next("submit")
    stack.scheduler.finish("r1", "failed", reason="worker-failed")
    with pytest.raises(grpc.aio.AioRpcError):
        await running
    attached = asyncio.create_task(collect(stack.stub.Attach(pb.AttachRequest(idempotency_key="k"))))
    label = (await stack.scheduler.next("attach")).request_id
    state = {"gateway_state": submit.gateway_state, "prompt_tokens": submit.prompt_tokens}
    stack.scheduler.accept(label, attached=True, **state)
    live = next(iter(stack.upstream._live.values()))
    await stack.until(lambda: live.wakeups)
    cancelling = asyncio.ensure_future(stack.stub.Cancel(pb.CancelRequest(request_id="r1")))
    assert (await stack.scheduler.next("cancel")).request_id == label
    stack.scheduler.finish(label, "cancelled", reason="client_cancel")
    stack.scheduler.cancelled(label, found=True, outcome="cancelled")
    assert (await cancelling).found
    with pytest.raises(grpc.aio.AioRpcError):
        await attached
