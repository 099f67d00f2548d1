"""Any OpenAI-compatible HTTP server: /completions for token prompts, /chat/completions for text, streamed.

Tokens are counted by the server where it says how many (`usage` on every chunk, which our gateway and vLLM send when
asked for `continuous_usage_stats`, or token ids); otherwise each chunk with text counts as one, and the sum is
corrected by the `usage` of the last chunk.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Self
from urllib.parse import urlsplit

from octavo.errors import DeadlineExceeded, InternalError, InvalidRequest, OctavoError, Overloaded, Unavailable

from octavo_cli.addresses import checked_http
from octavo_cli.bench.http_stream import ConnectionBroke, Exchange, HttpPool
from octavo_cli.bench.sample import ServerTimes
from octavo_cli.bench.target import Described, Heard, Request, Usage

MAX_EVENT_BYTES = 4 << 20
MAX_WHOLE_BYTES = 16 << 20
DESCRIBE_TIMEOUT_S = 10.0


class HttpTarget:
    """`url` ends where /completions begins: http://host:port/v1. Names of fields as OpenAI's, extras as vLLM's."""

    def __init__(self, url: str, api_key: str = "", model: str = "", vocab_size: int = 32000) -> None:
        self._base = checked_http(url, "http://host:port/v1")
        self._model = model
        self._vocab_size = vocab_size
        self._path = urlsplit(self._base).path
        self._pool = HttpPool(self._base, {"authorization": f"Bearer {api_key}"} if api_key else {})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def describe(self) -> Described:
        try:
            async with self._pool.get(f"{self._path}/models", DESCRIBE_TIMEOUT_S) as exchange:
                status, content = exchange.status, await exchange.read_all(MAX_WHOLE_BYTES)
        except (ConnectionBroke, TimeoutError) as error:
            raise Unavailable(f"no answer from {self._base}: {error}", reason="unreachable") from error
        if status == 404:
            raise InvalidRequest(
                f"--url: nothing is at {self._base}/models; end it as http://HOST:PORT/v1", field="url"
            )
        if status != 200:
            raise _refusal(status, content)
        try:
            served = json.loads(content)["data"]
            found = next((item for item in served if item["id"] == self._model or not self._model), None)
            if found is None:
                said = f"{self._model!r} is not served" if self._model else "no model is served"
                raise InvalidRequest(f"--model: {said} at {self._base}", field="model")
            meta = found.get("meta") or {}  # llama.cpp's server
            length = int(found.get("max_model_len") or meta.get("n_ctx_train") or 4096)
            vocab = int(meta.get("n_vocab") or self._vocab_size)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            if isinstance(error, OctavoError):
                raise
            raise InternalError(f"{self._base}/models: is no OpenAI model list; check --url") from error
        self._model = str(found["id"])
        facts = {"protocol": "http", "model": self._model, "owner": found.get("owned_by", "")}
        return Described(self._model, vocab, length, facts)

    async def send(self, request: Request, heard: Heard) -> None:
        path = "chat/completions" if request.messages else "completions"
        count = _Counted(heard)
        try:
            async with self._pool.post(f"{self._path}/{path}", self._body(request)) as exchange:
                if exchange.status != 200:
                    raise _refusal(exchange.status, await exchange.read_all(MAX_WHOLE_BYTES))
                async for event in _events(exchange):
                    if count.take(event):
                        return  # leaving the context closes the connection, which cancels the request
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within the time: {error}") from error
        except ConnectionBroke as error:
            raise Unavailable(f"the connection broke: {error}", reason="connection") from error
        count.end()

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if request.messages:
            body["messages"] = [{"role": role, "content": said} for role, said in request.messages]
        else:
            body["prompt"] = list(request.token_ids)
        if request.ignore_eos:
            body["ignore_eos"] = True
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        return body


class _Counted:
    """Turns events into parts, and knows how far its count can be trusted."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._told = 0
        self._usage: dict[str, Any] = {}
        self._ended = False

    def take(self, event: str) -> bool:
        """One event's data; True when the client leaves. Raises OctavoError for an error event or one that is no JSON."""
        if event == "[DONE]":
            self._ended = True
            return False
        try:
            content = json.loads(event)
        except (ValueError, RecursionError) as error:
            raise InternalError(f"the stream holds an event that is not JSON: {event[:80]!r}") from error
        if not isinstance(content, dict):
            raise InternalError(f"the stream holds an event that is no object: {event[:80]!r}")
        if content.get("error"):
            said = content["error"]
            message = said.get("message") if isinstance(said, dict) else said
            raise InternalError(f"the stream ended with an error: {message}", reason="stream-error")
        usage, choices = content.get("usage") or {}, content.get("choices") or []
        if not isinstance(usage, dict) or not isinstance(choices, list):
            raise InternalError(f"the stream holds an event that is not OpenAI's: {event[:80]!r}")
        text = "".join(_text_of(choice) for choice in choices)
        tokens = 1 if text else 0
        if usage.get("completion_tokens") is not None:
            self._usage = usage
            tokens = max(0, (_count(usage, "completion_tokens") or 0) - self._told) if choices else 0
        self._told += tokens
        return self._heard.part(tokens, (), text) if tokens else False

    def end(self) -> None:
        """Hands on the usage. Raises Unavailable when the stream broke off."""
        if not self._ended:
            raise Unavailable("the stream ended without [DONE]", reason="stream-cut")
        details = self._usage.get("prompt_tokens_details")
        cached = _count(details, "cached_tokens") if isinstance(details, dict) else None
        usage = Usage(_count(self._usage, "prompt_tokens"), cached, _count(self._usage, "completion_tokens"))
        self._heard.usage(usage, ServerTimes())


def _count(usage: dict[str, Any], name: str) -> int | None:
    """A count of the server's usage; None where it says nothing. Raises InternalError for what is no count."""
    value = usage.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53):
        return value
    raise InternalError(f"the stream's usage.{name} is {str(value)[:40]!r}; a whole number belongs there")


def _text_of(choice: Any) -> str:
    if not isinstance(choice, dict):
        raise InternalError(f"the stream holds a choice that is no object: {str(choice)[:80]!r}")
    delta = choice.get("delta")
    return str((delta.get("content") if isinstance(delta, dict) else choice.get("text")) or "")


async def _events(exchange: Exchange) -> AsyncIterator[str]:
    """The data of each server-sent event; lines end with a line feed alone, for a text may hold Unicode's other ones."""
    rest = b""
    while block := await exchange.read():
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise InternalError(f"the stream holds a line of more than {MAX_EVENT_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode(errors="replace")


def _refusal(status: int, body: bytes) -> OctavoError:
    """The exception that an HTTP status stands for."""
    try:
        error = json.loads(body).get("error") or {}
        message = str(error.get("message", "")) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError, RecursionError):
        message = body[:200].decode(errors="replace")
    said = f"HTTP {status}: {message}"
    if status == 429:
        return Overloaded(said)
    if status in (502, 503, 504):
        return Unavailable(said, reason="rejected-unavailable")
    return InvalidRequest(said) if status < 500 else InternalError(said)
