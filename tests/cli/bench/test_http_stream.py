"""The generator's HTTP client: connections are kept, one per request under way, and one that was left is not used again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from octavo_cli.bench.http_stream import ConnectionBroke, HttpPool

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Server:
    """Answers each request with two chunks, the second once `go` is set; counts connections and keeps the heads."""

    def __init__(self) -> None:
        self.connections = 0
        self.heads: list[bytes] = []
        self.ended = 0
        self.go = asyncio.Event()
        self.go.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[HttpPool]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        pool = HttpPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", {"authorization": "Bearer k"})
        try:
            yield pool
        finally:
            await pool.close()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length")), 0)
                self.heads.append(head + await reader.readexactly(length))
                writer.write(CHUNKED + b"1\r\na\r\n")
                await self.go.wait()
                writer.write(b"1\r\nb\r\n0\r\n\r\n")
                await writer.drain()
        self.ended += 1
        writer.close()


async def whole(pool: HttpPool) -> bytes:
    async with pool.post("/v1/completions", {"prompt": "é"}) as exchange:
        assert exchange.status == 200
        return await exchange.read_all(100)


async def test_one_after_the_other_takes_one_connection_and_three_at_once_take_three() -> None:
    server = Server()
    async with server.running() as pool:
        assert [await whole(pool) for _ in range(3)] == [b"ab"] * 3
        assert server.connections == 1
        server.go.clear()
        asked = [asyncio.create_task(whole(pool)) for _ in range(3)]
        while len(server.heads) < 6:
            await asyncio.sleep(0.005)
        assert server.connections == 3
        server.go.set()
        assert await asyncio.gather(*asked) == [b"ab"] * 3
        assert await whole(pool) == b"ab" and server.connections == 3
    head, _, body = server.heads[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n") and b"authorization: Bearer k" in head
    assert body == '{"prompt":"é"}'.encode()


async def test_leaving_in_the_middle_closes_the_connection() -> None:
    server = Server()
    server.go.clear()
    async with server.running() as pool:
        async with pool.get("/v1/models") as exchange:
            assert await exchange.read() == b"a"
        server.go.set()
        assert await whole(pool) == b"ab" and server.connections == 2
        while not server.ended:
            await asyncio.sleep(0.005)


async def test_silence_ends_the_wait() -> None:
    server = Server()
    server.go.clear()
    async with server.running() as pool:
        with pytest.raises(TimeoutError, match="no byte came"):
            async with pool.get("/v1/models", timeout_s=0.05) as exchange:
                while await exchange.read():
                    pass


async def test_nobody_there() -> None:
    with pytest.raises(ConnectionBroke):
        async with HttpPool("http://127.0.0.1:1/v1").get("/v1/models"):
            pass
