"""Flag: an asyncio.Event for one task that waits, thousands of times a second."""

from __future__ import annotations

import asyncio


class Flag:
    """Set, cleared and looked at by anybody on the loop; one task at a time waits for it."""

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        """Wakes who waits."""
        if not self._set:
            self._set = True
            waiter = self._waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Returns once it is set. Raises RuntimeError when another task waits already."""
        if self._set:
            return
        if self._waiter is not None:
            raise RuntimeError("a Flag is waited for by one task")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
