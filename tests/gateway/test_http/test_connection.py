"""The connection itself: heads that are too large or never end."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from octavo_gateway.http import connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAIN = "/v1/completions"


async def dial(edge: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", edge.port)


@pytest.mark.parametrize("many", [False, True])
async def test_a_head_without_end_is_refused(edge: Any, many: bool) -> None:
    reader, writer = await dial(edge)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX: ")
    sent = 0
    try:
        while sent < 8 * connection.MAX_HEAD_BYTES:
            writer.write(b"X: y\r\n" * 500 if many else b"x" * 4096)
            await writer.drain()
            sent += 4096
            await asyncio.sleep(0.001)
    except ConnectionError:
        pass
    answer = await reader.read(1000)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["param"] == "headers"
    writer.close()
    assert (await edge.http.get("/health")).status_code == 200


async def test_large_heads_below_the_limit_and_large_bodies_pass(edge: Any, make: Any) -> None:
    for _ in range(3):  # on one connection
        body = {"prompt": "x" * (make.max_body_bytes - 100)}
        headers = {"x-long": "y" * (connection.MAX_HEAD_BYTES - 1000)}
        assert (await edge.http.post(PLAIN, json=body, headers=headers)).status_code == 200


async def test_many_small_requests_on_one_connection_are_no_large_head(edge: Any) -> None:
    reader, writer = await dial(edge)
    request = b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 1000 + b"\r\n\r\n"
    for _ in range(3 * connection.MAX_HEAD_BYTES // len(request)):
        writer.write(request)
        answer = await reader.readuntil(b'{"status":"ok"}')
        assert answer.startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_head_that_trickles_is_cut_off(edge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)
    reader, writer = await dial(edge)
    writer.write(b"GET /health HTTP/1.1\r\n")
    ended = asyncio.ensure_future(reader.read())
    async with asyncio.timeout(10):
        while not ended.done():
            writer.write(b"X: y\r\n")
            await asyncio.wait({ended}, timeout=0.02)
    assert ended.exception() is not None or ended.result() == b""
    writer.close()
    # a head that came whole has no such end
    assert (await edge.http.get("/health")).status_code == 200
    await asyncio.sleep(0.3)
    assert (await edge.http.get("/health")).status_code == 200


class ClosedUnderUvloop:
    """A socket whose descriptor is gone: uvloop's stand-in raises ValueError and not OSError."""

    def setsockopt(self, *_: object) -> None:
        raise ValueError("negative file descriptor")

    def fileno(self) -> int:
        return -1


async def test_a_connection_that_is_closed_already_can_still_be_dropped() -> None:
    aborted: list[bool] = []
    transport = SimpleNamespace(
        get_extra_info=lambda _name: ClosedUnderUvloop(),
        abort=lambda: aborted.append(True),
        get_write_buffer_size=lambda: 7,
    )
    closed = SimpleNamespace(transport=transport, cycle=None)
    connection.Connection.abort(closed)  # type: ignore[arg-type]
    assert aborted == [True]
    assert connection.Connection._unsent_bytes(closed) == 7  # type: ignore[arg-type]
