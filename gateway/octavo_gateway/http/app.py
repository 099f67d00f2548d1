"""The routes of the edge, and the small endpoints that generate nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import prometheus_client
from octavo.errors import InternalError, InvalidRequest, OctavoError, UnknownModel, UnknownRequest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo_gateway.http.bodies import DetokenizeBody, PauseBody, TokenizeBody, decode_body
from octavo_gateway.http.calls import Calls
from octavo_gateway.http.edge import bearer
from octavo_gateway.http.endpoints import GeneratingEndpoint, read_chat, read_completion
from octavo_gateway.http.errors import BodyTooLarge, MethodNotAllowed, UnknownUrl, error_headers, error_json
from octavo_gateway.http.names import in_clients_words
from octavo_gateway.http.page import PageEndpoints
from octavo_gateway.http.params import chat_messages
from octavo_gateway.http.read import ClientGone, read_json
from octavo_gateway.http.shapes import ModelBody, ModelList, Paused, Text, Tokens, encode
from octavo_gateway.page.feed import LiveFeed
from octavo_gateway.requests import EdgeContext, Gateway, ModelInfo

LONG_BODY_BYTES = 32 * 1024
"""Above this, tokenizing leaves the loop for a thread, so that streams go on."""

BodyT = TypeVar("BodyT")


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """What the edge needs besides the gateway."""

    metrics: prometheus_client.CollectorRegistry
    version: str
    max_body_bytes: int  # gateway.max_body_bytes
    calls: Calls
    feed: LiveFeed


class PlainEndpoints:
    """Models, tokens, health and metrics."""

    def __init__(self, gateway: Gateway, options: EdgeOptions) -> None:
        self._gateway = gateway
        self._options = options

    async def models(self, request: Request) -> Response:
        return _json(ModelList([_model(item) for item in self._gateway.models(_edge(request))]))

    async def model(self, request: Request) -> Response:
        return _json(_model(self._find(request.path_params["id"], _edge(request))))

    async def tokenize(self, request: Request) -> Response:
        edge = _edge(request)
        raw, body = await self._read(request, TokenizeBody)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("prompt: send either prompt or messages", field="prompt")
        messages = None if body.messages is None else chat_messages(body.messages)

        def work() -> tuple[list[int], list[str] | None]:
            ids = self._gateway.tokenize(
                body.model or "",
                body.prompt,
                messages,
                edge,
                add_bos=False if body.add_special_tokens is False else None,
                add_generation_prompt=body.add_generation_prompt is not False,
            )
            return ids, self._gateway.pieces(ids) if body.return_token_strs else None

        # a chat template is rendered under the loop's own instruction limit, so it stays here
        ids, strings = await _off_loop(len(raw), work) if messages is None else work()
        return _json(Tokens(len(ids), self._find(body.model or "", edge).max_model_len, ids, strings))

    async def detokenize(self, request: Request) -> Response:
        edge = _edge(request)
        raw, body = await self._read(request, DetokenizeBody)

        def work() -> str:
            return self._gateway.detokenize(
                body.model or "", body.tokens, edge, skip_special_tokens=bool(body.skip_special_tokens)
            )

        try:
            return _json(Text(await _off_loop(len(raw), work)))
        except InvalidRequest as error:
            # the gateway's name of the field is not the one that this client sent
            raise error.renamed(lambda field: field.replace("token_ids", "tokens", 1)) from error

    async def pause(self, request: Request) -> Response:
        """A turn ended in a tool call, or will: the rpc Pause. Raises UnknownRequest for one that is not known, or failed."""
        request_id = request.path_params["id"]
        _raw, body = await self._read(request, PauseBody)
        try:
            decision = await self._gateway.pause(request_id, body.tool or "", body.expected_ms or 0, _edge(request))
        except InvalidRequest as error:
            # the body is the pause itself
            raise error.renamed(lambda field: field.removeprefix("pause.")) from error
        if not decision:
            raise UnknownRequest(
                f"id: no turn {request_id[:80]!r} is known that has an answer or will have one; give the X-Request-Id of its response",
                field="id",
            )
        return _json(Paused(request_id, decision))

    async def health(self, request: Request) -> Response:
        """Liveness: the loop turns."""
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Readiness: a warm worker behind a scheduler that answers, an open release gate, and no drain."""
        if self._options.calls.draining or not self._gateway.ready:
            status = "draining" if self._options.calls.draining else self._gateway.why_not_ready
            return _json({"status": status}, 503, {"retry-after": "1"})
        return _json({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        text = prometheus_client.generate_latest(self._options.metrics)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    async def version(self, request: Request) -> Response:
        return _json({"version": self._options.version})

    async def _read(self, request: Request, kind: type[BodyT]) -> tuple[bytes, BodyT]:
        raw = await read_json(
            request.headers,
            request.receive,
            max_bytes=self._options.max_body_bytes,
            timeout_s=self._gateway.slow_client_timeout_s,
        )
        return raw, decode_body(raw, kind)

    def _find(self, name: str, edge: EdgeContext) -> ModelInfo:
        served = self._gateway.models(edge)
        for item in served:
            if name in ("", item.id):
                return item
        names = ", ".join(item.id for item in served)
        raise UnknownModel(f"model: {name[:80]!r} is not served; use {names}", field="model")


def _edge(request: Request) -> EdgeContext:
    return EdgeContext("http", api_key=bearer(request.headers))


def _model(item: ModelInfo) -> ModelBody:
    return ModelBody(item.id, item.created_unix_s, item.max_model_len)


ResultT = TypeVar("ResultT")


async def _off_loop(size: int, work: Callable[[], ResultT]) -> ResultT:
    return await asyncio.to_thread(work) if size > LONG_BODY_BYTES else work()


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(content), status, headers, media_type="application/json")


async def on_octavo_error(request: Request, error: Exception) -> Response:
    """OpenAI's error body for everything that is not a generation."""
    assert isinstance(error, OctavoError)
    told = in_clients_words(error)
    headers = {name.decode(): value.decode() for name, value in error_headers(told)}
    if isinstance(told, BodyTooLarge):
        request.scope["state"]["connection"].linger()
    return Response(error_json(told), told.http_status, headers)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405."""
    assert isinstance(error, HTTPException)
    kind = MethodNotAllowed if error.status_code == 405 else UnknownUrl
    shown = kind(f"{request.method} {request.url.path}: {error.detail}")
    response = await on_octavo_error(request, shown)
    response.status_code = error.status_code
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def on_bug(request: Request, error: Exception) -> Response:
    """The 500 of a bug; Starlette re-raises the error afterwards, so the server logs it."""
    return await on_octavo_error(request, InternalError("the gateway failed on this request; its log says why"))


async def on_gone(request: Request, error: Exception) -> Response:
    """Nobody reads this."""
    return Response(status_code=499)


Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(gateway: Gateway, options: EdgeOptions) -> Starlette:
    """The whole edge as one ASGI application; it needs `Connection` as uvicorn's protocol."""
    plain = PlainEndpoints(gateway, options)
    page = PageEndpoints(gateway, options.feed)
    gets: dict[str, Any] = {
        "/": page.index,
        "/page/{name}": page.asset,
        "/live": page.now,
        "/live/events": page.events,
        "/live/requests/{id:path}": page.timeline,
        "/v1/models": plain.models,
        "/v1/models/{id:path}": plain.model,
        "/health": plain.health,
        "/ready": plain.ready,
        "/metrics": plain.metrics,
        "/version": plain.version,
    }
    posts: dict[str, Any] = {
        "/v1/chat/completions": GeneratingEndpoint(gateway, options.calls, read_chat, options.max_body_bytes),
        "/v1/completions": GeneratingEndpoint(gateway, options.calls, read_completion, options.max_body_bytes),
        "/v1/requests/{id}/pause": plain.pause,
        "/tokenize": plain.tokenize,
        "/detokenize": plain.detokenize,
    }
    routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]
    routes += [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
    handlers: dict[Any, Any] = {
        OctavoError: on_octavo_error,
        HTTPException: on_http_error,
        ClientGone: on_gone,
        Exception: on_bug,
    }
    return Starlette(routes=routes, exception_handlers=handlers)
