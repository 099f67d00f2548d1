"""A scripted gateway over real grpc.aio for the SDK's tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc


def status_of(failure: Failure) -> status_pb2.Status:
    """google.rpc.Status of a scripted failure."""
    packed = []
    for detail in failure.details:
        item = any_pb2.Any()
        item.Pack(detail)
        packed.append(item)
    return status_pb2.Status(code=failure.code, message=failure.message, details=packed)


def retry_info(seconds: float) -> error_details_pb2.RetryInfo:
    return error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=int(seconds * 1e9)))


CANCELLED = pb.CancelResponse(found=True, outcome="cancelled", last_step=9, blocks_freed=3, latency_us=700)
PAUSED = pb.PauseResponse(found=True, decision="keep")


@dataclass(slots=True)
class Failure:
    """A non-OK status in the place of an event."""

    code: int
    message: str = "scripted"
    details: Sequence[Any] = ()


@dataclass
class Gateway(inference_pb2_grpc.InferenceServiceServicer):
    """Each call to Generate, Chat or Attach takes the next script: events, Failures and awaitables, in order."""

    scripts: list[Sequence[Any]] = field(default_factory=list)
    calls: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    acks: list[pb.AckRequest] = field(default_factory=list)
    unary_failures: list[Failure] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    remaining_s: list[float] = field(default_factory=list)
    knows_sessions: bool = True
    sessions: int = 0
    mark: Literal["sent", "taken away", "held back"] = "sent"
    """What becomes of a session's mark on its way to the client."""
    plays: Callable[[Any, Any], Any] | None = None
    """Plays a whole session instead of the scripts."""

    async def _play(self, name: str, request: Any, context: Any, kind: Any) -> AsyncIterator[Any]:
        self._note(name, request, context)
        try:
            for item in self.scripts.pop(0):
                if isinstance(item, Failure):
                    await context.abort_with_status(rpc_status.to_status(status_of(item)))
                elif callable(item):
                    await item()
                else:
                    event = kind()
                    getattr(event, item.DESCRIPTOR.name.lower()).CopyFrom(item)
                    yield event
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def _note(self, name: str, request: Any, context: Any) -> None:
        self.calls.append((name, request, dict(context.invocation_metadata())))
        self.remaining_s.append(context.time_remaining() or 0.0)

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for event in self._play("Generate", request, context, pb.GenerateResponse):
            yield event

    async def Chat(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for event in self._play("Chat", request, context, pb.ChatResponse):
            yield event

    async def Attach(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for event in self._play("Attach", request, context, pb.AttachResponse):
            yield event

    async def Session(self, frames: Any, context: Any) -> None:
        """The same scripts for each call of a session."""
        self.sessions += 1
        if not self.knows_sessions:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if self.mark == "held back":  # until there is a message
            await self._only_read(frames)
            return
        await context.send_initial_metadata((("octavo-session", "1"),) if self.mark == "sent" else ())
        if self.mark == "taken away":
            await self._only_read(frames)
            return
        if self.plays is not None:
            await self.plays(frames, context)
            return
        playing: dict[int, asyncio.Task[None]] = {}
        asking: list[asyncio.Task[None]] = []
        turn = asyncio.Lock()

        async def say(event: pb.CallEvent) -> None:
            async with turn:
                await context.write(pb.SessionResponse(events=[event]))

        async for frame in frames:
            action = frame.WhichOneof("action")
            if action == "ack":
                self.acks.append(frame.ack)
            elif action in ("cancel", "pause"):
                asking.append(asyncio.create_task(self._answer(frame, context, say)))
            elif action == "leave":
                playing.pop(frame.call).cancel()
            else:
                self.calls.append((action.capitalize(), getattr(frame, action), self._metadata_of(frame, context)))
                self.remaining_s.append(frame.context.timeout_ms / 1e3)
                playing[frame.call] = asyncio.create_task(self._play_call(frame.call, say))

    async def _only_read(self, frames: Any) -> None:
        async for _frame in frames:
            raise AssertionError("nothing is written before the mark")

    async def _answer(self, frame: Any, context: Any, say: Callable[[pb.CallEvent], Any]) -> None:
        action = frame.WhichOneof("action")
        self.calls.append((f"session {action}", getattr(frame, action), self._metadata_of(frame, context)))
        if self.unary_failures:
            failure = self.unary_failures.pop(0)
            failed = pb.CallFailed(code=failure.code, status=status_of(failure).SerializeToString())
            return await say(pb.CallEvent(call=frame.call, failed=failed))
        if action == "cancel":
            await say(pb.CallEvent(call=frame.call, cancelled=CANCELLED))
        else:
            await say(pb.CallEvent(call=frame.call, paused=PAUSED))

    def _metadata_of(self, frame: Any, context: Any) -> dict[str, str]:
        own = {"traceparent": frame.context.traceparent} if frame.context.traceparent else {}
        return {**dict(context.invocation_metadata()), **own}

    async def _play_call(self, number: int, say: Callable[[pb.CallEvent], Any]) -> None:
        try:
            for item in self.scripts.pop(0):
                if isinstance(item, Failure):
                    status = status_of(item)
                    failed = pb.CallFailed(code=item.code, message=item.message, status=status.SerializeToString())
                    await say(pb.CallEvent(call=number, failed=failed))
                    return
                if callable(item):
                    await item()
                else:
                    event = pb.CallEvent(call=number)
                    getattr(event, item.DESCRIPTOR.name.lower()).CopyFrom(item)
                    await say(event)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _unary(self, name: str, request: Any, context: Any) -> None:
        self._note(name, request, context)
        if self.unary_failures:
            failure = self.unary_failures.pop(0)
            await context.abort_with_status(rpc_status.to_status(status_of(failure)))

    async def Cancel(self, request: Any, context: Any) -> Any:
        await self._unary("Cancel", request, context)
        return CANCELLED

    async def Pause(self, request: Any, context: Any) -> Any:
        await self._unary("Pause", request, context)
        return PAUSED

    async def Ack(self, request: Any, context: Any) -> Any:
        self.acks.append(request)
        return pb.AckResponse(found=True)

    async def Tokenize(self, request: Any, context: Any) -> Any:
        await self._unary("Tokenize", request, context)
        return pb.TokenizeResponse(token_ids=[5, 6], pieces=["he", "y"])

    async def Detokenize(self, request: Any, context: Any) -> Any:
        await self._unary("Detokenize", request, context)
        return pb.DetokenizeResponse(text="hey")

    async def CountTokens(self, request: Any, context: Any) -> Any:
        await self._unary("CountTokens", request, context)
        return pb.CountTokensResponse(tokens=2, max_model_len=8192)

    async def ListModels(self, request: Any, context: Any) -> Any:
        await self._unary("ListModels", request, context)
        return pb.ListModelsResponse(models=[pb.Model(id="m", max_model_len=8192, vocab_size=10, architecture="llama")])


def answer(pieces: Sequence[str], *, index: int = 0, request_id: str = "", end: bool = True) -> list[Any]:
    """Started, one Delta of one token per piece, and Finished."""
    events: list[Any] = [pb.Started(request_id=request_id, model="m", trace_id="ab" * 16, prompt_tokens=4, seed=77)]
    size = 0
    for number, piece in enumerate(pieces, start=1):
        size += len(piece.encode())
        last = end and number == len(pieces)
        events.append(
            pb.Delta(
                index=index,
                text=piece,
                token_ids=[100 + number],
                token_end=number,
                byte_end=size,
                finish_reason=pb.FINISH_REASON_STOP if last else pb.FINISH_REASON_UNSPECIFIED,
            )
        )
    if end:
        choice = pb.ChoiceEnd(index=index, finish_reason=pb.FINISH_REASON_STOP, tokens=len(pieces), bytes=size)
        usage = pb.Usage(prompt_tokens=4, cached_tokens=1, completion_tokens=len(pieces))
        events.append(pb.Finished(usage=usage, choices=[choice], timings=pb.Timings(t_first_token_us=1500)))
    return events


@dataclass(slots=True)
class Served:
    """A gateway that listens, and may be stopped and started again on its port."""

    gateway: Gateway
    address: str
    server: grpc.aio.Server


async def start_gateway(address: str = "127.0.0.1:0", gateway: Gateway | None = None) -> Served:
    gateway = gateway or Gateway()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(gateway, server)
    port = server.add_insecure_port(address)
    await server.start()
    return Served(gateway, f"127.0.0.1:{port}", server)


@pytest.fixture(params=["session", "plain"])
def knows_sessions(request: pytest.FixtureRequest) -> bool:
    """Whether the gateways of a test know Session; what a client gets must not depend on it."""
    return bool(request.param == "session")


@pytest.fixture
async def served(knows_sessions: bool) -> AsyncIterator[Served]:
    one = await start_gateway(gateway=Gateway(knows_sessions=knows_sessions))
    yield one
    await one.server.stop(None)


@pytest.fixture
async def serve(knows_sessions: bool) -> AsyncIterator[Callable[..., Any]]:
    """Starts further gateways."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(address: str = "127.0.0.1:0", gateway: Gateway | None = None) -> Served:
            one = await start_gateway(address, gateway or Gateway(knows_sessions=knows_sessions))
            stack.push_async_callback(one.server.stop, None)
            return one

        yield start


@pytest.fixture
def script() -> Any:
    """What scripts are made of."""

    class Script:
        answer = staticmethod(answer)
        failure = Failure
        retry_info = staticmethod(retry_info)
        unavailable = Failure(code_pb2.UNAVAILABLE)
        code = code_pb2

    return Script
