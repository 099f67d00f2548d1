"""The stream to the scheduler: it breaks, it comes back, and no request is lost, repeated or left hanging."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from octavo.packing import unpack_keys, unpack_u32
from octavo.v1 import inference_pb2 as pb


async def collect(call: Any) -> list[Any]:
    return [response async for response in call]


async def test_a_broken_stream_resubmits_with_what_was_emitted(stack: Any, request_of: Any, put_together: Any) -> None:
    options = {"n": 2, "stop": ["#"], "max_tokens": 20}
    reading = asyncio.create_task(collect(stack.stub.Generate(request_of(options=options, sampling={"seed": 5}))))
    first = await stack.scheduler.next("submit")
    name = first.request_id
    stack.scheduler.accept(name)
    stack.scheduler.tokens(name, stack.ids("abc"), index=0)
    stack.scheduler.tokens(name, stack.ids("x#"), index=1)
    await stack.scheduler.next("stop_choice")
    stack.scheduler.break_stream()
    again = await stack.scheduler.next("submit")
    assert (again.request_id, again.attempt, again.max_tokens) == (name, 2, 20)
    assert unpack_u32(again.choices[0].emitted_tokens) == stack.ids("abc")
    assert unpack_u32(again.choices[1].emitted_tokens) == stack.ids("x#")
    assert [choice.finished for choice in again.choices] == ["", "stop"]
    assert [choice.seed for choice in again.choices] == [choice.seed for choice in first.choices]
    assert again.age_us > 0
    stack.scheduler.accept(name, attached=True, gateway_state=first.gateway_state, attempt=2)
    stack.scheduler.tokens(name, stack.ids("bcd"), start=1)  # overlaps what is there
    stack.scheduler.choice_finished(name, "length", 4)
    stack.scheduler.finish(name)
    responses = await reading
    assert put_together(responses, 0) == ("abcd", stack.ids("abcd"))
    assert put_together(responses, 1) == ("x", stack.ids("x#"))
    assert [response.WhichOneof("event") for response in responses].count("finished") == 1


async def test_a_scheduler_that_is_killed_and_restarted(stack: Any, request_of: Any, put_together: Any) -> None:
    reading = asyncio.create_task(collect(stack.stub.Generate(request_of())))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, stack.ids("ab"))
    await stack.until(lambda: next(iter(stack.upstream._live.values())).completion_tokens == 2)
    await stack.scheduler.stop()
    await stack.until(lambda: not stack.upstream.ready)
    reborn = type(stack.scheduler)()
    reborn.welcome.root_key = b"s" * 32
    await reborn.start(stack.scheduler.address)
    try:
        again = await reborn.next("submit")
        assert (again.attempt, unpack_u32(again.choices[0].emitted_tokens)) == (2, stack.ids("ab"))
        reborn.accept(again.request_id)
        reborn.tokens(again.request_id, stack.ids("c"), start=2)
        reborn.choice_finished(again.request_id, "length", 3)
        reborn.finish(again.request_id)
        assert put_together(await reading)[0] == "abc"
        fresh = asyncio.create_task(collect(stack.stub.Generate(request_of("word " * 40))))
        submit = await reborn.next("submit")
        limits = stack.upstream.limits
        assert limits.root_key == b"s" * 32
        keys = stack.admission.keys(unpack_u32(submit.prompt_tokens), "default", "", limits)
        assert unpack_keys(submit.prompt_keys) == unpack_keys(keys) and keys
        fresh.cancel()
    finally:
        await reborn.stop()


async def test_keys_are_derived_anew_under_another_root(stack: Any, request_of: Any) -> None:
    reading = asyncio.create_task(collect(stack.stub.Generate(request_of("word " * 40))))
    first = await stack.scheduler.next("submit")
    stack.scheduler.welcome.root_key = b"t" * 32
    stack.scheduler.break_stream()
    again = await stack.scheduler.next("submit")
    assert again.prompt_keys and again.prompt_keys != first.prompt_keys
    reading.cancel()


async def test_a_gap_in_the_tokens_closes_the_stream(stack: Any, request_of: Any, put_together: Any) -> None:
    reading = asyncio.create_task(collect(stack.stub.Generate(request_of())))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, stack.ids("ab"), start=1)
    again = await stack.scheduler.next("submit")
    assert again.attempt == 2 and stack.scheduler.connections == 2
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, stack.ids("ok"))
    stack.scheduler.choice_finished(submit.request_id, "length", 2)
    stack.scheduler.finish(submit.request_id)
    assert put_together(await reading)[0] == "ok"


async def test_heartbeats(stack: Any) -> None:
    await stack.scheduler.next("heartbeat")


async def test_not_ready_is_unavailable_at_once(make_stack: Any, admission: Any, request_of: Any) -> None:
    async with make_stack(admission, ready=False) as stack:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(stack.stub.Generate(request_of()))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert not stack.gateway.ready
        stack.scheduler.set_ready(True)
        await stack.until(lambda: stack.gateway.ready)
        await asyncio.gather(stack.scheduler.play(stack.ids("x")), collect(stack.stub.Generate(request_of())))


@pytest.mark.parametrize("welcomed", [False, True])
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"sampling": {"temperature": float("nan")}}, "temperature"),
        ({"sampling": {"logit_bias": {49152: 1.0}}}, "logit_bias"),
        ({"sampling": {"top_p": 0.0}}, "top_p"),
        ({"options": {"max_tokens": 0}}, "max_tokens"),
        ({"options": {"stop": [""]}}, "stop[0]"),
        ({"options": {"stop_token_ids": [-1]}}, "stop_token_ids[0]"),
        ({"text": ""}, "prompt"),
    ],
)
async def test_bad_input_is_told_so_while_nobody_is_ready(
    make_stack: Any, admission: Any, request_of: Any, given: dict[str, Any], field: str, welcomed: bool
) -> None:
    async with make_stack(admission, ready=False) as stack:
        if not welcomed:
            stack.upstream.limits = None
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(stack.stub.Generate(request_of(**given)))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith(f"{field}: ")


async def test_a_new_request_waits_for_a_scheduler_that_reconnects(
    stack: Any, request_of: Any, put_together: Any
) -> None:
    stack.scheduler.set_ready(False)
    await stack.until(lambda: not stack.gateway.ready)
    reading = asyncio.create_task(collect(stack.stub.Generate(request_of())))
    await asyncio.sleep(0.05)
    assert not reading.done()
    stack.scheduler.set_ready(True)
    await stack.scheduler.play(stack.ids("x"))
    assert put_together(await reading)[0] == "x"


async def test_a_new_request_waits_only_for_the_grace(make_stack: Any, admission: Any, request_of: Any) -> None:
    async with make_stack(admission, grace_s=0.05) as stack:
        stack.scheduler.set_ready(False)
        await stack.until(lambda: not stack.gateway.ready)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(stack.stub.Generate(request_of()))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_cancel_answers_with_the_result(stack: Any, request_of: Any) -> None:
    call = stack.stub.Generate(request_of(context={"request_id": "r1"}))
    reading = asyncio.create_task(collect(call))
    await stack.scheduler.next("submit")
    stack.scheduler.accept("r1")
    stack.scheduler.tokens("r1", stack.ids("ab"))
    cancelling = [asyncio.ensure_future(stack.stub.Cancel(pb.CancelRequest(request_id="r1"))) for _ in range(2)]
    order = await stack.scheduler.next("cancel")
    assert (order.request_id, order.reason) == ("r1", "client_cancel")
    await stack.scheduler.next("cancel")
    stack.scheduler.finish("r1", "cancelled", reason="client_cancel")
    stack.scheduler.cancelled("r1", found=True, outcome="cancelled", last_step=9, blocks_freed=3, latency_us=50)
    for result in await asyncio.gather(*cancelling):
        assert (result.found, result.outcome, result.last_step, result.blocks_freed, result.latency_us) == (
            True,
            "cancelled",
            9,
            3,
            50,
        )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reading
    assert caught.value.code() == grpc.StatusCode.CANCELLED


async def test_a_pause_travels_with_the_request_and_after_it(stack: Any, request_of: Any) -> None:
    context = {"request_id": "r1", "pause": {"tool": "search", "expected_ms": 800}, "resumes": "r0"}
    call = stack.stub.Generate(request_of(context=context))
    reading = asyncio.create_task(collect(call))
    submit = await stack.scheduler.next("submit")
    assert (submit.pause_tool, submit.pause_expected_us, submit.resumes) == ("search", 800_000, "r0")
    stack.scheduler.accept("r1")
    stack.scheduler.finish("r1", "finished")
    pausing = asyncio.ensure_future(
        stack.stub.Pause(pb.PauseRequest(request_id="r1", pause=pb.ToolPause(tool="build", expected_ms=7)))
    )
    order = await stack.scheduler.next("pause")
    assert (order.request_id, order.tool, order.expected_us) == ("r1", "build", 7000)
    stack.scheduler.paused("r1", "keep")
    answer = await pausing
    assert (answer.found, answer.decision) == (True, "keep")
    reading.cancel()


async def test_a_pause_of_nothing_is_not_found(stack: Any) -> None:
    pausing = asyncio.ensure_future(stack.stub.Pause(pb.PauseRequest(request_id="nobody")))
    await stack.scheduler.next("pause")
    stack.scheduler.paused("nobody", "")
    assert not (await pausing).found
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.stub.Pause(pb.PauseRequest())
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_cancel_of_an_unknown_id_is_a_no_op(stack: Any) -> None:
    cancelling = asyncio.ensure_future(stack.stub.Cancel(pb.CancelRequest(request_id="nobody")))
    order = await stack.scheduler.next("cancel")
    stack.scheduler.cancelled(order.request_id, found=False)
    assert not (await cancelling).found
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.stub.Cancel(pb.CancelRequest())
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_break_during_a_cancel_asks_again_instead_of_resubmitting(stack: Any, request_of: Any) -> None:
    call = stack.stub.Generate(request_of(context={"request_id": "r1"}))
    await asyncio.gather(stack.scheduler.next("submit"), asyncio.sleep(0))
    stack.scheduler.accept("r1")
    await call.read()
    call.cancel()
    await stack.scheduler.next("cancel")
    stack.scheduler.break_stream()
    order = await stack.scheduler.next("cancel")
    assert (order.request_id, order.reason) == ("r1", "client_disconnect")
    assert stack.scheduler.none("submit")
    stack.scheduler.cancelled("r1", found=False)
    await stack.until(lambda: stack.gateway.live_count == 0)


async def test_live_requests_fail_when_the_scheduler_stays_away(stack: Any, request_of: Any) -> None:
    object.__setattr__(stack.upstream._settings, "patience_s", 0.1)
    reading = asyncio.create_task(collect(stack.stub.Generate(request_of())))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    await stack.scheduler.stop()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reading
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert stack.gateway.live_count == 0


async def test_a_write_after_the_stream_s_end_is_a_broken_stream(stack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What grpc.aio raises when the scheduler dies between two messages must not end the gateway."""
    beat, raised = stack.upstream._beat, 0

    async def beat_after_the_end() -> None:
        nonlocal raised
        if raised:
            await beat()
        raised += 1
        raise asyncio.InvalidStateError("RPC already finished.")

    monkeypatch.setattr(stack.upstream, "_beat", beat_after_the_end)
    stack.scheduler.break_stream()
    await stack.until(lambda: stack.upstream.connections >= 3)
    assert raised == 1 and stack.upstream.ready


@pytest.mark.parametrize("takes_many", [False, True])
async def test_what_has_waited_for_the_stream_goes_as_one_message_where_that_is_read(
    stack: Any, takes_many: bool
) -> None:
    stack.scheduler.welcome.takes_many = takes_many
    stack.scheduler.set_ready(True)
    await stack.until(lambda: stack.upstream._takes_many == takes_many)
    before = stack.scheduler.messages
    for number in range(100):  # nobody else runs meanwhile
        stack.upstream.cancel(f"request-{number}", "default", "client_cancel")
    assert [(await stack.scheduler.next("cancel")).request_id for _ in range(100)] == [
        f"request-{n}" for n in range(100)
    ]
    messages = stack.scheduler.messages - before
    assert messages >= 100 if not takes_many else 2 <= messages <= 4  # 64 at most in one; a heartbeat may come between


async def test_one_message_of_many_stays_small(stack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo_gateway.upstream.MANY_BYTES", 1000)
    stack.scheduler.welcome.takes_many = True
    stack.scheduler.set_ready(True)
    await stack.until(lambda: stack.upstream._takes_many)
    before = stack.scheduler.messages
    for _ in range(8):
        stack.upstream.cancel("x" * 400, "default", "client_cancel")
    for _ in range(8):
        await stack.scheduler.next("cancel")
    assert 4 <= stack.scheduler.messages - before <= 5


async def test_a_large_message_goes_without_a_wrapper(stack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper's few bytes could be those that gRPC does not send: a stream that breaks anew with each resubmit."""
    monkeypatch.setattr("octavo_gateway.upstream.MANY_BYTES", 1000)
    stack.scheduler.welcome.takes_many = True
    stack.scheduler.set_ready(True)
    await stack.until(lambda: stack.upstream._takes_many)
    for size in (2000, 10, 10):
        stack.upstream.cancel("x" * size, "default", "client_cancel")
    first = stack.upstream._next_message()
    assert first.HasField("cancel") and first.cancel.request_id == "x" * 2000
    assert len(stack.upstream._next_message().many.orders) == 2
