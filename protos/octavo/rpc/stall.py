"""StallGuard: a limit on how long one await may take, for loops that await thousands of times a second."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class StallGuard:
    """`with guard: await ...` raises TimeoutError when that takes longer than `limit_s`; one task uses it, again and again.

    asyncio.timeout arms and cancels a timer per use. Here a timer once armed stays, and looks when it fires whether what it
    guards has ended meanwhile: entering and leaving are a few assignments.
    """

    __slots__ = ("_began_s", "_cancelling", "_expired", "_loop", "_owner", "_task", "_timer", "limit_s")

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._owner: asyncio.Task[object] | None = None  # the task that uses it
        self._task: asyncio.Task[object] | None = None  # ... while it does
        self._timer: asyncio.TimerHandle | None = None
        self._began_s = 0.0
        self._cancelling = 0
        self._expired = False

    def __enter__(self) -> Self:
        task = self._owner
        if task is None:
            task = self._owner = asyncio.current_task()
        if task is None:
            raise RuntimeError("a StallGuard guards awaits of a task")
        self._task, self._cancelling, self._began_s = task, task.cancelling(), self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self.limit_s, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if not self._expired or task is None:
            return
        self._expired = False
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError(f"stuck for {self.limit_s:g} s") from error

    def close(self) -> None:
        """Drops the timer; the guard may be used again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return  # the next use arms it again
        left_s = self._began_s + self.limit_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
            return
        self._expired = True
        self._task.cancel()
