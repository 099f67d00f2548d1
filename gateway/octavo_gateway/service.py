"""octavo.v1.InferenceService: the gRPC edge. Knows the gateway only through `octavo_gateway.requests`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc.aio
from octavo.errors import InternalError, InvalidRequest, OctavoError
from octavo.rpc.stall import StallGuard
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc

from octavo_gateway import inference_wire as wire
from octavo_gateway.request_bytes import BadFrame, TolerantServer
from octavo_gateway.requests import EdgeContext, Gateway, Generation
from octavo_gateway.rich_status import in_rpcs_words, status_trailer
from octavo_gateway.session import MOST_CALLS, Session
from octavo_gateway.slow_client import too_slow, write_or_cancel

Context = grpc.aio.ServicerContext[Any, Any]
NO_DEADLINE_S: Final = 1e8
"""gRPC reports a call without a deadline as one in many years."""


def edge_context(context: Context, internal: bool = False) -> EdgeContext:
    """What metadata and the call's deadline say."""
    metadata = {key.lower(): value for key, value in context.invocation_metadata() or ()}
    remaining = context.time_remaining()
    return EdgeContext(
        edge="grpc",
        api_key=_text(metadata.get("authorization") or metadata.get("x-api-key") or ""),
        traceparent=_text(metadata.get("traceparent") or ""),
        deadline_s=remaining if remaining is not None and remaining < NO_DEADLINE_S else None,
        internal=internal,
    )


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """One handler per rpc; every OctavoError becomes a rich status, everything else INTERNAL.

    `internal` is the one on the channel of the release gate, whose calls are answered before the gateway is ready.
    """

    def __init__(
        self, gateway: Gateway, log: logging.Logger, internal: bool = False, most_calls: int = MOST_CALLS
    ) -> None:
        self._gateway = gateway
        self._log = log
        self._internal = internal
        self._most_calls = most_calls
        self._sessions: set[Session] = set()

    async def end_sessions(self) -> None:
        """Step of a drain: every session ends with its last call."""
        for session in self._sessions:
            session.end_when_idle()

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        edge = edge_context(context, self._internal)
        await self._stream(
            context, pb.GenerateResponse, lambda: self._gateway.start(wire.generate_params(request), edge)
        )

    async def Chat(self, request: pb.ChatRequest, context: Context) -> None:
        edge = edge_context(context, self._internal)
        await self._stream(context, pb.ChatResponse, lambda: self._gateway.start(wire.chat_params(request), edge))

    async def Attach(self, request: pb.AttachRequest, context: Context) -> None:
        edge = edge_context(context, self._internal)
        await self._stream(
            context,
            pb.AttachResponse,
            lambda: self._gateway.attach(request.request_id, request.idempotency_key, request.from_byte, edge),
        )

    async def _stream(
        self, context: Context, response: type[wire.StreamResponse], start: Callable[[], Awaitable[Generation]]
    ) -> None:
        generation: Generation | None = None
        guard = StallGuard(self._gateway.slow_client_timeout_s)
        try:
            generation = await start()
            first = response(started=wire.started_message(generation))
            await write_or_cancel(context.write(first), generation, guard)
            async for event in generation:
                message = response()
                wire.fill_event(message, event)
                await write_or_cancel(context.write(message), generation, guard)
            context.set_trailing_metadata(cost_trailer(generation))
        except OctavoError as error:
            await abort(context, error, generation)
        except asyncio.CancelledError:
            # gRPC cancels the handler for both reasons.
            expired = (context.time_remaining() or NO_DEADLINE_S) <= 0
            if generation is not None:
                await generation.close("deadline" if expired else "client_disconnect")
            raise
        except Exception as error:  # noqa: BLE001  a bug ends its own call, and says so
            await self._broken(context, error)
        finally:
            guard.close()
            if generation is not None:
                await generation.close("client_disconnect")

    async def Session(self, frames: AsyncIterator[pb.SessionRequest | BadFrame], context: Context) -> None:
        session = Session(self._gateway, edge_context(context, self._internal), self._log, self._most_calls)
        guard = StallGuard(self._gateway.slow_client_timeout_s)
        reading = asyncio.create_task(session.read(frames))
        self._sessions.add(session)
        reason = "client_disconnect"
        try:
            await context.send_initial_metadata(((SESSION_MARK, "1"),))
            while (message := await session.next_message()) is not None:
                with guard:
                    await context.write(message)
        except TimeoutError:
            reading.cancel()  # no call begins any more
            session.leave_all("slow_client")
            await abort(context, too_slow(guard.limit_s))
        except OctavoError as error:
            await abort(context, error)
        except asyncio.CancelledError:
            if (context.time_remaining() or NO_DEADLINE_S) <= 0:
                reason = "deadline"
            raise
        except Exception as error:  # noqa: BLE001  a bug ends its own stream, and says so
            await self._broken(context, error)
        finally:
            self._sessions.discard(session)
            guard.close()
            session.leave_all(reason)
            reading.cancel()

    async def _broken(self, context: Context, error: Exception) -> NoReturn:
        self._log.error("a call failed", exc_info=error)
        await abort(context, InternalError(f"an error of the gateway: {type(error).__name__}"))

    async def _unary(self, context: Context, answer: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await answer()
        except OctavoError as error:
            await abort(context, error)
        except Exception as error:  # noqa: BLE001  a bug ends its own call, and says so
            await self._broken(context, error)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        async def answer() -> pb.CancelResponse:
            outcome = await self._gateway.cancel(
                request.request_id, request.reason, edge_context(context, self._internal)
            )
            return wire.cancel_response(outcome)

        response: pb.CancelResponse = await self._unary(context, answer)
        return response

    async def Pause(self, request: pb.PauseRequest, context: Context) -> pb.PauseResponse:
        async def answer() -> pb.PauseResponse:
            pause = request.pause
            edge = edge_context(context, self._internal)
            decision = await self._gateway.pause(request.request_id, pause.tool, pause.expected_ms, edge)
            return pb.PauseResponse(found=bool(decision), decision=decision)

        response: pb.PauseResponse = await self._unary(context, answer)
        return response

    async def Ack(self, request: pb.AckRequest, context: Context) -> pb.AckResponse:
        async def answer() -> pb.AckResponse:
            edge = edge_context(context, self._internal)
            found = self._gateway.ack(
                request.request_id, request.byte_end, request.first_token_ms, request.last_token_ms, edge
            )
            return pb.AckResponse(found=found)

        response: pb.AckResponse = await self._unary(context, answer)
        return response

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        async def answer() -> pb.TokenizeResponse:
            add_bos = request.add_bos if request.HasField("add_bos") else None
            ids = self._token_ids(
                request, edge_context(context, self._internal), parse_special=request.parse_special, add_bos=add_bos
            )
            return pb.TokenizeResponse(token_ids=ids, pieces=self._gateway.pieces(ids))

        response: pb.TokenizeResponse = await self._unary(context, answer)
        return response

    async def CountTokens(self, request: pb.CountTokensRequest, context: Context) -> pb.CountTokensResponse:
        async def answer() -> pb.CountTokensResponse:
            edge = edge_context(context, self._internal)
            tokens = len(self._token_ids(request, edge))
            return pb.CountTokensResponse(tokens=tokens, max_model_len=self._gateway.models(edge)[0].max_model_len)

        response: pb.CountTokensResponse = await self._unary(context, answer)
        return response

    def _token_ids(
        self,
        request: pb.TokenizeRequest | pb.CountTokensRequest,
        edge: EdgeContext,
        *,
        parse_special: bool = False,
        add_bos: bool | None = None,
    ) -> list[int]:
        given = request.WhichOneof("input")
        if given is None:
            raise InvalidRequest("input: neither text nor messages is given; send one", field="input")
        chat = request.messages
        return self._gateway.tokenize(
            request.model,
            request.text if given == "text" else None,
            wire.chat_messages(chat.messages) if given == "messages" else None,
            edge,
            parse_special=parse_special,
            add_bos=add_bos,
            add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True,
        )

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        async def answer() -> pb.DetokenizeResponse:
            text = self._gateway.detokenize(
                request.model,
                list(request.token_ids),
                edge_context(context, self._internal),
                skip_special_tokens=request.skip_special_tokens,
            )
            return pb.DetokenizeResponse(text=text)

        response: pb.DetokenizeResponse = await self._unary(context, answer)
        return response

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        async def answer() -> pb.ListModelsResponse:
            models = self._gateway.models(edge_context(context, self._internal))
            return pb.ListModelsResponse(models=[wire.model_message(model) for model in models])

        response: pb.ListModelsResponse = await self._unary(context, answer)
        return response


def register(servicer: InferenceServicer, server: grpc.aio.Server, max_body_bytes: int) -> None:
    """Puts every method on the server; bytes that are no message get INVALID_ARGUMENT."""
    tolerant = TolerantServer(server, abort, max_body_bytes)
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, tolerant)  # type: ignore[no-untyped-call]


SESSION_MARK: Final = "octavo-session"
"""Initial metadata of a session: a client that sees it knows that its calls are read."""
COST_TRAILER: Final = "octavo-cost-bin"
"""A serialized octavo.v1.Cost, at every end of a stream whose request was taken."""


def cost_trailer(generation: Generation) -> tuple[tuple[str, bytes], ...]:
    """What the request took, for any end of its stream."""
    return ((COST_TRAILER, wire.cost_message(generation.cost).SerializeToString()),)


async def abort(context: Context, error: OctavoError, generation: Generation | None = None) -> NoReturn:
    """Ends a call with a rich status, and with the cost of what was taken on."""
    trailers = cost_trailer(generation) if generation is not None else ()
    told = in_rpcs_words(error)
    await context.abort(told.status, told.message, (*status_trailer(told), *trailers))
    raise AssertionError("abort raises")
