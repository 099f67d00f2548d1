"""An OpenAI-compatible server that breaks: each way is one request's failure with its reason, never the run's end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from octavo.errors import InternalError, InvalidRequest, OctavoError
from octavo_cli.bench.http_target import MAX_EVENT_BYTES, HttpTarget
from octavo_cli.bench.runner import Asking, Runner
from octavo_cli.bench.sample import Sample
from octavo_cli.bench.target import Described
from octavo_cli.bench.work import Piece, Session, Turn

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def event(content: Any) -> bytes:
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


TOKEN = event({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}})
DONE = event(b"[DONE]")


@contextlib.asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[str]:
    """Answers every request with these bytes, then closes; no bytes: resets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if answer:
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


async def asked(answer: bytes) -> Sample:
    async with raw_server(answer) as url, HttpTarget(url) as target:
        runner = Runner(target, Described("m", 1000, 4096), Asking())
        run = await runner.closed_loop([Session("a", (Turn(2, (Piece("p", 3),)),))], 1)
    return run.samples[0]


@pytest.mark.parametrize(
    ("answer", "outcome", "said"),
    [
        (HEAD + TOKEN + DONE, "ok", ""),
        (HEAD + TOKEN, "failed", "stream-cut"),
        (HEAD, "failed", "stream-cut"),
        (b"", "failed", "the connection broke"),
        (b"\x00garbage\r\n\r\n", "failed", "the connection broke"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\nabc", "failed", "the connection broke"),
        (HEAD.replace(b"close", b"close\r\ncontent-encoding: gzip") + b"no gzip", "failed", "the connection broke"),
        (b"HTTP/1.1 429 X\r\ncontent-length: 4\r\n\r\nbusy", "rejected", "HTTP 429: busy"),
        (b"HTTP/1.1 503 X\r\ncontent-length: 4\r\n\r\nbusy", "rejected", "HTTP 503: busy"),
        (b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\n[]", "failed", "HTTP 500"),
        (HEAD + event(b"{nope") + DONE, "failed", "not JSON"),
        (HEAD + event(b"[" * 100_000) + DONE, "failed", "not JSON"),
        (HEAD + event(b"\xff\xfe") + DONE, "failed", "not JSON"),
        (HEAD + event([1]) + DONE, "failed", "no object"),
        (HEAD + event({"choices": ["x"]}) + DONE, "failed", "a choice that is no object"),
        (HEAD + event({"choices": {"a": 1}}) + DONE, "failed", "not OpenAI's"),
        (HEAD + event({"choices": [], "usage": [1]}) + DONE, "failed", "not OpenAI's"),
        (
            HEAD + event({"usage": {"completion_tokens": "5"}, "choices": [{"text": "a"}]}),
            "failed",
            "completion_tokens",
        ),
        (HEAD + event({"usage": {"completion_tokens": -5}, "choices": [{"text": "a"}]}), "failed", "completion_tokens"),
        (HEAD + event({"usage": {"completion_tokens": 10**400}, "choices": []}) + DONE, "failed", "completion_tokens"),
        (HEAD + TOKEN[:-4] + b', "x": NaN}\n\n', "failed", "JSON"),
        (HEAD + event({"usage": {"completion_tokens": 1, "prompt_tokens": "x"}}) + DONE, "failed", "prompt_tokens"),
        (HEAD + event({"error": "boom"}), "failed", "stream-error"),
        (HEAD + b"x" * (MAX_EVENT_BYTES + 100_000), "failed", "a line of more than"),
    ],
)
async def test_each_way_to_break_is_one_failed_request(answer: bytes, outcome: str, said: str) -> None:
    sample = await asked(answer)
    assert sample.outcome == outcome and said in sample.reason


@pytest.mark.parametrize(
    "url", ["http://", "http://[", "http://a b/", "http://h:99999/v1", "http://h:port/v1", "http://h:0"]
)
def test_an_address_that_nobody_can_dial_is_told_at_once(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--url: .* is no HTTP address; write http://host:port/v1"):
        HttpTarget(url)


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ([], "no OpenAI model list"),
        ({"data": [5]}, "no OpenAI model list"),
        ({"data": [{"id": "m", "max_model_len": "long"}]}, "no OpenAI model list"),
        ({"data": [{"id": "m", "meta": [1]}]}, "no OpenAI model list"),
        ({"data": []}, "no model is served"),
    ],
)
async def test_a_model_list_that_is_none_is_told(models: Any, said: str) -> None:
    body = json.dumps(models).encode()
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    async with raw_server(answer) as url, HttpTarget(url) as target:
        with pytest.raises(OctavoError, match=said) as caught:
            await target.describe()
    assert isinstance(caught.value, InternalError | InvalidRequest)


async def test_an_address_without_its_path_names_the_fix() -> None:
    answer = b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    async with raw_server(answer) as url, HttpTarget(url) as target:
        with pytest.raises(InvalidRequest, match=r"--url: nothing is at .*/models; end it as http://HOST:PORT/v1"):
            await target.describe()
