"""The page's files, the live feed as one JSON or as server-sent events, and one request's waterfall."""

from __future__ import annotations

import asyncio
from typing import Final

from octavo.errors import OctavoError, Unauthenticated
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo_gateway.http.answer import SSE_HEADERS, Body
from octavo_gateway.http.calls import SlowClient
from octavo_gateway.http.connection import Connection
from octavo_gateway.http.edge import bearer
from octavo_gateway.http.errors import UnknownUrl, error_headers, error_json
from octavo_gateway.http.read import ClientGone
from octavo_gateway.http.shapes import encode
from octavo_gateway.page.assets import INDEX, load_assets
from octavo_gateway.page.feed import FeedClosed, LiveFeed
from octavo_gateway.requests import Audience, EdgeContext, Gateway

MAX_ID_CHARS: Final = 512


class PageEndpoints:
    """Everything below `/`, `/page` and `/live`."""

    def __init__(self, gateway: Gateway, feed: LiveFeed) -> None:
        self._gateway = gateway
        self._feed = feed
        self._assets = load_assets()
        self.events: ASGIApp = LiveEvents(gateway, feed)

    async def index(self, request: Request) -> Response:
        return self._file(INDEX, request)

    async def asset(self, request: Request) -> Response:
        return self._file(request.path_params["name"], request)

    def _file(self, name: str, request: Request) -> Response:
        asset = self._assets.get(name)
        if asset is None:
            raise UnknownUrl(f"GET {request.url.path[:80]}: the page has no such file; it begins at /")
        if request.headers.get("if-none-match") == asset.headers["etag"]:
            return Response(status_code=304, headers=asset.headers)
        return Response(asset.content, headers=asset.headers)

    async def now(self, request: Request) -> Response:
        """One moment of the live view."""
        audience = _audience(self._gateway, request.headers)
        return _json(await self._feed.once(audience))

    async def timeline(self, request: Request) -> Response:
        """One request's waterfall; another tenant's only for who sees all."""
        audience = _audience(self._gateway, request.headers)
        tenant = request.query_params.get("tenant", "") or audience.tenant
        if tenant != audience.tenant and not audience.sees_all:
            raise Unauthenticated("tenant: only an admin's key shows another tenant's request", field="tenant")
        return _json(await self._feed.timeline(request.path_params["id"][:MAX_ID_CHARS], tenant[:MAX_ID_CHARS]))


def _audience(gateway: Gateway, headers: Headers) -> Audience:
    return gateway.audience(EdgeContext("http", api_key=bearer(headers)))


def _json(content: object) -> Response:
    return Response(encode(content), media_type="application/json", headers={"cache-control": "no-store"})


class LiveEvents:
    """The feed as server-sent events, an event per moment, until the viewer leaves, stalls, or the gateway stops."""

    def __init__(self, gateway: Gateway, feed: LiveFeed) -> None:
        self._gateway = gateway
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"]["connection"]
        body = Body(send, connection, self._gateway.slow_client_timeout_s)
        try:
            audience = _audience(self._gateway, Headers(scope=scope))
            with self._feed.viewer(audience):
                await self._watched(connection, body, audience)
        except OctavoError as error:
            data = error_json(error)
            headers = [*error_headers(error), (b"content-length", str(len(data)).encode())]
            await body.write(error.http_status, headers, data, more=False)
        except SlowClient:
            connection.abort()
        except ClientGone:
            return

    async def _watched(self, connection: Connection, body: Body, audience: Audience) -> None:
        """Sends moments; a lost connection cancels the wait for the next one."""
        task, gone = asyncio.current_task(), False

        def lost() -> None:
            nonlocal gone
            gone = True
            if task is not None:
                task.cancel()

        connection.on_lost = lost
        try:
            if connection.is_lost:
                raise ClientGone
            await self._send(body, audience)
        except asyncio.CancelledError:
            if not gone:
                raise
            if task is not None:
                task.uncancel()
            raise ClientGone from None
        finally:
            connection.on_lost = None

    async def _send(self, body: Body, audience: Audience) -> None:
        seen = 0
        while True:
            try:
                seen, moment = await self._feed.next(seen, audience)
            except FeedClosed:
                await body.write(200, SSE_HEADERS, b"event: bye\ndata: {}\n\n", more=False)
                return
            await body.write(200, SSE_HEADERS, b"data: " + encode(moment) + b"\n\n", more=True)
