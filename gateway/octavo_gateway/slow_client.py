"""A client that stops reading loses its request, alone: both edges write through this."""

from __future__ import annotations

from collections.abc import Awaitable

from octavo.errors import Cancelled
from octavo.rpc.stall import StallGuard

from octavo_gateway.requests import Generation


async def write_or_cancel(write: Awaitable[object], generation: Generation, guard: StallGuard) -> None:
    """Awaits one write to a client. Cancelled (reason slow_client) when it was stuck for the guard's limit; the request ends."""
    try:
        with guard:
            await write
    except TimeoutError:
        await generation.close("slow_client")
        raise too_slow(guard.limit_s) from None


def too_slow(limit_s: float) -> Cancelled:
    """The end of a request whose client took nothing for so long."""
    return Cancelled(f"the client took nothing for {limit_s:g} s; read faster or ask for less", reason="slow_client")
