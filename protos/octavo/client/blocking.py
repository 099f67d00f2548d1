"""Client: the same SDK for code without asyncio; a thin face over AsyncClient on one loop in one thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

from octavo.client.aio import DEFAULT_ADDRESS, AsyncClient
from octavo.client.retry import RetryPolicy
from octavo.client.stream import AsyncStream
from octavo.client.types import Cancellation, Chunk, Completion, ModelInfo, Pausing, TokenCount, Tokens
from octavo.client.wire import MessageLike, Prompt, RequestOptions

_Result = TypeVar("_Result")


class _LoopThread:
    """An asyncio loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_ignore_foreign_wakeups)
        self._thread = threading.Thread(target=self._loop.run_forever, name="octavo-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs a coroutine there and waits for it; an interrupt here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stops the loop and joins the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _ignore_foreign_wakeups(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # grpc.aio has one wake-up socket per process: with a second loop, the loser of a read gets EAGAIN (grpc 42357)
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


class Stream:
    """One generation as an iterator of Chunks; see AsyncStream. Closing it early cancels the request."""

    def __init__(self, loop: _LoopThread, stream: AsyncStream) -> None:
        self._loop = loop
        self._stream = stream

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        chunk = self._loop.run(_next_or_none(self._stream))
        if chunk is None:
            raise StopIteration
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def request_id(self) -> str:
        """The name to use for cancel, attach and the trace."""
        return self._stream.request_id

    @property
    def trace_id(self) -> str:
        """32 hex digits; empty before the first chunk."""
        return self._stream.trace_id

    @property
    def text(self) -> str:
        """The first choice's text so far."""
        return self._stream.text

    @property
    def completion(self) -> Completion | None:
        """The whole answer once the stream has ended."""
        return self._stream.completion

    def result(self) -> Completion:
        """Reads to the end; the whole answer. Raises the request's OctavoError."""
        return self._loop.run(self._stream.result())

    def cancel(self, reason: str = "client_cancel") -> Cancellation:
        """Stops the request at the worker's next step; returns when its last block is back."""
        return self._loop.run(self._stream.cancel(reason))

    def close(self) -> None:
        """Ends the call; the server stops a request that was not finished."""
        self._loop.run(self._stream.aclose())


async def _next_or_none(stream: AsyncStream) -> Chunk | None:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        return None


class Client:
    """Speaks to one gateway, or to the next of several when it fails; see AsyncClient. Use `with`, or `close()`."""

    def __init__(
        self,
        address: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        api_key: str = "",
        deadline_s: float = 600.0,
        retry: RetryPolicy | None = None,
        multiplex: bool = True,
    ) -> None:
        self._client = AsyncClient(address, api_key=api_key, deadline_s=deadline_s, retry=retry, multiplex=multiplex)
        self._loop = _LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channels and ends the thread."""
        self._loop.run(self._client.aclose())
        self._loop.close()

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """Completes a raw prompt (text or token ids) and returns the whole answer."""
        with self.generate_stream(prompt, **options) as stream:
            return stream.result()

    def chat(self, messages: str | Sequence[MessageLike], **options: Unpack[RequestOptions]) -> Completion:
        """Answers a conversation (or one user message given as text) and returns the whole answer."""
        with self.chat_stream(messages, **options) as stream:
            return stream.result()

    def generate_stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Stream:
        """As `generate`, chunk by chunk."""
        return Stream(self._loop, self._client.generate_stream(prompt, **options))

    def chat_stream(self, messages: str | Sequence[MessageLike], **options: Unpack[RequestOptions]) -> Stream:
        """As `chat`, chunk by chunk."""
        return Stream(self._loop, self._client.chat_stream(messages, **options))

    def attach(self, request_id: str = "", *, idempotency_key: str = "", from_byte: int = 0) -> Stream:
        """Joins a live generation, or replays a finished one, from a byte offset of each choice's text."""
        stream = self._client.attach(request_id, idempotency_key=idempotency_key, from_byte=from_byte)
        return Stream(self._loop, stream)

    def cancel(self, request_id: str, reason: str = "client_cancel") -> Cancellation:
        """Stops a request; returns when its last block is back. An unknown or finished one is a no-op."""
        return self._loop.run(self._client.cancel(request_id, reason))

    def pause(self, request_id: str, tool: str = "", expected_ms: int = 0) -> Pausing:
        """Says that a turn ended in a tool call; come back with a longer prompt and `resumes=request_id`."""
        return self._loop.run(self._client.pause(request_id, tool, expected_ms))

    def tokenize(
        self,
        text: str | Sequence[MessageLike],
        *,
        model: str = "",
        parse_special: bool = False,
        add_bos: bool | None = None,
    ) -> Tokens:
        """Token ids of a text, or of a conversation rendered through the model's chat template."""
        return self._loop.run(self._client.tokenize(text, model=model, parse_special=parse_special, add_bos=add_bos))

    def detokenize(self, token_ids: Sequence[int], *, model: str = "", skip_special_tokens: bool | None = None) -> str:
        """The text of token ids."""
        return self._loop.run(self._client.detokenize(token_ids, model=model, skip_special_tokens=skip_special_tokens))

    def count_tokens(self, text: str | Sequence[MessageLike], *, model: str = "") -> TokenCount:
        """How many prompt tokens a text or a conversation would have."""
        return self._loop.run(self._client.count_tokens(text, model=model))

    def models(self) -> tuple[ModelInfo, ...]:
        """The served models."""
        return self._loop.run(self._client.models())
