"""A server that speaks OpenAI's streaming form and computes nothing; it can stall, refuse, cut and lie."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class NullServer:
    """Answers /v1/models, /v1/completions and /v1/chat/completions, one chunk per token."""

    stall: tuple[float, float] | None = None
    """Seconds since the first request between which nothing is sent at all."""
    gap_s: float = 0.0
    slow_after: int = 0
    """Requests after this many take a third of a second; 0: none."""
    counts_tokens: bool = True
    refuse_share: int = 0
    """Every n-th request gets a 429; 0: none."""
    cut_after: int = 0
    """The connection closes after this many tokens, without [DONE]; 0: never."""
    error_after: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0
    _began_s: float = 0.0
    _calls: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[NullServer]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for call in self._calls:
                call.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.create_task(self._serve(reader, writer))
        self._calls.add(call)
        call.add_done_callback(lambda _done: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0
                )
                body = json.loads(await reader.readexactly(length)) if length else {}
                if not await self._answer(head.split()[1], body, writer):
                    writer.close()
                    return

    async def _answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """False when the connection must close."""
        if path.endswith("/models"):
            listed = {"object": "list", "data": [{"id": "null", "max_model_len": 8192, "owned_by": "nobody"}]}
            return _whole(writer, 200, listed)
        self.bodies.append(body)
        loop = asyncio.get_running_loop()
        self._began_s = self._began_s or loop.time()
        if self.refuse_share and len(self.bodies) % self.refuse_share == 0:
            return _whole(writer, 429, {"error": {"message": "too many", "type": "rate_limit_error"}})
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(1, body["max_tokens"] + 1):
            await self._wait()
            if self.cut_after and number > self.cut_after:
                return False
            if self.error_after and number > self.error_after:
                _event(writer, json.dumps({"error": {"message": "the worker is gone"}}))
                return False
            _event(writer, json.dumps(self._chunk(path, body, number)))
            await writer.drain()
        if self.counts_tokens:
            _event(writer, json.dumps({"choices": [], "usage": _usage(body, body["max_tokens"])}))
        _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        if self.stall is not None:
            begin, end = (self._began_s + at for at in self.stall)
            if begin <= loop.time() < end:
                await asyncio.sleep(end - loop.time())
        if self.slow_after and len(self.bodies) > self.slow_after:
            await asyncio.sleep(0.33)
        if self.gap_s:
            await asyncio.sleep(self.gap_s)

    def _chunk(self, path: str, body: dict[str, Any], number: int) -> dict[str, Any]:
        text = f"w{number}\u2028 "
        choice = {"index": 0, "delta": {"content": text}} if "chat" in path else {"index": 0, "text": text}
        return {"choices": [choice], **({"usage": _usage(body, number)} if self.counts_tokens else {})}


def _usage(body: dict[str, Any], tokens: int) -> dict[str, Any]:
    prompt = len(body.get("prompt", ())) or 7
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 0}}


def _event(writer: asyncio.StreamWriter, data: str) -> None:
    block = f"data: {data}\n\n".encode()
    writer.write(f"{len(block):x}\r\n".encode() + block + b"\r\n")


def _whole(writer: asyncio.StreamWriter, status: int, content: dict[str, Any]) -> bool:
    body = json.dumps(content).encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    return True
