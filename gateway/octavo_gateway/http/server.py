"""uvicorn inside the service's own loop: bind, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from octavo.errors import OctavoError, Unavailable
from octavo.rpc.host import Host
from starlette.types import ASGIApp

from octavo_gateway.http.app import EdgeOptions, create_app
from octavo_gateway.http.calls import Calls
from octavo_gateway.http.connection import Connection
from octavo_gateway.page.feed import LiveFeed
from octavo_gateway.requests import Gateway

KEEP_ALIVE_S = 65
"""Idle connections stay longer than a load balancer's usual 60 s, so that it is never us who closes first."""
BACKLOG = 2048
"""Connections that may wait to be accepted."""
LAST_WORDS_S = 1.0
"""At the end of the drain: time for the error events of the calls that it cut."""


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The host owns the signals."""
        yield


class HttpServer:
    """The edge's listener and its calls."""

    def __init__(self, app: ASGIApp, calls: Calls, drain_timeout_s: float) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server = _Uvicorn(config)
        self._calls = calls
        self._drain_timeout_s = drain_timeout_s
        self._stopped = asyncio.Event()

    async def serve(self, listener: socket.socket) -> None:
        """Runs until drained."""
        try:
            await self._server.serve(sockets=[listener])
        finally:
            self._stopped.set()

    async def drain(self) -> None:
        """No new calls; running ones may end within the drain timeout; the rest ends with an error event."""
        self._calls.draining = True
        try:
            async with asyncio.timeout(max(0.0, self._drain_timeout_s - 2 * LAST_WORDS_S)):
                await self._calls.wait_idle()
        except TimeoutError:
            pass  # the next lines end what is left
        finally:
            error = Unavailable("this gateway is stopping", reason="evicted-draining", retry_after_s=1)
            self._calls.fail_all(error)
            self._server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._stopped.wait()
        self._server.force_exit = True


def bind(address: str) -> socket.socket:
    """A listening TCP socket at `host:port` (port 0: a free one). Raises OctavoError saying what to change."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not port.isdigit():
        raise OctavoError(f"gateway.http_listen: {address!r} is not host:port", field="gateway.http_listen")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
        listener.listen(BACKLOG)  # from here on a client may connect; uvicorn accepts a moment later
    except (OSError, OverflowError) as error:
        listener.close()
        raise OctavoError(
            f"gateway.http_listen: cannot listen on {address}: {error}; choose a free address",
            field="gateway.http_listen",
        ) from error
    listener.setblocking(False)
    return listener


async def start_http(gateway: Gateway, feed: LiveFeed, host: Host) -> str:
    """Serves the edge on gateway.http_listen beside gRPC; returns the bound `host:port`. Drains with the host."""
    settings, deployment = host.manifest.gateway, host.manifest.deployment
    calls = Calls()
    app = create_app(gateway, EdgeOptions(host.metrics, host.version, settings.max_body_bytes, calls, feed))
    listener = bind(settings.http_listen)
    server = HttpServer(app, calls, deployment.drain_timeout_s)
    host.spawn(server.serve(listener), "http")

    async def drain() -> None:
        feed.close()
        await server.drain()

    host.on_drain(drain)
    name, port = listener.getsockname()[:2]
    bound = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    host.urls["http"] = f"http://{bound}"
    host.urls.setdefault("metrics", f"http://{bound}/metrics")
    return bound
