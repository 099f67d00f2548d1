"""One generation as an async iterator of Chunks that survives a broken connection.

Before the first token a failed call is made again with the same request id, which the server recognises. After it,
the stream is resumed by Attach with the request id and the bytes already received; what arrives twice is cut away
by `byte_end` and `token_end`, so the chunks always add up to the whole text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import grpc.aio

from octavo.client import wire
from octavo.client.calls import Calls, Kind, Metadata, Request
from octavo.client.faults import error_from
from octavo.client.retry import RESUMABLE_REASONS, RetryPolicy
from octavo.client.session import SESSION_FULL, NoSessions
from octavo.client.targets import Target, Targets
from octavo.client.types import Cancellation, Chunk, Completion, ToolCallPart
from octavo.errors import Cancelled, DeadlineExceeded, InternalError, OctavoError, Unavailable
from octavo.v1 import inference_pb2 as pb

SERVER_DEADLINE_GRACE_S = 1.0
"""The server ends a request at its deadline and says so; the call itself lasts this much longer, to hear it."""


@dataclass(slots=True)
class _Received:
    """What one choice has so far."""

    bytes: int = 0
    tokens: int | None = 0  # None: unknown, attached in the middle
    ended: bool = False  # one of its chunks said why
    chunks: list[Chunk] = field(default_factory=list)
    arguments: dict[int, int] = field(default_factory=dict)  # number of a tool call -> bytes of its arguments


class AsyncStream:
    """Iterate for Chunks, or `await result()` for the whole Completion. Closing it early cancels the request."""

    def __init__(
        self,
        targets: Targets,
        calls: Calls,
        kind: Kind,
        request: Request,
        *,
        request_id: str,
        metadata: Metadata,
        deadline_s: float,
        policy: RetryPolicy,
        from_byte: int = 0,
        choices: int = 0,
        on_finished: Callable[[pb.AckRequest], None],
    ) -> None:
        self.request_id = request_id
        self.model = ""
        self.trace_id = ""
        self.seed = 0
        self.prompt_tokens = 0
        self.degraded = ""
        self.resumes = 0
        self.completion: Completion | None = None
        """Set once the stream has ended."""
        self._targets = targets
        self._calls = calls
        self._kind = kind
        self._request = request
        self._metadata = metadata
        self._policy = policy
        self._from_byte = from_byte
        self._one_choice = choices == 1  # 0: attached, the number is not known
        self._on_finished = on_finished
        self._began_s = time.monotonic()
        self._ends_s = self._began_s + deadline_s
        self._first_token_s = self._last_token_s = 0.0
        self._choices: dict[int, _Received] = {}
        self._finished: pb.Finished | None = None
        self._call: Any = None
        self._closed = False
        self._alone = False  # the session has all the calls that it may have
        self._events = self._run()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if self._closed and self.completion is None:
            raise Cancelled("the stream was closed")
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def text(self) -> str:
        """The first choice's text so far."""
        received = self._choices.get(0)
        return "".join(chunk.text for chunk in received.chunks) if received else ""

    async def result(self) -> Completion:
        """Reads to the end; the whole answer. Raises the request's OctavoError."""
        async for _chunk in self:
            pass
        if self.completion is None:
            raise InternalError("the stream ended without a terminal event")
        return self.completion

    async def cancel(self, reason: str = "client_cancel") -> Cancellation:
        """Stops the request at the worker's next step; returns when its last block is back."""
        target = self._targets.current()
        try:
            request = pb.CancelRequest(request_id=self.request_id, reason=reason)
            answer: pb.CancelResponse = await self._calls.ask(target, "cancel", request, 30.0, self._metadata)
        except grpc.aio.AioRpcError as error:
            raise error_from(error, target.address) from error
        return wire.cancellation_of(answer)

    async def aclose(self) -> None:
        """Ends the call; the server stops a request that was not finished."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()
        if not self._events.ag_running:  # another task that reads gets Cancelled from the ended call
            await self._events.aclose()

    async def _run(self) -> Any:
        """Calls, resumes, and yields Chunks until the terminal event."""
        failures, progress_s = 0, time.monotonic()
        while self._finished is None:
            target = self._targets.current()
            received_before = self._received_bytes()
            try:
                self._call = self._open(target)
                async for event in self._call:
                    chunk = self._take(event)
                    if chunk is not None:
                        yield chunk
                if self._finished is None:
                    raise InternalError("the stream ended without a terminal event")
            except grpc.aio.AioRpcError as rpc_error:
                error = error_from(rpc_error, target.address)
                if error.reason == SESSION_FULL and not self._alone:
                    self._alone = True
                    continue
                if self._received_bytes() > received_before or (self._first_token_s and not failures):
                    failures, progress_s = 0, time.monotonic()
                failures += 1
                pause_s = self._pause_s(error, failures, progress_s)
                if pause_s is None:
                    raise self._final(error) from rpc_error
                self._targets.failed(target)
                await asyncio.sleep(pause_s)
            except NoSessions:
                continue  # the next call is a plain one
            except asyncio.CancelledError:
                if self._closed:
                    raise Cancelled("the stream was closed") from None
                raise
            finally:
                if self._call is not None:
                    self._call.cancel()  # no-op once it is done
        self._end(self._finished)

    def _open(self, target: Target) -> Any:
        timeout_s = max(0.001, self._ends_s - time.monotonic()) + SERVER_DEADLINE_GRACE_S
        if not self._first_token_s:
            return self._calls.make(target, self._kind, self._request, timeout_s, self._metadata, alone=self._alone)
        self.resumes += 1
        request = pb.AttachRequest(request_id=self.request_id, from_byte=self._resume_byte())
        return self._calls.make(target, "attach", request, timeout_s, self._metadata, alone=self._alone)

    def _pause_s(self, error: OctavoError, failures: int, progress_s: float) -> float | None:
        """How long to wait before the next call; None when the error is final."""
        remaining_s = self._ends_s - time.monotonic()
        if not self._first_token_s:
            return self._policy.pause_s(error, failures, remaining_s)
        if not isinstance(error, Unavailable) or error.reason not in RESUMABLE_REASONS:
            return None
        pause_s = self._policy.backoff_s(failures)
        window_s = progress_s + self._policy.resume_window_s - time.monotonic()
        return pause_s if pause_s < min(remaining_s, window_s) else None

    def _final(self, error: OctavoError) -> OctavoError:
        if isinstance(error, Unavailable) and self._ends_s <= time.monotonic():
            return DeadlineExceeded(f"the deadline passed while the gateway was gone: {error}")
        return error

    def _take(self, event: Any) -> Chunk | None:
        """Notes one event; the Chunk in it that is new, if any."""
        if isinstance(event, Chunk):
            return self._new_part(event)
        which = event.WhichOneof("event")
        if which == "started":
            started: pb.Started = event.started
            self.request_id = started.request_id or self.request_id
            self.model, self.trace_id = started.model, started.trace_id or self.trace_id
            self.prompt_tokens, self.seed, self.degraded = started.prompt_tokens, started.seed, started.degraded
        elif which == "finished":
            self._finished = event.finished
        elif which == "delta":
            return self._new_part(wire.chunk_of(event.delta))
        return None

    def _new_part(self, chunk: Chunk) -> Chunk | None:
        """The part of a chunk that was not received before; None when all of it was."""
        received = self._choices.get(chunk.index)
        if received is None:
            known = 0 if self._from_byte == 0 else None
            received = self._choices[chunk.index] = _Received(self._from_byte, known)
        size = len(chunk.text) if chunk.text.isascii() else len(chunk.text.encode())
        if chunk.byte_end - size > received.bytes:
            raise InternalError(
                f"choice {chunk.index}: the stream skipped from byte {received.bytes} to {chunk.byte_end - size}"
            )
        follows = chunk.byte_end - size == received.bytes and chunk.token_end - len(chunk.token_ids) == received.tokens
        new = chunk if follows else _beyond(chunk, received)  # nearly always all of it is new
        if chunk.call_parts:
            new = replace(new, call_parts=_beyond_parts(chunk.call_parts, received.arguments))
        if not new.text and not new.token_ids and (received.ended or not new.finish_reason):
            return None
        received.ended = received.ended or bool(new.finish_reason)
        received.bytes = max(received.bytes, chunk.byte_end)
        received.tokens = max(received.tokens or 0, chunk.token_end)
        received.chunks.append(new)
        self._last_token_s = time.monotonic()
        self._first_token_s = self._first_token_s or self._last_token_s
        return new

    def _received_bytes(self) -> int:
        return sum(item.bytes for item in self._choices.values())

    def _resume_byte(self) -> int:
        """Where to resume. With several choices one may not have begun, so all is sent again and cut here."""
        return self._choices[0].bytes if self._one_choice and 0 in self._choices else self._from_byte

    def _end(self, finished: pb.Finished) -> None:
        ends = {end.index: end for end in finished.choices}
        for index, end in ends.items():
            have = self._choices[index].bytes if index in self._choices else self._from_byte
            if have != end.bytes:
                raise InternalError(f"choice {index}: {have} bytes arrived of the {end.bytes} that were sent")
        indexes = sorted({*self._choices, *ends})
        nothing = _Received()
        self.completion = Completion(
            request_id=self.request_id,
            model=self.model,
            choices=tuple(
                wire.choice_of(index, self._choices.get(index, nothing).chunks, ends.get(index)) for index in indexes
            ),
            usage=wire.usage_of(finished.usage),
            timings=wire.timings_of(finished.timings),
            cost=wire.cost_of(finished.cost),
            trace_id=self.trace_id,
            seed=self.seed,
            first_token_ms=self._since_began_ms(self._first_token_s),
            last_token_ms=self._since_began_ms(self._last_token_s),
            resumes=self.resumes,
            degraded=self.degraded,
        )
        self._on_finished(
            pb.AckRequest(
                request_id=self.request_id,
                byte_end=self._received_bytes(),
                first_token_ms=self.completion.first_token_ms,
                last_token_ms=self.completion.last_token_ms,
            )
        )

    def _since_began_ms(self, at_s: float) -> float:
        return (at_s - self._began_s) * 1000.0 if at_s else 0.0


def _beyond(chunk: Chunk, received: _Received) -> Chunk:
    """The part of a chunk that lies beyond what was received."""
    text = chunk.text.encode()
    fresh_bytes = min(len(text), max(0, chunk.byte_end - received.bytes))
    fresh_tokens = len(chunk.token_ids)
    if received.tokens is not None:
        fresh_tokens = min(fresh_tokens, max(0, chunk.token_end - received.tokens))
    first = len(chunk.token_ids) - fresh_tokens
    return replace(
        chunk,
        text=text[len(text) - fresh_bytes :].decode(errors="replace"),
        token_ids=chunk.token_ids[first:],
        logprobs=chunk.logprobs[first:] if len(chunk.logprobs) == len(chunk.token_ids) else chunk.logprobs,
    )


def _beyond_parts(parts: tuple[ToolCallPart, ...], known: dict[int, int]) -> tuple[ToolCallPart, ...]:
    """What of tool calls was not received before; notes it in `known`."""
    new = []
    for part in parts:
        if part.number not in known:
            new.append(part)
        elif (fresh := part.end - known[part.number]) > 0:
            arguments = part.arguments.encode()[-fresh:].decode(errors="replace")
            new.append(ToolCallPart(part.number, "", "", arguments, part.end))
        known[part.number] = max(part.end, known.get(part.number, 0))
    return tuple(new)
