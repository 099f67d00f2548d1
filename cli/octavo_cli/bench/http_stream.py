"""Streamed HTTP/1.1 requests over kept connections, at a quarter of the CPU of a general client.

Whatever the generator spends on an answer delays its next request, and takes the machine from a server beside it. So this client
parses with httptools, opens as many connections as there are requests under way, follows nothing and retries nothing.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httptools

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 600.0
MAX_IDLE: Final = 256
"""Connections that wait for a next request."""


class ConnectionBroke(Exception):
    """The server cannot be reached, closed too early, or speaks no HTTP/1.1."""


class HttpPool:
    """Connections to one origin. `headers` go with every request."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self._host, tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if tls else 80)
        self._tls = ssl.create_default_context() if tls else None
        lines = {"host": parts.netloc.rpartition("@")[2], "accept": "*/*", "user-agent": "octavo-bench"} | (
            headers or {}
        )
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle: deque[_Connection] = deque()

    async def close(self) -> None:
        """Closes what is idle; an exchange under way closes its own."""
        while self._idle:
            self._idle.pop().close()

    def get(self, path: str, timeout_s: float = READ_TIMEOUT_S) -> Exchange:
        """An exchange without a body; `timeout_s` without a byte break it."""
        return Exchange(self, f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode(), timeout_s)

    def post(self, path: str, content: dict[str, Any], timeout_s: float = READ_TIMEOUT_S) -> Exchange:
        """An exchange with a JSON body."""
        body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        head = (
            f"POST {path} HTTP/1.1\r\n{self._head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return Exchange(self, head.encode() + body, timeout_s)

    async def take(self) -> _Connection:
        """A kept connection that is still open, or a new one. Raises ConnectionBroke."""
        while self._idle:
            if not (kept := self._idle.pop()).closed:
                return kept
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _transport, made = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        except TimeoutError as error:
            raise ConnectionBroke(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        except (OSError, UnicodeError) as error:  # the latter: a host name that cannot be encoded
            raise ConnectionBroke(str(error)) from error
        return made

    def keep(self, connection: _Connection) -> None:
        """Its answer is whole: the next request may use it."""
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()


class Exchange:
    """One request and its answer, as a context: `status` is known inside it, `read` gives the body. Leaving early closes the connection,
    which cancels the request at the server."""

    def __init__(self, pool: HttpPool, message: bytes, timeout_s: float) -> None:
        self._pool = pool
        self._message = message
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None

    async def __aenter__(self) -> Self:
        """Sends, and waits for the answer's head. Raises ConnectionBroke, or TimeoutError."""
        self._connection = connection = await self._pool.take()
        try:
            connection.send(self._message)
            while not connection.status:
                await connection.more(self._timeout_s)
        except BaseException:
            connection.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        if connection is None:
            return
        if connection.reusable:
            self._pool.keep(connection)
        else:
            connection.close()

    @property
    def status(self) -> int:
        """The answer's code."""
        return self._connection.status if self._connection is not None else 0

    async def read(self) -> bytes:
        """What has come of the body since the last call; empty: it is whole. Raises ConnectionBroke, or TimeoutError."""
        connection = self._connection
        if connection is None:
            raise ConnectionBroke("nothing was sent")
        while not connection.body and not connection.whole:
            await connection.more(self._timeout_s)
        blocks = b"".join(connection.body)
        connection.body.clear()
        return blocks

    async def read_all(self, most: int) -> bytes:
        """The rest of the body, at most `most` bytes of it."""
        found = bytearray()
        while len(found) < most and (block := await self.read()):
            found += block
        return bytes(found[:most])


class _Connection(asyncio.Protocol):
    """What one socket has received of the answer under way."""

    def __init__(self) -> None:
        self.closed = self.whole = False
        self.status = 0
        self.body: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._fault: ConnectionBroke | None = None
        self._until_close = self._keep = False

    @property
    def reusable(self) -> bool:
        """The answer is whole, all of it was read, and the server keeps the connection."""
        return self.whole and self._keep and not self.body and not self.closed and self._fault is None

    def send(self, message: bytes) -> None:
        self.status, self.whole, self._until_close = 0, False, True
        self.body.clear()
        self._parser = httptools.HttpResponseParser(self)
        if self._transport is None or self.closed:
            raise ConnectionBroke("closed by the server")
        self._transport.write(message)

    async def more(self, timeout_s: float) -> None:
        """Waits until anything has come. Raises ConnectionBroke, or TimeoutError."""
        if self._fault is not None:
            raise self._fault
        if self.closed:
            raise ConnectionBroke("closed by the server before the answer was whole")
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._late)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _late(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError("no byte came"))

    # --- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(f"what came is no HTTP/1.1: {error}")
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self.status and not self.whole and self._until_close and error is None:
            self.whole = True
        self._wake()

    def _break(self, why: str) -> None:
        self._fault = self._fault or ConnectionBroke(why)
        self.close()

    # --- httptools -------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._until_close = False
        elif name == b"content-encoding" and value.lower() != b"identity":
            self._break(f"its content-encoding {value.decode(errors='replace')} was not asked for")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._keep = self._parser.should_keep_alive()

    def on_body(self, block: bytes) -> None:
        self.body.append(block)

    def on_message_complete(self) -> None:
        self.whole = True
