"""How a client's calls are made: all on one session per gateway, or each by itself."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any, Final, Literal

import grpc.aio

from octavo.client.faults import error_from
from octavo.client.session import SESSION_FULL, NoSessions, Session
from octavo.client.targets import Target
from octavo.v1 import inference_pb2 as pb

Kind = Literal["generate", "chat", "attach"]
Request = pb.GenerateRequest | pb.ChatRequest | pb.AttachRequest
Metadata = Sequence[tuple[str, str]]
_METHODS: Final = {"generate": "Generate", "chat": "Chat", "attach": "Attach"}
SILENT_S: Final = 60.0
"""For how long a gateway whose mark did not come in time is asked for no session."""


class Calls:
    """`multiplex` False: each call is a stream of its own, as it is with a gateway that knows no Session."""

    def __init__(self, api_key: str, *, multiplex: bool) -> None:
        self._metadata = [("authorization", f"Bearer {api_key}")] if api_key else []
        self._multiplex = multiplex
        self._sessions: dict[str, Session] = {}
        self._without: dict[str, float] = {}  # address -> until when, on the monotonic clock

    @property
    def multiplexed(self) -> bool:
        """Whether calls share a stream now."""
        return any(session.state == "open" for session in self._sessions.values())

    def make(
        self,
        target: Target,
        kind: Kind,
        request: Request,
        timeout_s: float,
        metadata: Metadata,
        *,
        alone: bool = False,
    ) -> Any:
        """A call to iterate and to cancel; on a session it may raise NoSessions, and is then to be made again. `alone`: on none."""
        session = None if alone else self._session(target, opening=True)
        if session is None:
            return getattr(target.stub, _METHODS[kind])(request, timeout=timeout_s, metadata=metadata)
        return session.open(kind, request, timeout_s, dict(metadata).get("traceparent", ""))

    async def ask(
        self,
        target: Target,
        kind: Literal["cancel", "pause"],
        request: pb.CancelRequest | pb.PauseRequest,
        timeout_s: float,
        metadata: Metadata,
    ) -> Any:
        """The answer: on the open session, where the gateway that has the request hears it, else by itself. Raises AioRpcError."""
        session = self._session(target, opening=False)
        if session is not None:
            call = session.open(kind, request, timeout_s, dict(metadata).get("traceparent", ""))
            try:
                async for event in call:
                    return event.cancelled if kind == "cancel" else event.paused  # type: ignore[union-attr]
            except grpc.aio.AioRpcError as error:
                if error_from(error).reason != SESSION_FULL:
                    raise
            except NoSessions:
                pass  # as below
            finally:
                call.cancel()  # no-op once it has ended
        method = target.stub.Cancel if kind == "cancel" else target.stub.Pause
        return await method(request, timeout=timeout_s, metadata=metadata)

    def ack(self, target: Target, request: pb.AckRequest) -> bool:
        """Sends it along on an open session; False: there is none."""
        session = self._session(target, opening=False)
        if session is not None:
            session.ack(request)
        return session is not None

    async def close(self) -> None:
        """Ends the sessions; what runs on them is left."""
        opened, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*(session.close() for session in opened))

    def _session(self, target: Target, *, opening: bool) -> Session | None:
        session = self._sessions.get(target.address)
        if session is not None and session.state != "open":
            del self._sessions[target.address]
            if session.state != "over":
                self._without[target.address] = time.monotonic() + SILENT_S if session.state == "silent" else math.inf
            session = None
        without = self._without.get(target.address, 0.0) > time.monotonic()
        if session is None and opening and self._multiplex and not without:
            session = self._sessions[target.address] = Session(target, self._metadata)
        return session
