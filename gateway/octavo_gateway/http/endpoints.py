"""/v1/completions and /v1/chat/completions as ASGI applications."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import UNSET
from octavo.errors import OctavoError
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from octavo_gateway.caching.tools import callable_names
from octavo_gateway.http.answer import Answer, Body, RawHeaders
from octavo_gateway.http.bodies import ChatBody, CompletionBody, decode_body
from octavo_gateway.http.calls import Call, Calls, SlowClient
from octavo_gateway.http.connection import Connection
from octavo_gateway.http.edge import CallHeaders, read_headers
from octavo_gateway.http.errors import BodyTooLarge, error_headers, error_json
from octavo_gateway.http.forms import ChatForm, CompletionForm, Form, StopReasons
from octavo_gateway.http.names import in_clients_words
from octavo_gateway.http.params import chat_params, completion_params
from octavo_gateway.http.read import ClientGone, read_json
from octavo_gateway.http.refused import check_chat, check_completion
from octavo_gateway.requests import Cost, EdgeContext, Gateway, RequestParams


@dataclass(slots=True)
class Asked:
    """A body that was understood."""

    body: ChatBody | CompletionBody
    params: Sequence[RequestParams]
    form: Form


def read_chat(raw: bytes) -> Asked:
    """Raises InvalidRequest."""
    body = decode_body(raw, ChatBody)
    check_chat(raw)
    params = chat_params(body)
    return Asked(body, [params], ChatForm(bool(body.logprobs), stop_reasons(body), callable_names(params)))


def stop_reasons(body: ChatBody | CompletionBody) -> StopReasons:
    """What this caller asked to stop at."""
    strings = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return StopReasons(frozenset(strings), frozenset(body.stop_token_ids or ()))


def read_completion(raw: bytes) -> Asked:
    """Raises InvalidRequest."""
    body = decode_body(raw, CompletionBody)
    check_completion(raw)
    return Asked(body, completion_params(body), CompletionForm(body.logprobs is not None, stop_reasons(body)))


class GeneratingEndpoint:
    """Body in, answer or error out, for either form."""

    def __init__(self, gateway: Gateway, calls: Calls, read: Callable[[bytes], Asked], max_body_bytes: int) -> None:
        self._gateway = gateway
        self._calls = calls
        self._read = read
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"]["connection"]
        headers = Headers(scope=scope)
        body = Body(send, connection, self._gateway.slow_client_timeout_s)
        call = Call(self._gateway, connection, self._calls)
        asked: Asked | None = None
        named: CallHeaders | None = None
        try:
            named = said = read_headers(headers)
            raw = await read_json(
                headers, receive, max_bytes=self._max_body_bytes, timeout_s=self._gateway.slow_client_timeout_s
            )
            asked = self._read(raw)
            del raw
            params = [said.apply(item, i, len(asked.params)) for i, item in enumerate(asked.params)]
            asked.params = params
            answer = Answer(call, asked.form, asked.body.n or 1, body, request_id=said.request_id)
            understood = asked

            async def work() -> None:
                await call.start(params, said.edge)
                answer.fingerprint = self._fingerprint(call.generations[0].model, said.edge)
                await _send(answer, understood)

            await call.run(work)
        except OctavoError as error:
            if asked is not None:  # from the gateway, in the gateway's words
                error = in_clients_words(error, asked.body, named)
            await self._send_error(error, body, call, headers)
        except ClientGone:
            return

    async def _send_error(self, error: OctavoError, body: Body, call: Call, headers: Headers) -> None:
        """Before the first byte: a status. After it: an error event, and no [DONE]."""
        cost = sum((generation.cost for generation in call.generations), Cost())
        data = error_json(error, UNSET if cost == Cost() else cost)
        try:
            if body.started:
                await body.write(200, [], b"data: " + data + b"\n\n", more=False)
                return
            named: RawHeaders = [(b"content-length", str(len(data)).encode())]
            request_id = call.generations[0].request_id if call.generations else headers.get("x-request-id", "")
            if request_id:
                named.append((b"x-request-id", request_id.encode("latin-1", "replace")))
            await body.write(error.http_status, error_headers(error) + named, data, more=False)
            if isinstance(error, BodyTooLarge):
                call.connection.linger()
        except SlowClient:
            call.connection.abort()

    def _fingerprint(self, model: str, edge: EdgeContext) -> str | None:
        served = self._gateway.models(edge)
        return next((f"octavo-{item.fingerprint[:16]}" for item in served if item.id == model), None)


async def _send(answer: Answer, asked: Asked) -> None:
    if not asked.body.stream:
        await answer.whole()
        return
    options = asked.body.stream_options
    await answer.stream(
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
    )
