"""Reading a request body within limits of size and patience."""

from __future__ import annotations

import asyncio

from octavo.errors import InvalidRequest
from starlette.datastructures import Headers
from starlette.types import Receive

from octavo_gateway.http.errors import BodyTimeout, BodyTooLarge


class ClientGone(Exception):
    """The client closed its side; nobody is left to answer."""


async def read_json(headers: Headers, receive: Receive, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body, at most `max_bytes`, no pause in it longer than `timeout_s`.

    A page of another origin can post anything but JSON without asking, so the content type must say JSON.
    Raises InvalidRequest, BodyTooLarge (without reading on), BodyTimeout, ClientGone.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise InvalidRequest(
            f"Content-Type: {kind or 'missing'}; send `Content-Type: application/json`", field="Content-Type"
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise InvalidRequest("Content-Encoding: compressed bodies are not built yet", field="Content-Encoding")
    if int(headers.get("content-length", "0") or "0") > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                message = await receive()
        except TimeoutError:
            raise BodyTimeout(f"body: no byte came for {timeout_s:g} s; send it whole", field="body") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"body: larger than {max_bytes} bytes; shorten it or raise gateway.max_body_bytes", field="body"
    )
