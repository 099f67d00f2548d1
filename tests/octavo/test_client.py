"""AsyncClient against a scripted gateway: answers, errors, retries, metadata, cancel, acks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import octavo
import pytest
from google.rpc import error_details_pb2
from octavo import errors
from octavo.client.retry import RetryPolicy
from octavo.v1 import inference_pb2 as pb
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

QUICK = RetryPolicy(first_backoff_s=0.01, max_backoff_s=0.02)


def client_of(*served: Any, **options: Any) -> octavo.AsyncClient:
    return octavo.AsyncClient([item.address for item in served], retry=QUICK, **options)


async def test_a_whole_answer(served: Any, script: Any) -> None:
    served.gateway.scripts = [script.answer(["The ", "capital"])]
    async with client_of(served) as client:
        done = await client.generate(
            "What?", temperature=0, max_tokens=5, stop="\n", seed=3, logit_bias={7: -1.5}, model="m", n=1
        )
    assert done.text == "The capital" and done.finish_reason == "stop"
    assert done.choices[0].token_ids == (101, 102)
    assert (done.usage.prompt_tokens, done.usage.cached_tokens, done.usage.total_tokens) == (4, 1, 6)
    assert done.timings.t_first_token_us == 1500 and done.trace_id == "ab" * 16 and done.seed == 77
    assert 0 < done.first_token_ms <= done.last_token_ms
    name, request, _metadata = served.gateway.calls[0]
    assert name == "Generate" and request.text == "What?" and request.context.request_id
    assert request.sampling.HasField("temperature") and request.sampling.temperature == 0
    assert not request.sampling.HasField("top_p")
    assert (request.options.max_tokens, list(request.options.stop)) == (5, ["\n"])
    assert dict(request.sampling.logit_bias) == {7: -1.5} and request.context.deadline_ms == 0


async def test_a_stream_is_its_chunks_and_is_acked_once(served: Any, script: Any) -> None:
    served.gateway.scripts = [script.answer(["é", "ß", "🙂"])]
    async with client_of(served) as client:
        stream = client.chat_stream([{"role": "user", "content": "hi"}], request_id="r1")
        chunks = [chunk async for chunk in stream]
    assert [chunk.text for chunk in chunks] == ["é", "ß", "🙂"]
    assert stream.completion is not None and stream.completion.text == stream.text == "éß🙂"
    assert [(ack.request_id, ack.byte_end) for ack in served.gateway.acks] == [("r1", 8)]
    assert served.gateway.acks[0].first_token_ms == stream.completion.first_token_ms
    assert served.gateway.calls[0][1].messages[0].role == "user"


async def test_token_ids_as_prompt_and_several_choices(served: Any, script: Any) -> None:
    first, second = script.answer(["a", "b"], index=0), script.answer(["x"], index=1)
    finished = pb.Finished(choices=[first[-1].choices[0], second[-1].choices[0]])
    served.gateway.scripts = [[first[0], first[1], second[1], first[2], finished]]
    async with client_of(served) as client:
        done = await client.generate([1, 2, 3], n=2)
    assert [(choice.index, choice.text) for choice in done.choices] == [(0, "ab"), (1, "x")]
    assert list(served.gateway.calls[0][1].token_ids.ids) == [1, 2, 3]


@pytest.mark.parametrize(
    ("status", "details", "kind", "field", "retry_after_s"),
    [
        (
            "INVALID_ARGUMENT",
            [
                error_details_pb2.BadRequest(
                    field_violations=[{"field": "top_p", "description": "top_p: 2 must be in (0, 1]"}]
                )
            ],
            errors.InvalidRequest,
            "top_p",
            0.0,
        ),
        (
            "INVALID_ARGUMENT",
            [error_details_pb2.ErrorInfo(reason="rejected-never-fits")],
            errors.NeverFits,
            "",
            0.0,
        ),
        ("NOT_FOUND", [], errors.UnknownModel, "", 0.0),
        ("NOT_FOUND", [error_details_pb2.ErrorInfo(reason="request_not_found")], errors.UnknownRequest, "", 0.0),
        ("RESOURCE_EXHAUSTED", [], errors.Overloaded, "", 0.0),
        ("ALREADY_EXISTS", [], errors.AlreadyExists, "", 0.0),
        ("UNAUTHENTICATED", [], errors.Unauthenticated, "", 0.0),
        ("CANCELLED", [], errors.Cancelled, "", 0.0),
        ("DEADLINE_EXCEEDED", [], errors.DeadlineExceeded, "", 0.0),
        ("INTERNAL", [], errors.InternalError, "", 0.0),
        ("DATA_LOSS", [], errors.InternalError, "", 0.0),
    ],
)
async def test_a_status_becomes_its_exception_and_is_not_retried(
    served: Any, script: Any, status: str, details: Any, kind: Any, field: str, retry_after_s: float
) -> None:
    served.gateway.scripts = [[script.failure(getattr(script.code, status), "what and what to do", details)]]
    async with client_of(served) as client:
        with pytest.raises(kind, match="what and what to do") as caught:
            await client.generate("x")
    assert type(caught.value) is kind and caught.value.field == field
    assert caught.value.retry_after_s == retry_after_s
    assert len(served.gateway.calls) == 1


async def test_unavailable_before_the_first_token_is_called_again_with_the_same_request(
    served: Any, script: Any
) -> None:
    started = script.answer([], end=False)
    served.gateway.scripts = [[script.unavailable], [*started, script.unavailable], script.answer(["ok"])]
    async with client_of(served) as client:
        done = await client.generate("x")
    assert done.text == "ok" and done.resumes == 0
    assert [name for name, _request, _metadata in served.gateway.calls] == ["Generate"] * 3
    assert len({request.SerializeToString(deterministic=True) for _n, request, _m in served.gateway.calls}) == 1


async def test_retries_end(served: Any, script: Any) -> None:
    served.gateway.scripts = [[script.unavailable]] * 9
    async with client_of(served) as client:
        with pytest.raises(errors.Unavailable):
            await client.generate("x")
    assert len(served.gateway.calls) == QUICK.max_attempts


async def test_overload_is_retried_only_with_retry_info_and_within_the_deadline(served: Any, script: Any) -> None:
    full = script.code.RESOURCE_EXHAUSTED
    served.gateway.scripts = [
        [script.failure(full, "queue full", [script.retry_info(0.02)])],
        script.answer(["ok"]),
        [script.failure(full, "queue full", [script.retry_info(0.9)])],
    ]
    async with client_of(served) as client:
        assert (await client.generate("x")).text == "ok"
        with pytest.raises(errors.Overloaded) as caught:
            await client.generate("x", deadline_s=0.5)
    assert caught.value.retry_after_s == pytest.approx(0.9)
    assert len(served.gateway.calls) == 3


async def test_a_call_with_a_deadline_carries_it_and_ends(served: Any, script: Any) -> None:
    async def hang() -> None:
        await asyncio.sleep(30)

    served.gateway.scripts = [[*script.answer(["a"], end=False), hang]]
    async with client_of(served) as client:
        with pytest.raises(errors.DeadlineExceeded):
            await client.generate("x", deadline_s=0.2)
    assert served.gateway.calls[0][1].context.deadline_ms == 200
    assert 0.5 < served.gateway.remaining_s[0] < 1.3  # the server gets to say it first


async def test_traceparent_and_key_travel(served: Any, script: Any) -> None:
    served.gateway.scripts = [script.answer(["ok"])]
    parent = SpanContext(0xAB, 0xCD, is_remote=False, trace_flags=TraceFlags(1))
    async with client_of(served, api_key="secret") as client:
        with trace.use_span(NonRecordingSpan(parent)):
            stream = client.generate_stream("x")
        await stream.result()  # the context is that of the call, not of the iteration
    metadata = served.gateway.calls[0][2]
    assert metadata["traceparent"] == f"00-{0xAB:032x}-{0xCD:016x}-01"
    assert metadata["authorization"] == "Bearer secret"


async def test_no_traceparent_without_a_span(served: Any, script: Any) -> None:
    served.gateway.scripts = [script.answer(["ok"])]
    async with client_of(served) as client:
        await client.generate("x")
    assert "traceparent" not in served.gateway.calls[0][2]


async def test_closing_early_cancels_at_the_server(served: Any, script: Any) -> None:
    hold = asyncio.Event()
    served.gateway.scripts = [[*script.answer(["a"], end=False), hold.wait]]
    async with client_of(served) as client:
        async with client.generate_stream("x") as stream:
            assert (await anext(stream)).text == "a"
        await asyncio.wait_for(served.gateway.cancelled.wait(), 5)
        with pytest.raises(errors.Cancelled):
            await anext(stream)
    assert served.gateway.acks == []


async def test_a_cancelled_task_cancels_at_the_server(served: Any, script: Any) -> None:
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.sleep(30)

    served.gateway.scripts = [[*script.answer(["a"], end=False), hang]]
    async with client_of(served) as client:
        task = asyncio.create_task(client.generate("x"))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(served.gateway.cancelled.wait(), 5)


async def test_cancel_by_id_and_by_stream(served: Any, script: Any) -> None:
    served.gateway.scripts = [[*script.answer(["a"], request_id="r2", end=False)]]
    async with client_of(served) as client:
        assert (await client.cancel("r9")).blocks_freed == 3
        stream = client.generate_stream("x", request_id="r2")
        await anext(stream)
        stopped = await stream.cancel("enough")
        await stream.aclose()
    assert stopped.found and stopped.last_step == 9
    requests = [request for name, request, _metadata in served.gateway.calls if name.lower().endswith("cancel")]
    assert [(request.request_id, request.reason) for request in requests] == [
        ("r9", "client_cancel"),
        ("r2", "enough"),
    ]


@pytest.mark.parametrize("knows_sessions", [False])
async def test_a_stream_without_a_terminal_event_is_an_error(served: Any, script: Any) -> None:
    served.gateway.scripts = [script.answer(["a"], end=False)]
    async with client_of(served) as client:
        with pytest.raises(errors.InternalError, match="terminal"):
            await client.generate("x")


async def test_lost_text_is_an_error(served: Any, script: Any) -> None:
    events = script.answer(["abc", "def"])
    served.gateway.scripts = [[events[0], events[2], events[3]], [events[0], events[1], events[3]]]
    async with client_of(served) as client:
        with pytest.raises(errors.InternalError, match="skipped from byte 0 to 3"):
            await client.generate("x")
        with pytest.raises(errors.InternalError, match="3 bytes arrived of the 6"):
            await client.generate("x")


async def test_the_unary_calls(served: Any, script: Any) -> None:
    served.gateway.unary_failures = [script.unavailable]
    async with client_of(served) as client:
        assert (await client.tokenize("hey", add_bos=False)).token_ids == (5, 6)
        assert await client.detokenize([5, 6]) == "hey"
        counted = await client.count_tokens([octavo.Message("user", "hey")])
        assert (counted.tokens, counted.max_model_len) == (2, 8192)
        assert [model.id for model in await client.models()] == ["m"]
    requests = {name: request for name, request, _metadata in served.gateway.calls}
    assert [name for name, _r, _m in served.gateway.calls].count("Tokenize") == 2
    assert requests["Tokenize"].HasField("add_bos") and requests["CountTokens"].messages.messages[0].content == "hey"


async def test_bad_arguments_are_named_before_anything_is_sent(served: Any) -> None:
    async with client_of(served) as client:
        with pytest.raises(TypeError, match="did you mean 'temperature'"):
            await client.generate("x", temprature=1)  # type: ignore[call-arg]
        for arguments, field in (
            ({"max_tokens": 2**40}, "max_tokens"),
            ({"temperature": "hot"}, "temperature"),
            ({"deadline_s": 0}, "deadline_s"),
            ({"deadline_s": float("nan")}, "deadline_s"),
            ({"stop": [1]}, "stop"),
        ):
            with pytest.raises(errors.InvalidRequest) as caught:
                await client.generate("x", **arguments)
            assert caught.value.field == field
        with pytest.raises(errors.InvalidRequest) as caught:
            await client.generate([-1])
        assert caught.value.field == "prompt"
        with pytest.raises(errors.InvalidRequest) as caught:
            await client.chat([{"role": "user", "text": "x"}])
        assert caught.value.field == "messages[0]"
    assert served.gateway.calls == []


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:80", "localhost", "grpc://h:0", "grpc://h:99999", []])
def test_bad_addresses_are_refused(address: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="address"):
        octavo.AsyncClient(address)


async def test_nobody_listens(unused_tcp_port: int) -> None:
    async with octavo.AsyncClient(f"grpc://127.0.0.1:{unused_tcp_port}", retry=QUICK) as client:
        with pytest.raises(errors.Unavailable, match=f"127.0.0.1:{unused_tcp_port}") as caught:
            await client.models()
    assert caught.value.reason == "unreachable"


def test_importing_the_client_loads_no_service_and_no_torch() -> None:
    code = (
        "import sys, octavo; octavo.Client; octavo.AsyncClient; octavo.errors;"
        "print([n for n in sys.modules if n.split('.')[0] in ('torch', 'numpy', 'lmdb', 'yaml', 'prometheus_client')"
        " or n.startswith(('octavo_', 'opentelemetry.sdk'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_service_module_does_not_load_the_client() -> None:
    code = "import sys, octavo.keys, octavo.packing; print('octavo.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
