"""Many calls on one stream: takes the client's messages, and says what all calls have to tell in as few as it can write.

A call here is what a plain one is to gRPC: it starts a request of its own, with its own key, parent span and deadline, and ends
in exactly one of finished and failed, unless the client left it. Between two writes nothing is kept for a call but a mark:
its deltas wait in the request as a position, so that what piled up comes as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Final

from octavo.errors import DeadlineExceeded, InternalError, InvalidRequest, OctavoError, Overloaded
from octavo.rpc.flag import Flag
from octavo.v1 import inference_pb2 as pb

from octavo_gateway import inference_wire as wire
from octavo_gateway.delta_runs import DeltaColumns
from octavo_gateway.request_bytes import BadFrame
from octavo_gateway.requests import Delta, EdgeContext, Gateway, Generation
from octavo_gateway.rich_status import in_rpcs_words, rich_status

MOST_CALLS: Final = 1024
MESSAGE_TOKENS: Final = 4096
"""After about so many tokens a message is full; a logprob with its text weighs as much as four, 16 characters as one."""
MOST_UNREAD: Final = 256
"""Events beside deltas that wait for a write; with more the stream is not read."""


class Session:
    """One stream's calls. `stream`: what its metadata say, for calls that say nothing else."""

    def __init__(
        self, gateway: Gateway, stream: EdgeContext, log: logging.Logger, most_calls: int = MOST_CALLS
    ) -> None:
        self._gateway = gateway
        self._stream = stream
        self._log = log
        self._most_calls = most_calls
        self._calls: dict[int, _Call] = {}
        self._highest = 0
        self._marked: deque[_Call] = deque()
        self._said: list[pb.CallEvent] = []
        self._writer = wire.DeltaWriter()
        self._new = Flag()
        self._written = asyncio.Event()
        self._ending = False
        self._broken: Exception | None = None

    async def read(self, frames: AsyncIterator[pb.SessionRequest | BadFrame]) -> None:
        """Takes all messages of the stream. What ends it early is raised by `next_message`."""
        try:
            async for frame in frames:
                self._take(frame)
                while len(self._said) > MOST_UNREAD:
                    self._written.clear()
                    await self._written.wait()
        except Exception as error:  # noqa: BLE001  a bug ends the stream, not the process
            self._broken = error
        self.end_when_idle()

    def end_when_idle(self) -> None:
        """No call begins any more; the stream ends with the last one."""
        self._ending = True
        self._new.set()

    async def next_message(self) -> bytes | None:
        """The next message, as soon as there is something to tell; None: it is over. Raises what broke the stream."""
        while True:
            self._new.clear()
            if self._broken is not None:
                raise self._broken
            if self._said or self._marked:
                message = self._collect()
                self._written.set()
                if message is not None:
                    return message
            elif self._ending and not self._calls:
                return None
            else:
                await self._new.wait()

    def leave_all(self, reason: str) -> None:
        """The client is gone from every call, or too slow."""
        for call in list(self._calls.values()):
            self._drop(call, reason)

    # -- what the client says ---------------------------------------------------------------------------------------

    def _take(self, frame: pb.SessionRequest | BadFrame) -> None:
        if isinstance(frame, BadFrame):
            if not frame.call:
                raise frame.error
            return self._refuse(frame.call, frame.error)
        number, action = frame.call, frame.WhichOneof("action")
        if action == "leave":
            return self._leave(number)
        if action == "ack":
            return self._ack(frame)
        if action is None:
            error = InvalidRequest(
                "action: none is given; send generate, chat, attach, cancel or pause", field="action"
            )
            return self._refuse(number, error)
        if number <= self._highest:
            text = f"call: {number} is not above {self._highest}, the last one; number the calls of a stream upwards from 1"
            return self._refuse(number, InvalidRequest(text, field="call"))
        self._highest = number
        if len(self._calls) >= self._most_calls:
            text = f"call: {self._most_calls} run on this stream; wait for one, open another, or raise gateway.max_session_calls"
            return self._refuse(
                number, Overloaded(text, reason="rejected-session-calls", field="call", retry_after_s=1.0)
            )
        return self._begin(frame, number)

    def _begin(self, frame: pb.SessionRequest, number: int) -> None:
        call = self._calls[number] = _Call(number, self._marked, self._new)
        timeout_s = frame.context.timeout_ms / 1e3 or None
        work = self._ask if frame.HasField("cancel") or frame.HasField("pause") else self._start
        call.task = asyncio.create_task(self._guarded(call, work, frame))
        if timeout_s is not None:
            call.timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, call)

    def _edge(self, frame: pb.SessionRequest) -> EdgeContext:
        context = frame.context
        return replace(
            self._stream,
            api_key=context.authorization or self._stream.api_key,
            traceparent=context.traceparent,
            deadline_s=context.timeout_ms / 1e3 or None,
        )

    async def _guarded(
        self, call: _Call, work: Callable[[_Call, pb.SessionRequest], Awaitable[None]], frame: pb.SessionRequest
    ) -> None:
        try:
            await work(call, frame)
        except OctavoError as error:
            self._fail(call, error)
        except Exception as error:  # noqa: BLE001  a bug ends its own call, and says so
            self._bug(call, error)
        finally:
            call.task = None

    async def _start(self, call: _Call, frame: pb.SessionRequest) -> None:
        gateway, edge = self._gateway, self._edge(frame)
        if frame.HasField("generate"):
            generation = await gateway.start(wire.generate_params(frame.generate), edge)
        elif frame.HasField("chat"):
            generation = await gateway.start(wire.chat_params(frame.chat), edge)
        else:
            asked = frame.attach
            generation = await gateway.attach(asked.request_id, asked.idempotency_key, asked.from_byte, edge)
        if (
            self._calls.get(call.number) is not call
        ):  # it ended meanwhile, and the cancel of its task was lost on the way
            return generation.abandon("client_disconnect")
        call.generation = generation
        self._say(pb.CallEvent(call=call.number, started=wire.started_message(generation)))
        generation.watch(call)
        call.set()

    async def _ask(self, call: _Call, frame: pb.SessionRequest) -> None:
        edge = self._edge(frame)
        event = pb.CallEvent(call=call.number)
        if frame.HasField("cancel"):
            outcome = await self._gateway.cancel(frame.cancel.request_id, frame.cancel.reason, edge)
            event.cancelled.CopyFrom(wire.cancel_response(outcome))
        else:
            pause = frame.pause.pause
            decision = await self._gateway.pause(frame.pause.request_id, pause.tool, pause.expected_ms, edge)
            event.paused.found, event.paused.decision = bool(decision), decision
        self._say(event)
        self._forget(call)

    def _leave(self, number: int) -> None:
        call = self._calls.get(number)
        if call is not None:
            self._drop(call, "client_disconnect")
        elif number > self._highest or not number:
            text = f"call: there is no call {number} on this stream to leave; name one that began"
            self._refuse(number, InvalidRequest(text, field="call"))

    def _ack(self, frame: pb.SessionRequest) -> None:
        ack = frame.ack
        try:
            self._gateway.ack(ack.request_id, ack.byte_end, ack.first_token_ms, ack.last_token_ms, self._edge(frame))
        except OctavoError as error:
            self._refuse(frame.call, error)

    # -- how calls end ----------------------------------------------------------------------------------------------

    def _refuse(self, number: int, error: OctavoError) -> None:
        """Ends the call of this number, one that runs or one that never began."""
        call = self._calls.get(number)
        if call is None:
            self._say(_failed(number, error, None))
        else:
            self._fail(call, error)

    def _expire(self, call: _Call) -> None:
        self._stop(call, "deadline")
        self._fail(call, DeadlineExceeded("the call's own time is over", reason="evicted-deadline"))

    def _bug(self, call: _Call, error: Exception) -> None:
        self._log.error("a call failed", exc_info=error)
        self._fail(call, InternalError(f"an error of the gateway: {type(error).__name__}"))

    def _fail(self, call: _Call, error: OctavoError) -> None:
        if self._calls.get(call.number) is call:
            self._say(_failed(call.number, error, call.generation))
            self._drop(call, "client_disconnect")

    def _drop(self, call: _Call, reason: str) -> None:
        """Stops what still runs of it."""
        self._stop(call, reason)
        self._forget(call)

    def _stop(self, call: _Call, reason: str) -> None:
        if call.generation is not None:
            call.generation.abandon(reason)  # no-op after its end
        elif call.task is not None and call.task is not asyncio.current_task():
            call.task.cancel()

    def _forget(self, call: _Call) -> None:
        if call.timer is not None:
            call.timer.cancel()
        call.generation = None
        self._calls.pop(call.number, None)
        self._new.set()  # the last one may end the stream

    # -- what the calls say -----------------------------------------------------------------------------------------

    def _say(self, event: pb.CallEvent) -> None:
        self._said.append(event)
        self._new.set()

    def _collect(self) -> bytes | None:
        """One message of bounded size; calls it has no room for stay marked."""
        said, self._said = self._said, []
        message, columns = _Message(said), DeltaColumns()
        marked, told = self._marked, message.told
        while marked and message.room > len(columns.tokens):
            call = marked.popleft()
            call.marked = False
            generation = call.generation
            if generation is None:
                continue
            try:
                plain = call.number not in told and not generation.give(call.number, columns)
                if not plain and self._pull(message, call, generation):
                    call.set()
            except OctavoError as error:
                self._fail(call, error)
            except Exception as error:  # noqa: BLE001  a bug ends its own call, and says so
                self._bug(call, error)
        return message.packed(columns, self._writer)

    def _pull(self, message: _Message, call: _Call, generation: Generation) -> bool:
        """Moves its events into the message. True: it has more. Raises the call's error."""
        while message.room > 0:
            event = generation.pull()
            if event is None:
                return False
            filled = message.add(call.number)
            wire.fill_event(filled, event)
            if not isinstance(event, Delta):
                self._forget(call)
                return False
            message.room -= len(event.token_ids) + sum(4 + 4 * len(item.top) for item in event.logprobs)
            message.room -= len(event.text) >> 4
        return True


class _Call:
    """One call, and the mark that its request sets when there is something new."""

    __slots__ = ("_marked", "_new", "generation", "marked", "number", "task", "timer")

    def __init__(self, number: int, marked: deque[_Call], new: Flag) -> None:
        self._marked = marked  # the session's, in turn
        self._new = new
        self.number = number
        self.generation: Generation | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.marked = False

    def set(self) -> None:
        """The call has something to tell."""
        if not self.marked:
            self.marked = True
            marked = self._marked
            marked.append(self)
            if len(marked) == 1:  # else it was set for the first of them, or nobody waits for it
                self._new.set()


class _Message:
    """A message that is being filled. `told`: the calls that have events in it, whose deltas must be events too, to stay in order."""

    __slots__ = ("_response", "room", "told")

    def __init__(self, said: list[pb.CallEvent]) -> None:
        self._response = pb.SessionResponse(events=said)
        self.told = {event.call for event in said}
        self.room = MESSAGE_TOKENS

    def add(self, number: int) -> pb.CallEvent:
        """A further event of a call, to be filled."""
        self.told.add(number)
        return self._response.events.add(call=number)

    def packed(self, columns: DeltaColumns, writer: wire.DeltaWriter) -> bytes | None:
        """As it is written; None: there is nothing in it."""
        if columns.rows:
            writer.fill(self._response.runs, columns)
        elif not self.told:
            return None
        return self._response.SerializeToString()


def _failed(number: int, error: OctavoError, generation: Generation | None) -> pb.CallEvent:
    status = rich_status(in_rpcs_words(error))
    failed = pb.CallFailed(code=status.code, message=status.message, status=status.SerializeToString())
    if generation is not None:
        failed.cost.CopyFrom(wire.cost_message(generation.cost))
    return pb.CallEvent(call=number, failed=failed)
