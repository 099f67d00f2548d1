"""One poll of the scheduler for all viewers, at most four a second, and none while nobody looks.

A viewer holds a number, not a queue: a slow one skips moments. How many there may be is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from octavo.errors import Overloaded, Unavailable

from octavo_gateway.live import LiveRequest
from octavo_gateway.page.latency import LatencyWindow
from octavo_gateway.page.view import Moment, show, with_gateway_part
from octavo_gateway.requests import Audience
from octavo_gateway.tenants import wire_id

INTERVAL_S: Final = 0.25
MAX_VIEWERS: Final = 32


class Cell(Protocol):
    """The scheduler, as cell_wire reads it."""

    async def live(self) -> dict[str, Any]: ...

    async def timeline(self, request_id: str, tenant: str) -> dict[str, Any]: ...


class FeedClosed(Exception):
    """The gateway stops."""


class LiveFeed:
    """What the page and `octavo top` are sent."""

    def __init__(
        self,
        cell: Cell,
        window: LatencyWindow,
        running: Callable[[], Iterable[LiveRequest]],
        clock: Callable[[], float],
        model: str,
        log: logging.Logger,
        interval_s: float = INTERVAL_S,
        max_viewers: int = MAX_VIEWERS,
        closed: Callable[[], str] = lambda: "",
    ) -> None:
        """`closed` says why this gateway takes no request although the cell is ready; empty: it does."""
        self._cell = cell
        self._window = window
        self._running = running
        self._clock = clock
        self._model = model
        self._log = log
        self._interval_s = interval_s
        self._max_viewers = max_viewers
        self._why_closed = closed
        self._moment = Moment()
        self._number = 0
        self._ticked = asyncio.Event()
        self._shown: dict[Audience, dict[str, Any]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._closed = False
        self._looking: asyncio.Task[Moment] | None = None
        self._by_tenant: Counter[str] = Counter()  # bounded: tenants are those of the manifest
        self.viewers = 0

    @contextlib.contextmanager
    def viewer(self, audience: Audience) -> Iterator[None]:
        """For as long as somebody looks. Raises Overloaded when too many do, Unavailable once the gateway stops.

        A tenant may hold a quarter of the places: it cannot keep an admin or another tenant from looking.
        """
        if self._closed:
            raise Unavailable("this gateway is stopping; try another", reason="rejected-draining", retry_after_s=1.0)
        if self.viewers >= self._max_viewers:
            raise Overloaded(
                f"{self.viewers} viewers look already; close one, or read /metrics", reason="too-many-viewers",
                retry_after_s=5.0,
            )  # fmt: skip
        own = 0 if audience.sees_all else self._by_tenant[audience.tenant]
        if own >= max(1, self._max_viewers // 4):
            raise Overloaded(
                f"{own} viewers of tenant {audience.tenant} look already; close one", reason="too-many-viewers",
                retry_after_s=5.0,
            )  # fmt: skip
        self.viewers += 1
        self._by_tenant[audience.tenant] += 1
        if self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._poll(), name="live-feed")
        try:
            yield
        finally:
            self.viewers -= 1
            self._by_tenant[audience.tenant] -= 1
            if not self.viewers and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    async def _poll(self) -> None:
        while True:
            self._publish(await self._look())
            await asyncio.sleep(self._interval_s)

    async def _look(self) -> Moment:
        try:
            cell, away = await self._cell.live(), self._why_closed()
        except Unavailable as error:
            cell, away = {}, error.message
        now = self._clock()
        return Moment(cell, tuple(self._window.measure(live, now) for live in self._running() if live.admitted), away)

    def _publish(self, moment: Moment) -> None:
        self._moment = moment
        self._number += 1
        self._shown.clear()
        ticked, self._ticked = self._ticked, asyncio.Event()
        ticked.set()

    async def next(self, seen: int, audience: Audience) -> tuple[int, dict[str, Any]]:
        """The first moment after number `seen`, as this audience may see it. Raises FeedClosed."""
        while self._number <= seen and not self._closed:
            await self._ticked.wait()
        if self._closed:
            raise FeedClosed
        return self._number, self._show(audience)

    def _show(self, audience: Audience) -> dict[str, Any]:
        if audience not in self._shown:
            self._shown[audience] = show(self._moment, self._window, audience, self._model)
        return self._shown[audience]

    async def once(self, audience: Audience) -> dict[str, Any]:
        """This moment; those who ask at once share one look at the scheduler, however many they are."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="live-look")
        return show(await asyncio.shield(self._looking), self._window, audience, self._model)

    async def timeline(self, request_id: str, tenant: str) -> dict[str, Any]:
        """One request's waterfall. Raises UnknownRequest, Unavailable."""
        timeline = await self._cell.timeline(request_id, tenant)
        now, name = self._clock(), wire_id(tenant, request_id)
        here = [self._window.measure(live, now) for live in self._running() if live.wire_id == name]
        ended = self._window.find(name)
        return with_gateway_part(timeline, here or ([ended] if ended is not None else []))

    def close(self) -> None:
        """Ends every viewer's stream."""
        self._closed = True
        self._ticked.set()
