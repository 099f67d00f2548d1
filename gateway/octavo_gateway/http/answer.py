"""Events of generations to an HTTP response: Server-Sent Events, or one JSON object made of the same events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType
from octavo.errors import InternalError
from starlette.types import Send

from octavo_gateway.http.calls import Call, SlowClient
from octavo_gateway.http.connection import Connection
from octavo_gateway.http.forms import Form, WholeChoice
from octavo_gateway.http.shapes import Envelope, UsageBody, encode, usage_body
from octavo_gateway.requests import Cost, Delta, Finished, Generation, Usage

RawHeaders = list[tuple[bytes, bytes]]
SSE_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Body:
    """Writes a response and watches that the client takes it. Status and headers leave with the first write."""

    def __init__(self, send: Send, connection: Connection, stuck_timeout_s: float) -> None:
        self.started = False
        self._send = send
        self._connection = connection
        self._stuck_timeout_s = stuck_timeout_s
        self._turn = asyncio.Lock()  # several prompts write to one stream

    async def write(self, status: int, headers: RawHeaders, data: bytes, *, more: bool) -> None:
        """Raises SlowClient when the client took no byte for the timeout."""
        async with self._turn:
            if not self.started:
                self.started = True
                await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
            if not await self._connection.writable(self._stuck_timeout_s):
                raise SlowClient


@dataclass(slots=True)
class Answer:
    """One response under way. `n` choices per prompt; prompt p's choice i is choice p * n + i."""

    call: Call
    form: Form
    n: int
    body: Body
    created: int = field(default_factory=lambda: int(time.time()))
    request_id: str = ""
    fingerprint: str | None = None
    usages: list[Usage] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    token_ends: dict[int, int] = field(default_factory=dict)

    async def whole(self) -> None:
        """Collects all events, then sends one JSON object."""
        choices = [WholeChoice() for _ in range(self.n * len(self.call.generations))]

        async def take(index: int, delta: Delta) -> None:
            choices[index].take(delta)

        await self._pull(take)
        shown = [self.form.whole(index, choice) for index, choice in enumerate(choices)]
        envelope = self._envelope(self.form.whole_object, shown, usage_body(self.usages, self.costs))
        data = encode(envelope)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await self.body.write(200, headers + self.headers(), data, more=False)

    async def stream(self, *, include_usage: bool, continuous_usage: bool) -> None:
        """One SSE event per delta, each as it comes; a slow client makes larger deltas, not more of them."""
        headers = SSE_HEADERS + self.headers()

        async def show(index: int, delta: Delta) -> None:
            self.token_ends[index] = delta.token_end
            choice = self.form.chunk(index, delta)
            if choice is None:
                return
            usage: UsageBody | UnsetType | None = None if include_usage else UNSET
            if continuous_usage:
                usage = self._usage_so_far()
            envelope = self._envelope(self.form.chunk_object, [choice], usage)
            await self.body.write(200, headers, b"data: " + encode(envelope) + b"\n\n", more=True)

        await self._pull(show)
        last = b""
        if include_usage:
            last = (
                b"data: "
                + encode(self._envelope(self.form.chunk_object, [], usage_body(self.usages, self.costs)))
                + b"\n\n"
            )
        await self.body.write(200, headers, last + b"data: [DONE]\n\n", more=False)

    async def _pull(self, take: Callable[[int, Delta], Awaitable[None]]) -> None:
        generations = self.call.generations
        if len(generations) == 1:
            await self._pull_one(0, generations[0], take)
        else:
            await _all(self._pull_one(number, item, take) for number, item in enumerate(generations))

    async def _pull_one(
        self, number: int, generation: Generation, take: Callable[[int, Delta], Awaitable[None]]
    ) -> None:
        async for event in generation:
            if isinstance(event, Finished):
                self.usages.append(event.usage)
                self.costs.append(event.cost)
                return
            await take(number * self.n + event.index, event)
        raise InternalError("the generation ended without an outcome")

    def headers(self) -> RawHeaders:
        """The names of this request: for the client's log, and for `octavo trace`."""
        generation = self.call.generations[0]
        return [
            (b"x-request-id", (self.request_id or generation.request_id).encode("latin-1", "replace")),
            (b"x-octavo-trace-id", generation.trace_id.encode()),
            *([(b"x-octavo-degraded", degraded.encode())] if (degraded := self._degraded()) else []),
        ]

    def _degraded(self) -> str:
        """What overload made of any of the prompts."""
        return " ".join(dict.fromkeys(item.degraded for item in self.call.generations if item.degraded))

    def _usage_so_far(self) -> UsageBody:
        prompt = sum(generation.prompt_tokens for generation in self.call.generations)
        completion = sum(self.token_ends.values())
        return UsageBody(prompt, completion, prompt + completion)

    def _envelope(self, kind: str, choices: Sequence[Any], usage: UsageBody | UnsetType | None) -> Envelope:
        generation = self.call.generations[0]
        name = self.form.id_prefix + (self.request_id or generation.request_id)
        degraded = self._degraded() or UNSET
        return Envelope(name, kind, self.created, generation.model, list(choices), self.fingerprint, usage, degraded)


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs coroutines side by side; the first error stops the others and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for coro in work:
                group.create_task(coro)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
