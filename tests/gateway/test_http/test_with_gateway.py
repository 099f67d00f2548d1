"""The edge over the real gateway and a scripted scheduler: what admission refuses, and what a request looks like."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvloop
from octavo.rpc.testing import running_host

pytest.importorskip("octavo_gateway.gateway")

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The loop of production; the edge's other tests run on both."""
    return uvloop.EventLoopPolicy()


HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def whole(stack: Any, make_feed: Any, tmp_path: Path) -> AsyncIterator[tuple[Any, httpx.AsyncClient]]:
    """(the gateway's stack, a client of its HTTP edge)"""
    from octavo_gateway.http.server import start_http

    settings = {"gateway.http_listen": "127.0.0.1:0", "observability.trace_files": False}
    async with running_host("gateway", tmp_path, settings) as host:
        address = await start_http(stack.gateway, make_feed()[1], host)
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=20) as http:
            yield stack, http


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x " * 2000}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 255}, "max_completion_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.0001}, "top_p"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"logit_bias": {"49152": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"stop_token_ids": [151645]}, "stop_token_ids"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
async def test_bad_values_name_the_field(whole: Any, fields: dict[str, Any], param: str) -> None:
    stack, http = whole
    response = await http.post(CHAT, json={"messages": HELLO, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error"), error
    assert error["param"].partition("[")[0] == param.partition("[")[0], error
    assert error["message"].startswith(error["param"].partition("[")[0])
    assert stack.scheduler.none("submit")


@pytest.mark.parametrize("prompt", ["", [], [[]], [49152], [-1], [2**40], "x " * 2000, [5] * 256])
async def test_bad_prompts_name_the_prompt(whole: Any, prompt: Any) -> None:
    stack, http = whole
    response = await http.post(PLAIN, json={"prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["param"].partition("[")[0] == "prompt"
    assert stack.scheduler.none("submit")


async def test_echo_without_output_is_refused(whole: Any) -> None:
    _, http = whole
    response = await http.post(PLAIN, json={"prompt": "a", "echo": True, "logprobs": 1, "max_tokens": 0})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


async def test_an_unknown_model_is_a_404(whole: Any) -> None:
    _, http = whole
    response = await http.post(CHAT, json={"messages": HELLO, "model": "gpt-9"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_the_openai_client_streams_an_answer(whole: Any) -> None:
    stack, http = whole
    client = openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="k", max_retries=0)

    async def ask() -> Any:
        stream = await client.chat.completions.create(
            model="smollm2", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        return [chunk async for chunk in stream]

    submit, chunks = await asyncio.gather(stack.scheduler.play(stack.ids("Paris 🌶️!")), ask())
    assert submit.attempt == 1
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Paris 🌶️!"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == len(stack.ids("Paris 🌶️!"))


async def test_echo_and_stop_string(whole: Any) -> None:
    stack, http = whole
    body = {"prompt": "Once", "echo": True, "stop": "END", "max_tokens": 20}
    _, response = await asyncio.gather(stack.scheduler.play(stack.ids("abcENDxyz")), http.post(PLAIN, json=body))
    choice = response.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Onceabc", "stop", "END")


@pytest.mark.parametrize(("asked", "reason"), [({}, None), ({"stop_token_ids": [5]}, 5)])
async def test_the_models_own_end_is_no_stop_reason(whole: Any, asked: dict[str, Any], reason: int | None) -> None:
    stack, http = whole
    ids = [*stack.ids("abc"), 5 if asked else stack.admission.tokenizer.eos_ids[0]]

    async def play() -> None:
        submit = await stack.scheduler.next("submit")
        stack.scheduler.accept(submit.request_id, attempt=1)
        stack.scheduler.tokens(submit.request_id, ids)
        stack.scheduler.choice_finished(submit.request_id, "stop", len(ids), stop_token=ids[-1])
        stack.scheduler.finish(submit.request_id)

    body = {"prompt": "Once", "max_tokens": 20, **asked}
    _, response = await asyncio.gather(play(), http.post(PLAIN, json=body))
    choice = response.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("abc", "stop", reason)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("accepted", [False, True])
async def test_leaving_cancels_at_the_scheduler(whole: Any, stream: bool, accepted: bool) -> None:
    stack, http = whole
    body = json.dumps({"prompt": "Once", "stream": stream}).encode()
    head = f"POST {PLAIN} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    _, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    writer.write(head.encode() + body)
    submit = await stack.scheduler.next("submit")
    if accepted:
        stack.scheduler.accept(submit.request_id, attempt=1)
        stack.scheduler.tokens(submit.request_id, stack.ids("ab"))
    writer.close()
    cancel = await stack.scheduler.next("cancel")
    assert (cancel.request_id, cancel.reason) == (submit.request_id, "client_disconnect")
