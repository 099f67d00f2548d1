"""One generating HTTP request from start to its one end: an answer, an error, or a client that is gone.

A lost connection or a drain cancels the task that serves the request; `Call.run` turns that cancel back into what it
means. So waiting for a token costs no extra task, and no await inside can miss the news.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from octavo.errors import InternalError, OctavoError, Unavailable

from octavo_gateway.http.connection import Connection
from octavo_gateway.http.read import ClientGone
from octavo_gateway.requests import EdgeContext, Gateway, Generation, RequestParams

log = logging.getLogger("octavo.gateway.http")


class SlowClient(Exception):
    """The client took no byte for gateway.slow_client_timeout_s."""


class Calls:
    """The calls under way on this edge."""

    def __init__(self) -> None:
        self.draining = False
        self._live: set[Call] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._live)

    def enter(self, call: Call) -> None:
        """Raises Unavailable while draining."""
        if self.draining:
            raise Unavailable("this gateway is stopping; try another", reason="rejected-draining", retry_after_s=1)
        self._live.add(call)
        self._idle.clear()

    def leave(self, call: Call) -> None:
        self._live.discard(call)
        if not self._live:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Returns once no call is under way."""
        await self._idle.wait()

    def fail_all(self, error: OctavoError) -> None:
        """Ends every call with this error."""
        for call in list(self._live):
            call.stop(error)

    def give_up(self, starting: asyncio.Task[Generation], reason: str) -> None:
        """The client left while its request was being submitted: cancels the submission, or closes what came of it."""
        starting.cancel()
        task = asyncio.get_running_loop().create_task(_close_started(starting, reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close_started(starting: asyncio.Task[Generation], reason: str) -> None:
    await asyncio.wait({starting})
    if starting.cancelled():
        return
    if (error := starting.exception()) is None:
        await starting.result().close(reason)
    elif not isinstance(error, OctavoError):  # a refusal has nobody left to read it
        log.error("a submission failed inside the gateway", exc_info=error)


class Call:
    """The generations of one HTTP request (several for a list of prompts), closed whatever happens."""

    def __init__(self, gateway: Gateway, connection: Connection, calls: Calls) -> None:
        self.gateway = gateway
        self.connection = connection
        self.generations: list[Generation] = []
        self._calls = calls
        self._task: asyncio.Task[object] | None = None
        self._stopped: Exception | None = None

    def stop(self, why: Exception) -> None:
        """Ends the call from outside; the first reason wins."""
        if self._stopped is None and self._task is not None:
            self._stopped = why
            self._task.cancel()

    def _lost(self) -> None:
        self.stop(ClientGone())

    async def start(self, params: Sequence[RequestParams], edge: EdgeContext) -> None:
        """Submits every prompt. Raises OctavoError of the first that is refused."""
        for item in params:
            starting = asyncio.ensure_future(self.gateway.start(item, edge))
            try:
                self.generations.append(await asyncio.shield(starting))
            except asyncio.CancelledError:
                self._calls.give_up(starting, "client_disconnect")
                raise

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does the work under watch. Raises the OctavoError that ended it; a gone or stuck client ends it silently."""
        self._calls.enter(self)
        self._task = asyncio.current_task()
        self.connection.on_lost = self._lost
        try:
            await self._translated(work)
        except ClientGone:
            await self._close("client_disconnect")
            self.connection.abort()  # a half-closed one still has a side to close
        except SlowClient:
            await self._close("slow_client")
            self.connection.abort()
        except OctavoError:
            await self._close("failed")
            raise
        except BaseException:
            await self._close("shutdown")
            raise
        finally:
            self.connection.on_lost = None
            self._calls.leave(self)

    async def _translated(self, work: Callable[[], Awaitable[None]]) -> None:
        if self.connection.is_lost:
            raise ClientGone
        task = self._task
        try:
            await work()
        except BaseException as error:
            if self._stopped is not None:
                if task is not None:
                    task.uncancel()
                raise self._stopped from None
            if isinstance(error, OctavoError | ClientGone | SlowClient) or not isinstance(error, Exception):
                raise
            log.error("a request failed inside the gateway", exc_info=error)
            raise InternalError("the gateway failed on this request; its log says why") from error
        finally:
            self._task, self.connection.on_lost = None, None  # too late for news

    async def _close(self, reason: str) -> None:
        for generation in self.generations:
            await generation.close(reason)
