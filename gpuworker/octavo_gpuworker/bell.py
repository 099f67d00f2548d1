"""Bell: how the step thread, or the kernels that it has started, wake the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable


class Bell:
    """Whoever writes to the eventfd `fd` rings it, also code that holds no interpreter; `on_ring` is called on the loop.

    Rings that come before the loop has heard the first are one. Where the system has no eventfd, `fd` is 0.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_ring: Callable[[], None]) -> None:
        self._loop = loop
        self._on_ring = on_ring
        self._heard = threading.Event()
        self._heard.set()  # nobody waits
        self.fd = 0
        if hasattr(os, "eventfd"):
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            loop.add_reader(self.fd, self._rung)

    def ring(self) -> None:
        """From any thread."""
        if self.fd:
            os.eventfd_write(self.fd, 1)
        else:
            self._loop.call_soon_threadsafe(self._hear)

    def ring_and_wait(self, limit_s: float) -> None:
        """As `ring`, from another thread than the loop's; returns once who was woken by `on_ring` has had a turn, or after this time.

        Both threads hold the interpreter by turns: who goes on beside the loop delays it, and is delayed by it for as long.
        """
        self._heard.clear()
        self.ring()
        self._heard.wait(limit_s)
        self._heard.set()

    def close(self) -> None:
        """On the loop, once nobody rings any more. May be called twice."""
        if self.fd:
            self._loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = 0

    def _rung(self) -> None:
        os.eventfd_read(self.fd)
        self._hear()

    def _hear(self) -> None:
        self._on_ring()
        if not self._heard.is_set():
            self._loop.call_soon(self._heard.set)  # behind those that `on_ring` woke
