"""The gRPC edge over a scripted scheduler: the contract of a request, from the client's side."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from blake3 import blake3
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from octavo.packing import pack_u32, unpack_keys, unpack_u32
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import worker_pb2

HARD_TEXTS = ["👨‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "नमस्ते दुनिया", "สวัสดี", "🌶️ é ﷽"]


async def collect(call: Any) -> list[Any]:
    return [response async for response in call]


def details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The rich status: ErrorInfo reason, field violations, retry delay in seconds."""
    status = rpc_status.from_call(error)
    found: dict[str, Any] = {}
    for detail in status.details if status else ():
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            found["reason"] = info.reason
        elif detail.Unpack(bad):
            found["fields"] = [violation.field for violation in bad.field_violations]
        elif detail.Unpack(retry):
            found["retry_s"] = retry.retry_delay.ToMilliseconds() / 1e3
    return found


async def test_a_request_from_start_to_end(stack: Any, request_of: Any, put_together: Any) -> None:
    ids = stack.ids("Paris!")
    call = stack.stub.Generate(request_of(context={"request_id": "r1"}, sampling={"seed": 7}))
    submit, responses = await asyncio.gather(stack.scheduler.play(ids), collect(call))
    assert [response.WhichOneof("event") for response in responses][0 :: len(responses) - 1] == ["started", "finished"]
    started, finished = responses[0].started, responses[-1].finished
    assert (started.request_id, started.model, started.seed, started.prompt_tokens) == ("r1", "smollm2", 7, 1)
    assert put_together(responses) == ("Paris!", ids)
    assert responses[-2].delta.finish_reason == pb.FINISH_REASON_LENGTH
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (1, 6)
    end = finished.choices[0]
    assert (end.tokens, end.bytes, end.ids_blake3) == (6, 6, blake3(pack_u32(ids)).digest())
    times = finished.timings
    order = [times.t_tokenized_us, times.t_admitted_us, times.t_prefill_start_us, times.t_first_token_us,
             times.t_last_token_us, times.t_complete_us]  # fmt: skip
    assert order == sorted(order) and order[0] > 0
    assert unpack_u32(submit.prompt_tokens) == [19556]
    assert (submit.attempt, submit.tenant, submit.max_tokens, submit.request_id) == (1, "default", 16, "r1")
    assert unpack_u32(submit.sampling.stop_ids) == [2]


async def test_chat_renders_and_sends_block_keys(stack: Any, put_together: Any) -> None:
    call = stack.stub.Chat(pb.ChatRequest(messages=[pb.Message(role="user", content="Hi")]))
    submit, responses = await asyncio.gather(stack.scheduler.play(stack.ids("ok")), collect(call))
    prompt = unpack_u32(submit.prompt_tokens)
    assert stack.admission.tokenizer.decode(prompt).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert len(unpack_keys(submit.prompt_keys)) == len(prompt) // 16
    assert submit.max_tokens == 256 - len(prompt)
    assert put_together(responses)[0] == "ok"


@pytest.mark.parametrize("text", HARD_TEXTS)
@pytest.mark.parametrize("step", [1, 3])
async def test_hard_texts_byte_by_byte(stack: Any, request_of: Any, put_together: Any, text: str, step: int) -> None:
    ids = stack.ids(text)
    _, responses = await asyncio.gather(
        stack.scheduler.play(ids, step=step), collect(stack.stub.Generate(request_of()))
    )
    assert put_together(responses) == (text, ids)
    assert not any("\ufffd" in response.delta.text for response in responses)


async def test_cut_inside_a_character(stack: Any, request_of: Any, put_together: Any) -> None:
    ids = stack.ids("a🌶".encode()[:-1])
    _, responses = await asyncio.gather(stack.scheduler.play(ids), collect(stack.stub.Generate(request_of())))
    assert put_together(responses)[0] == stack.admission.tokenizer.decode(ids) == "a\ufffd"


async def test_prompt_ending_inside_a_character(stack: Any, put_together: Any) -> None:
    raw = "Hello 🌶".encode()
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=stack.ids(raw[:-1])))
    _, responses = await asyncio.gather(
        stack.scheduler.play(stack.ids(raw[-1:] + b"!")), collect(stack.stub.Generate(request))
    )
    assert put_together(responses)[0] == "🌶!"


async def test_stop_string_is_cut_and_what_follows_is_not_billed(
    stack: Any, request_of: Any, put_together: Any
) -> None:
    ids = stack.ids("ab END more")
    call = stack.stub.Generate(request_of(options={"stop": [" END"]}))
    reading = asyncio.create_task(collect(call))
    submit = await stack.scheduler.next("submit")
    name = submit.request_id
    stack.scheduler.accept(name)
    stack.scheduler.tokens(name, ids)
    stop = await stack.scheduler.next("stop_choice")
    assert (stop.request_id, stop.index, stop.at_len) == (name, 0, 6)
    stack.scheduler.tokens(name, stack.ids("late"), start=len(ids))
    stack.scheduler.choice_finished(name, "length", 15)
    stack.scheduler.finish(name)
    responses = await reading
    assert put_together(responses) == ("ab", ids[:6])
    last = responses[-2].delta
    assert (last.finish_reason, last.stop_hit) == (pb.FINISH_REASON_STOP, " END")
    assert responses[-1].finished.usage.completion_tokens == 6


async def test_include_stop_str_and_min_tokens(stack: Any, request_of: Any, put_together: Any) -> None:
    options = {"stop": ["."], "include_stop_str": True, "min_tokens": 4}
    reading = asyncio.create_task(collect(stack.stub.Generate(request_of(options=options))))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, stack.ids("a.bc.d"))
    assert (await stack.scheduler.next("stop_choice")).at_len == 5
    stack.scheduler.choice_finished(submit.request_id, "stop", 5)
    stack.scheduler.finish(submit.request_id)
    assert put_together(await reading)[0] == "a.bc."


async def test_stop_token_has_no_text_and_is_billed(stack: Any, request_of: Any, put_together: Any) -> None:
    ids = [*stack.ids("ab"), stack.ids("X")[0]]
    options = {"stop_token_ids": [ids[-1]]}
    reading = asyncio.create_task(collect(stack.stub.Generate(request_of(options=options))))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, ids)
    stack.scheduler.choice_finished(submit.request_id, "stop", 3, stop_token=ids[-1])
    stack.scheduler.finish(submit.request_id)
    responses = await reading
    assert put_together(responses) == ("ab", ids)
    assert responses[-2].delta.stop_hit == str(ids[-1])
    assert responses[-1].finished.usage.completion_tokens == 3
    assert stack.scheduler.none("stop_choice")


async def test_several_choices(stack: Any, request_of: Any, put_together: Any) -> None:
    submit, responses = await asyncio.gather(
        stack.scheduler.play(stack.ids("xyz")),
        collect(stack.stub.Generate(request_of(options={"n": 3}, sampling={"seed": 1}))),
    )
    assert len({choice.seed for choice in submit.choices}) == 3
    assert [put_together(responses, i)[0] for i in range(3)] == ["xyz"] * 3
    assert responses[-1].finished.usage.completion_tokens == 9
    assert len(responses[-1].finished.choices) == 3


async def test_logprobs_and_echo(stack: Any, request_of: Any, put_together: Any) -> None:
    reading = asyncio.create_task(
        collect(stack.stub.Generate(request_of("Hey ", options={"logprobs": 1, "echo": True})))
    )
    submit = await stack.scheduler.next("submit")
    assert submit.sampling.logprobs == 1
    token = stack.ids("a")[0]
    logprob = worker_pb2.Logprobs(token=token, logprob=-0.5, top_tokens=pack_u32([token]), top_logprobs=[-0.5])
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, [token], logprobs=[logprob])
    stack.scheduler.choice_finished(submit.request_id, "length", 1)
    stack.scheduler.finish(submit.request_id)
    responses = await reading
    assert put_together(responses)[0] == "Hey a"
    assert responses[1].delta.text == "Hey " and not responses[1].delta.token_ids
    given = [logprob for response in responses for logprob in response.delta.logprobs]
    assert [(item.token_id, item.text, item.token_bytes, item.top[0].token_id) for item in given] == [
        (token, "a", b"a", token)
    ]
    assert responses[-1].finished.choices[0].bytes == 5


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"options": {"max_tokens": 0}}, "max_tokens"),
        ({"options": {"n": 1000}}, "n"),
        ({"options": {"stop": [""]}}, "stop[0]"),
        ({"sampling": {"temperature": float("nan")}}, "temperature"),
        ({"sampling": {"top_p": 0.0}}, "top_p"),
        ({"sampling": {"logit_bias": {49152: 1.0}}}, "logit_bias"),
        ({"text": ""}, "prompt"),
    ],
)
async def test_bad_input_is_invalid_argument_with_the_field(
    stack: Any, request_of: Any, request_fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stack.stub.Generate(request_of(**request_fields)))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details(caught.value) == {"reason": "rejected-invalid", "fields": [field]}
    assert stack.scheduler.none("submit")
    await asyncio.gather(stack.scheduler.play(stack.ids("x")), collect(stack.stub.Generate(request_of())))


async def test_unknown_model_is_not_found(stack: Any, request_of: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stack.stub.Generate(request_of(context={"model": "gpt"})))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_overload_carries_a_retry_delay(stack: Any, request_of: Any) -> None:
    reading = asyncio.create_task(collect(stack.stub.Generate(request_of())))
    submit = await stack.scheduler.next("submit")
    stack.scheduler.finish(
        submit.request_id,
        "rejected",
        reason="rejected-queue-requests",
        message="4096 requests wait",
        retry_after_us=1_500_000,
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reading
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details(caught.value) == {"reason": "rejected-queue-requests", "retry_s": 1.5}


@pytest.mark.parametrize(
    ("outcome", "reason", "code"),
    [
        ("failed", "worker-failed", grpc.StatusCode.UNAVAILABLE),
        ("cancelled", "client_cancel", grpc.StatusCode.CANCELLED),
        ("deadline", "evicted-deadline", grpc.StatusCode.DEADLINE_EXCEEDED),
        ("rejected", "rejected-never-fits", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_failure_after_tokens_never_looks_like_success(
    stack: Any, request_of: Any, outcome: str, reason: str, code: grpc.StatusCode
) -> None:
    call = stack.stub.Generate(request_of())
    submit_task = asyncio.create_task(stack.scheduler.next("submit"))
    submit = await submit_task
    stack.scheduler.accept(submit.request_id)
    stack.scheduler.tokens(submit.request_id, stack.ids("part"))
    stack.scheduler.finish(submit.request_id, outcome, reason=reason)
    kinds, text = [], ""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for response in call:
            kinds.append(response.WhichOneof("event"))
            text += response.delta.text
    assert caught.value.code() == code
    assert text == "part"
    assert "finished" not in kinds
    assert details(caught.value)["reason"] == reason


async def test_without_keys_and_with_them(make_stack: Any, admission: Any, request_of: Any) -> None:
    async with make_stack(admission, keys={"sk-1": "acme"}) as stack:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(stack.stub.Generate(request_of()))
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        call = stack.stub.Generate(
            request_of(context={"request_id": "r"}), metadata=(("authorization", "Bearer sk-1"),)
        )
        submit, responses = await asyncio.gather(stack.scheduler.play(stack.ids("x")), collect(call))
        assert (submit.tenant, submit.request_id) == ("acme", "acme/r")
        assert responses[0].started.request_id == "r"


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Tokenize", pb.TokenizeRequest(text="x")),
        ("CountTokens", pb.CountTokensRequest(text="x")),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1])),
        ("ListModels", pb.ListModelsRequest()),
        ("Cancel", pb.CancelRequest(request_id="r")),
        ("Ack", pb.AckRequest(request_id="r")),
    ],
)
async def test_every_unary_asks_for_the_key(make_stack: Any, admission: Any, method: str, request_: Any) -> None:
    async with make_stack(admission, keys={"sk-1": "acme"}) as stack:
        call = getattr(stack.stub, method)
        for metadata in ((), (("authorization", "Bearer sk-2"),)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request_, metadata=metadata)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert stack.scheduler.none("cancel")
        if method == "Cancel":
            answer = call(request_, metadata=(("authorization", "Bearer sk-1"),))
            order = await stack.scheduler.next("cancel")
            assert (order.request_id, order.tenant) == ("acme/r", "acme")
            stack.scheduler.cancelled(order.request_id)
            assert not (await answer).found
        else:
            await call(request_, metadata=(("authorization", "bearer sk-1"),))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
async def test_an_ack_of_no_time_is_refused(stack: Any, value: float) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.stub.Ack(pb.AckRequest(request_id="r1", first_token_ms=value))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert details(caught.value)["fields"] == ["first_token_ms"]


async def test_tokenize_detokenize_count_models(stack: Any) -> None:
    tokens = await stack.stub.Tokenize(pb.TokenizeRequest(text="Hello<|im_end|>"))
    assert 2 not in tokens.token_ids and tokens.pieces[0] == "Hello"
    special = await stack.stub.Tokenize(pb.TokenizeRequest(text="Hello<|im_end|>", parse_special=True))
    assert list(special.token_ids) == [19556, 2]
    assert (await stack.stub.Detokenize(pb.DetokenizeRequest(token_ids=[19556, 2]))).text == "Hello<|im_end|>"
    skipped = pb.DetokenizeRequest(token_ids=[19556, 2], skip_special_tokens=True)
    assert (await stack.stub.Detokenize(skipped)).text == "Hello"
    chat = pb.ChatMessages(messages=[pb.Message(role="user", content="Hi")], add_generation_prompt=False)
    counted = await stack.stub.CountTokens(pb.CountTokensRequest(messages=chat))
    assert counted.max_model_len == 256
    assert counted.tokens == len((await stack.stub.Tokenize(pb.TokenizeRequest(messages=chat))).token_ids)
    model = (await stack.stub.ListModels(pb.ListModelsRequest())).models[0]
    assert (model.id, model.vocab_size, model.fingerprint) == ("smollm2", 49152, (b"r" * 32).hex())
    for bad in (pb.DetokenizeRequest(token_ids=[49152]), pb.DetokenizeRequest(token_ids=[1], model="x")):
        with pytest.raises(grpc.aio.AioRpcError):
            await stack.stub.Detokenize(bad)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.stub.Tokenize(pb.TokenizeRequest())
    assert details(caught.value)["fields"] == ["input"]


async def test_ack(stack: Any, request_of: Any) -> None:
    call = stack.stub.Generate(request_of(context={"request_id": "r1"}))
    await asyncio.gather(stack.scheduler.play(stack.ids("x")), collect(call))
    ack = pb.AckRequest(request_id="r1", byte_end=1, first_token_ms=12.0, last_token_ms=13.0)
    assert (await stack.stub.Ack(ack)).found
    assert not (await stack.stub.Ack(pb.AckRequest(request_id="nobody"))).found
    assert stack.registry.get_sample_value("octavo_gateway_client_first_token_seconds_count") == 1
