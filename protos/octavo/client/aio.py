"""AsyncClient: the SDK on the caller's own asyncio loop."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Self, TypeVar, Unpack

import grpc.aio
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from octavo.client import wire
from octavo.client.calls import Calls, Kind, Request
from octavo.client.faults import error_from
from octavo.client.retry import RetryPolicy
from octavo.client.stream import AsyncStream
from octavo.client.targets import Target, Targets
from octavo.client.types import Cancellation, Completion, ModelInfo, Pausing, TokenCount, Tokens
from octavo.client.wire import MessageLike, Prompt, RequestOptions
from octavo.errors import InvalidRequest
from octavo.v1 import inference_pb2 as pb

DEFAULT_ADDRESS = "grpc://127.0.0.1:50050"
UNARY_TIMEOUT_S = 30.0
ACK_TIMEOUT_S = 1.0
_Answer = TypeVar("_Answer")


class AsyncClient:
    """Speaks to one gateway, or to the next of several when it fails. Use `async with`, or `await aclose()`.

    `deadline_s` bounds every request that names none of its own. Every method raises the exceptions of
    `octavo.errors`; `traceparent` is taken from the caller's current OpenTelemetry context at the call.
    Generations share one stream per gateway, which costs both sides far less than a stream each; `multiplex=False` gives
    each its own, and so has one that finds that stream full. A stream that nobody reads holds what arrives of it in memory, and delays no other.
    """

    def __init__(
        self,
        address: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        api_key: str = "",
        deadline_s: float = 600.0,
        retry: RetryPolicy | None = None,
        multiplex: bool = True,
    ) -> None:
        self._targets = Targets(address)
        self._api_key = api_key
        self._deadline_s = wire.checked_deadline(deadline_s)
        self._policy = retry or RetryPolicy()
        self._calls = Calls(api_key, multiplex=multiplex)
        self._acks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Waits for acks under way, then closes the channels."""
        if self._acks:
            await asyncio.wait(self._acks, timeout=ACK_TIMEOUT_S)
        await self._calls.close()
        await self._targets.close()

    async def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """Completes a raw prompt (text or token ids) and returns the whole answer."""
        async with self.generate_stream(prompt, **options) as stream:
            return await stream.result()

    async def chat(self, messages: str | Sequence[MessageLike], **options: Unpack[RequestOptions]) -> Completion:
        """Answers a conversation (or one user message given as text) and returns the whole answer."""
        async with self.chat_stream(messages, **options) as stream:
            return await stream.result()

    def generate_stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncStream:
        """As `generate`, chunk by chunk; the call begins with the first iteration."""
        _with_id(options)
        request = wire.generate_request(prompt, options)
        return self._stream("generate", request, request.context, choices=wire.choices_of(request.options))

    def chat_stream(self, messages: str | Sequence[MessageLike], **options: Unpack[RequestOptions]) -> AsyncStream:
        """As `chat`, chunk by chunk; the call begins with the first iteration."""
        _with_id(options)
        listed = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        request = wire.chat_request(listed, options)
        return self._stream("chat", request, request.context, choices=wire.choices_of(request.options))

    def attach(self, request_id: str = "", *, idempotency_key: str = "", from_byte: int = 0) -> AsyncStream:
        """Joins a live generation, or replays a finished one, from a byte offset of each choice's text."""
        if not request_id and not idempotency_key:
            raise InvalidRequest("request_id: none given; name the request or its idempotency key", field="request_id")
        request = pb.AttachRequest(request_id=request_id, idempotency_key=idempotency_key, from_byte=from_byte)
        return self._stream("attach", request, pb.RequestContext(request_id=request_id), from_byte)

    async def cancel(self, request_id: str, reason: str = "client_cancel") -> Cancellation:
        """Stops a request; returns when its last block is back. An unknown or finished one is a no-op."""
        request = pb.CancelRequest(request_id=request_id, reason=reason)
        answer: pb.CancelResponse = await self._asked("cancel", request)
        return wire.cancellation_of(answer)

    async def pause(self, request_id: str, tool: str = "", expected_ms: int = 0) -> Pausing:
        """Says that a turn ended in a tool call; come back with a longer prompt and `resumes=request_id`."""
        pause = wire.pause_of({"tool": tool, "expected_ms": expected_ms})
        request = pb.PauseRequest(request_id=request_id, pause=pause)
        answer: pb.PauseResponse = await self._asked("pause", request)
        return Pausing(answer.found, answer.decision)

    async def tokenize(
        self,
        text: str | Sequence[MessageLike],
        *,
        model: str = "",
        parse_special: bool = False,
        add_bos: bool | None = None,
    ) -> Tokens:
        """Token ids of a text, or of a conversation rendered through the model's chat template."""
        request = pb.TokenizeRequest(model=model, parse_special=parse_special, add_bos=add_bos)
        _set_input(request, text)
        answer: pb.TokenizeResponse = await self._unary(lambda stub: stub.Tokenize, request)
        return Tokens(tuple(answer.token_ids), tuple(answer.pieces))

    async def detokenize(
        self, token_ids: Sequence[int], *, model: str = "", skip_special_tokens: bool | None = None
    ) -> str:
        """The text of token ids."""
        try:
            request = pb.DetokenizeRequest(model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"token_ids: {error}; give ids of 0 and above", field="token_ids") from error
        answer: pb.DetokenizeResponse = await self._unary(lambda stub: stub.Detokenize, request)
        return answer.text

    async def count_tokens(self, text: str | Sequence[MessageLike], *, model: str = "") -> TokenCount:
        """How many prompt tokens a text or a conversation would have."""
        request = pb.CountTokensRequest(model=model)
        _set_input(request, text)
        answer: pb.CountTokensResponse = await self._unary(lambda stub: stub.CountTokens, request)
        return TokenCount(answer.tokens, answer.max_model_len)

    async def models(self) -> tuple[ModelInfo, ...]:
        """The served models."""
        answer: pb.ListModelsResponse = await self._unary(lambda stub: stub.ListModels, pb.ListModelsRequest())
        return tuple(
            ModelInfo(
                item.id,
                item.max_model_len,
                item.vocab_size,
                item.architecture,
                item.fingerprint,
                item.created_unix_s,
            )
            for item in answer.models
        )

    def _stream(
        self, kind: Kind, request: Request, context: pb.RequestContext, from_byte: int = 0, choices: int = 0
    ) -> AsyncStream:
        return AsyncStream(
            self._targets,
            self._calls,
            kind,
            request,
            request_id=context.request_id,
            metadata=self._metadata(),
            deadline_s=context.deadline_ms / 1000.0 if context.deadline_ms else self._deadline_s,
            policy=self._policy,
            from_byte=from_byte,
            choices=choices,
            on_finished=self._ack,
        )

    async def _unary(self, method: Callable[[Any], Callable[..., Awaitable[_Answer]]], request: Any) -> _Answer:
        """Calls a method that is safe to repeat."""
        metadata = self._metadata()
        return await self._repeated(
            lambda target, timeout_s: method(target.stub)(request, timeout=timeout_s, metadata=metadata)
        )

    async def _asked(self, kind: Literal["cancel", "pause"], request: pb.CancelRequest | pb.PauseRequest) -> Any:
        metadata = self._metadata()
        return await self._repeated(
            lambda target, timeout_s: self._calls.ask(target, kind, request, timeout_s, metadata)
        )

    async def _repeated(self, call: Callable[[Target, float], Awaitable[_Answer]]) -> _Answer:
        ends_s = time.monotonic() + min(UNARY_TIMEOUT_S, self._deadline_s)
        failures = 0
        while True:
            target = self._targets.current()
            remaining_s = ends_s - time.monotonic()
            try:
                return await call(target, max(0.001, remaining_s))
            except grpc.aio.AioRpcError as rpc_error:
                error = error_from(rpc_error, target.address)
                failures += 1
                pause_s = self._policy.pause_s(error, failures, remaining_s)
                if pause_s is None:
                    raise error from rpc_error
                self._targets.failed(target)
                await asyncio.sleep(pause_s)

    def _metadata(self) -> list[tuple[str, str]]:
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        if self._api_key:
            carrier["authorization"] = f"Bearer {self._api_key}"
        return list(carrier.items())

    @property
    def multiplexed(self) -> bool:
        """Whether generations share a stream with a gateway now: one that knows no sessions serves each by itself."""
        return self._calls.multiplexed

    def _ack(self, request: pb.AckRequest) -> None:
        if self._calls.ack(self._targets.current(), request):
            return
        task = asyncio.get_running_loop().create_task(self._send_ack(request))
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    async def _send_ack(self, request: pb.AckRequest) -> None:
        try:
            await self._targets.current().stub.Ack(request, timeout=ACK_TIMEOUT_S, metadata=self._metadata())
        except grpc.aio.AioRpcError:  # a lost ack costs one timestamp in a trace
            return


def _with_id(options: RequestOptions) -> None:
    """Every request has an id of the client's choosing: retry, resume and cancel need one."""
    if not options.get("request_id"):
        options["request_id"] = uuid.uuid4().hex


def _set_input(request: pb.TokenizeRequest | pb.CountTokensRequest, text: str | Sequence[MessageLike]) -> None:
    if isinstance(text, str):
        request.text = text
    else:
        request.messages.CopyFrom(wire.chat_messages(text))
