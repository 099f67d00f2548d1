"""A client that stops reading loses its request, alone: both edges write through this."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from octavo.errors import Cancelled

from octavo_gateway.requests import Generation


async def write_or_cancel(write: Awaitable[object], generation: Generation, timeout_s: float) -> None:
    """Awaits one write to a client. Cancelled (reason slow_client) when it was stuck for `timeout_s`; the request ends."""
    try:
        async with asyncio.timeout(timeout_s):
            await write
    except TimeoutError:
        await generation.close("slow_client")
        message = f"the client took nothing for {timeout_s:g} s; read faster or ask for less"
        raise Cancelled(message, reason="slow_client") from None
