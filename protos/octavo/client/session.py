"""Many calls on one stream: a client's requests share a Session stream per gateway, and one message carries what is new of all.

A `SessionCall` is used like the call of a generated stub: iterate it for events, `cancel()` it; it ends or raises AioRpcError. What
its reader has not taken merges, so that a handle nobody reads holds its answer once and holds nobody else up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Literal, Self

import grpc
import grpc.aio

from octavo.client.faults import DETAILS_KEY
from octavo.client.targets import Target
from octavo.client.types import Chunk
from octavo.packing import unpack_u32
from octavo.rpc.channels import MAX_MESSAGE_BYTES
from octavo.v1 import inference_pb2 as pb

COST_TRAILER = "octavo-cost-bin"
SESSION_MARK = "octavo-session"
"""In the initial metadata of a gateway that took the stream. Nothing is written before it: a write that meets the end of a stream
hides what ended it."""
SESSION_FULL = "rejected-session-calls"
"""Reason of a gateway that takes no more calls on one stream: this one is made by itself."""
MARK_TIMEOUT_S = 5.0
"""How long the mark may be on its way. Something between that holds the metadata back until there is a message would wait for ever."""
STATUS_TIMEOUT_S = 1.0
"""How long the status of a refused stream may take behind metadata without the mark; without it something between took the mark away."""
CLOSE_TIMEOUT_S = 1.0
"""How long a closing client waits for the gateway to have read everything."""
_CODES: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

Kind = Literal["generate", "chat", "attach", "cancel", "pause"]
Request = pb.GenerateRequest | pb.ChatRequest | pb.AttachRequest | pb.CancelRequest | pb.PauseRequest
_LAST = frozenset({"finished", "cancelled", "paused"})
Event = Chunk | pb.CallEvent
"""A Chunk of plain tokens, or an event of any kind: `WhichOneof("event")` as in a GenerateResponse."""


class NoSessions(Exception):
    """The gateway is older than Session, or its mark does not come through: make the call by itself."""


class _Tokens:
    """Plain tokens that were not taken yet; grows while its reader is busy."""

    __slots__ = ("byte_end", "ids", "index", "texts", "token_end")

    def __init__(self, index: int, text: str, ids: list[int], token_end: int, byte_end: int) -> None:
        self.index = index
        self.texts = [text]
        self.ids = ids
        self.token_end = token_end
        self.byte_end = byte_end

    def chunk(self) -> Chunk:
        return Chunk(self.index, "".join(self.texts), tuple(self.ids), (), self.token_end, self.byte_end)


class SessionCall:
    """One call. Made by `Session.open`; one task at a time iterates it."""

    __slots__ = ("_ended", "_items", "_session", "_timer", "_waiter", "number")

    def __init__(self, session: Session, number: int) -> None:
        self.number = number
        self._session = session
        self._items: deque[_Tokens | pb.CallEvent] = deque()
        self._ended: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._items:
            if self._ended is not None:
                raise self._ended
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item = self._items.popleft()
        return item.chunk() if isinstance(item, _Tokens) else item

    def cancel(self) -> None:
        """Leaves the call; no-op once it has ended."""
        if self._ended is None:
            self._items.clear()
            self._session.leave(self.number)
            self.end(asyncio.CancelledError())

    def expire_after(self, timeout_s: float) -> None:
        """Ends the call with DEADLINE_EXCEEDED after this time."""
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)

    def _expire(self) -> None:
        self._session.leave(self.number)
        self.end(_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def put_tokens(self, index: int, text: str, ids: list[int], token_end: int, byte_end: int) -> None:
        """Plain new tokens; they join the last ones that nobody has taken."""
        last = self._items[-1] if self._items else None
        if isinstance(last, _Tokens) and last.index == index:
            last.texts.append(text)
            last.ids += ids
            last.token_end, last.byte_end = token_end, byte_end
            return
        self._items.append(_Tokens(index, text, ids, token_end, byte_end))
        self._wake()

    def put(self, event: pb.CallEvent) -> None:
        """Any other event."""
        self._items.append(event)
        self._wake()

    def end(self, error: BaseException) -> None:
        """Raised once everything before it was taken; the first one counts."""
        if self._ended is None:
            self._ended = error
            if self._timer is not None:
                self._timer.cancel()
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Session:
    """One stream to one gateway, opened on first use inside the running loop."""

    def __init__(self, target: Target, metadata: list[tuple[str, str]]) -> None:
        self._stream = target.stub.Session(metadata=metadata)
        self._calls: dict[int, SessionCall] = {}
        self._number = 0
        self._outbox: deque[pb.SessionRequest] = deque()
        self._to_write = asyncio.Event()
        self._closing = self._writing = False
        self.state: Literal["open", "over", "unknown to the gateway", "silent"] = "open"
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    def open(
        self,
        kind: Kind,
        request: Request,
        timeout_s: float,
        traceparent: str,
    ) -> SessionCall:
        """Begins a call; it is given up after `timeout_s`."""
        self._number += 1
        call = self._calls[self._number] = SessionCall(self, self._number)
        context = pb.CallContext(traceparent=traceparent, timeout_ms=min(2**32 - 1, max(1, round(timeout_s * 1e3))))
        frame = pb.SessionRequest(call=self._number, context=context)
        getattr(frame, kind).CopyFrom(request)
        if (size := frame.ByteSize()) > MAX_MESSAGE_BYTES:  # gRPC would end the stream for it, and with it all calls
            del self._calls[self._number]
            text = f"Sent message larger than max ({size} vs. {MAX_MESSAGE_BYTES})"
            call.end(_error(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
            return call
        self._send(frame)
        call.expire_after(timeout_s)
        return call

    def ack(self, request: pb.AckRequest) -> None:
        """Says what was received; nothing answers it."""
        self._send(pb.SessionRequest(ack=request))

    def leave(self, number: int) -> None:
        """Ends a call here and there."""
        if self._calls.pop(number, None) is not None:
            self._send(pb.SessionRequest(call=number, leave=pb.LeaveCall()))

    async def close(self) -> None:
        """Leaves what still runs, lets the gateway read everything, and ends the stream."""
        for call in list(self._calls.values()):
            call.cancel()
        self._closing = True
        self._to_write.set()
        await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
        self._stream.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self, frame: pb.SessionRequest) -> None:
        self._outbox.append(frame)
        self._to_write.set()

    async def _write(self) -> None:
        try:
            if not await self._is_taken():
                return
            while True:
                while self._outbox:
                    self._writing = True
                    await self._stream.write(self._outbox.popleft())
                    self._writing = False
                if self._closing:
                    await self._stream.done_writing()
                    return
                self._to_write.clear()
                await self._to_write.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream is over, and the reader says so
            return

    async def _is_taken(self) -> bool:
        """Whether the gateway took the stream. One that says neither yes nor no in time is given up: nothing was written to it."""
        try:
            async with asyncio.timeout(MARK_TIMEOUT_S):
                if SESSION_MARK in (await self._stream.initial_metadata() or ()):
                    return True
        except TimeoutError:
            self._give_up("silent")
            return False
        await asyncio.wait(self._tasks[1:], timeout=STATUS_TIMEOUT_S)  # refused, or unknown: the reader gets the status
        if self.state == "open":
            self._give_up("unknown to the gateway")
        return False

    def _give_up(self, state: Literal["unknown to the gateway", "silent"]) -> None:
        self.state = state
        self._stream.cancel()

    async def _read(self) -> None:
        error: BaseException = _error(grpc.StatusCode.UNAVAILABLE, "the gateway ended the session")
        try:
            async for message in self._stream:
                self._take(message)
        except grpc.aio.AioRpcError as broken:
            error = broken
            if broken.code() is grpc.StatusCode.INTERNAL and self._writing:
                # grpc.aio puts this in the place of the stream's own status when the stream ended below a write
                error = _error(grpc.StatusCode.UNAVAILABLE, "the session broke while a request was written")
            elif broken.code() is grpc.StatusCode.UNIMPLEMENTED:
                self.state, error = "unknown to the gateway", NoSessions()
        except asyncio.CancelledError:  # of the stream, by a channel that closes, or of this task
            error = asyncio.CancelledError() if self.state == "open" else NoSessions()
            raise
        finally:
            if self.state == "open":
                self.state = "over"
            self._tasks[0].cancel()
            self._stream.cancel()  # no-op unless it was a message that could not be read
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call.end(error)

    def _take(self, message: pb.SessionResponse) -> None:
        if message.HasField("runs"):
            self._take_runs(message.runs)
        for event in message.events:
            call = self._calls.get(event.call)
            if call is None:
                continue  # it was left meanwhile
            which = event.WhichOneof("event")
            if which == "failed":
                del self._calls[event.call]
                call.end(_failure(event.failed))
                continue
            call.put(event)
            if which in _LAST:
                del self._calls[event.call]
                call.end(StopAsyncIteration())

    def _take_runs(self, runs: pb.DeltaRuns) -> None:
        numbers, counts, tokens = unpack_u32(runs.calls), unpack_u32(runs.counts), unpack_u32(runs.tokens)
        indexes = unpack_u32(runs.indexes) or [0] * len(numbers)
        ends = unpack_u32(runs.token_ends), unpack_u32(runs.byte_ends)
        at = 0
        for number, index, count, token_end, byte_end, text in zip(
            numbers, indexes, counts, *ends, runs.texts, strict=True
        ):
            call = self._calls.get(number)
            if call is not None:
                call.put_tokens(index, text, tokens[at : at + count], token_end, byte_end)
            at += count


def _error(code: grpc.StatusCode, text: str, trailers: tuple[tuple[str, bytes], ...] = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), text, "")


def _failure(failed: pb.CallFailed) -> grpc.aio.AioRpcError:
    """As the plain call would have raised it."""
    trailers: list[tuple[str, bytes]] = [(DETAILS_KEY, failed.status)] if failed.status else []
    if failed.HasField("cost"):
        trailers.append((COST_TRAILER, failed.cost.SerializeToString()))
    return _error(_CODES.get(failed.code, grpc.StatusCode.UNKNOWN), failed.message, tuple(trailers))
