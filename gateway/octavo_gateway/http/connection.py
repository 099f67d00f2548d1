"""One client connection: uvicorn's protocol with bounded buffers, and the two things ASGI does not tell an app.

A lost connection calls back at once, so no task has to wait for `http.disconnect`; and `writable` says whether the
client still takes bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable
from typing import Any

from octavo.errors import InvalidRequest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo_gateway.http.errors import error_json

SEND_BUFFER_BYTES = 128 * 1024
"""SO_SNDBUF: the kernel would otherwise grow it to megabytes for a client that does not read."""
HIGH_WATER_BYTES, LOW_WATER_BYTES = 32 * 1024, 8 * 1024
"""The transport's own buffer, above which a write waits."""
MAX_PIPELINED = 16
"""Requests that may wait behind a running one on the same connection."""
MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; the parser itself has no limit."""
HEAD_TIMEOUT_S = 30.0
"""From a head's first byte to its last; a client that trickles it would hold its connection for ever."""
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: application/json\r\n"
)
LINGER_S = 2.0
"""How long the rest of a refused body is read and thrown away, so that the client sees the answer and not a reset."""
NO_SOCKET = (OSError, ValueError, AttributeError)
"""Closed meanwhile (under uvloop its descriptor is then -1, a ValueError), or not a kernel socket."""


class Connection(HttpToolsProtocol):
    """Puts itself into `scope["state"]["connection"]` of each of its requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        if (raw := transport.get_extra_info("socket")) is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.on_lost: Callable[[], None] | None = None
        self._refused = False
        self._in_head = True
        self._head_bytes = 0  # of the head under way, after the read that it began in
        self._heads = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self.app_state: dict[str, Any] = {**self.app_state, "connection": self}
        # a client that connects and says nothing goes the way of an idle keep-alive one
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        in_head, heads = self._in_head, self._heads
        super().data_received(data)
        if not (in_head and self._in_head) or self._heads != heads or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            text = f"headers: larger than {MAX_HEAD_BYTES} bytes; send fewer or shorter ones"
            body = error_json(InvalidRequest(text, reason="headers_too_large", field="headers"))
            self.transport.write(HEAD_TOO_LARGE + b"content-length: %d\r\n\r\n" % len(body) + body)
            self._refused = True  # what still comes is thrown away, so that the client sees the answer and not a reset
            self.loop.call_later(LINGER_S, self.transport.abort)
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.timeout_keep_alive_handler)

    def _end_head(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._heads += 1
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._end_head()
        if self.on_lost is not None:
            self.on_lost()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            self.transport.abort()
        elif self.pipeline:
            self.flow.resume_reading()  # a paused reader would not notice that the client left

    @property
    def is_lost(self) -> bool:
        """Closed, closing, or half-closed by the client (which counts as gone)."""
        return self.transport.is_closing()

    async def writable(self, timeout_s: float) -> bool:
        """Waits until the buffer has room; False when the client took no byte for `timeout_s`."""
        while self.flow.write_paused:
            held = self._unsent_bytes()
            try:
                async with asyncio.timeout(timeout_s):
                    await self.flow.drain()
            except TimeoutError:
                if self._unsent_bytes() >= held:
                    return False
        return True

    def _unsent_bytes(self) -> int:
        """What the client has not acknowledged: here and in the kernel, which frees its buffer in large steps."""
        raw = self.transport.get_extra_info("socket")
        queued = bytearray(4)
        try:
            fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, queued)
        except NO_SOCKET:
            return self.transport.get_write_buffer_size()
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def abort(self) -> None:
        """Drops the connection and what it still holds, here and in the kernel: the client sees a reset."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # or uvicorn reports an unfinished response
        raw = self.transport.get_extra_info("socket")
        with contextlib.suppress(*NO_SOCKET):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def linger(self) -> None:
        """After an answer to a body that was not read: ends the connection unless its next request began."""
        self.loop.call_later(LINGER_S, self._end_linger, self.cycle)

    def _end_linger(self, cycle: Any) -> None:
        if self.cycle is cycle and not self.transport.is_closing():
            self.transport.abort()
