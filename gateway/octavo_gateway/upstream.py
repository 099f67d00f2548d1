"""The gateway's one stream to the scheduler: all requests multiplexed, reconnecting, resubmitting.

Nothing waits for a write: what must be sent is either derived from live requests when a stream opens, or put into a
queue that one writer empties. The queue holds at most a submit, a cancel and n stops per live request.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio
from octavo.errors import Overloaded, Unavailable
from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc

from octavo_gateway.admission import AdmittedRequest, Limits
from octavo_gateway.choice import TokenGap
from octavo_gateway.live import LiveRequest
from octavo_gateway.requests import CancelOutcome
from octavo_gateway.runs_wire import RunTable
from octavo_gateway.scheduler_wire import apply_event, limits_from, read_cost, submit_message

HEARTBEAT_S: Final = 1.0
SILENCE_S: Final = 10.0
"""A scheduler that sent heartbeats and then nothing for this long is gone."""
FIRST_BACKOFF_S: Final = 0.05
LAST_BACKOFF_S: Final = 1.0
PATIENCE_S: Final = 60.0
"""How long live requests wait for a scheduler to come back."""
MAX_PENDING: Final = 20_000
MANY_ORDERS: Final = 64
MANY_BYTES: Final = 1 << 20
"""What one message holds at most: it is read in one piece, and another stream's messages wait for that."""


def keyed_otherwise(admitted: AdmittedRequest, limits: Limits) -> bool:
    """Its block keys are not those that the cell uses now."""
    generation = limits.generations.get(admitted.tenant, 0)
    return (admitted.root_key, admitted.generation) != (limits.root_key, generation)


Call = grpc.aio.StreamStreamCall[scheduler_pb2.AttachGatewayRequest, scheduler_pb2.AttachGatewayResponse]
Rekey = Callable[[AdmittedRequest, Limits], AdmittedRequest]


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    gateway_id: str
    connect_grace_s: float = 10.0
    max_stop_strings: int = 16
    max_logprobs: int = 20
    patience_s: float = PATIENCE_S


class Upstream:
    """Implements `Orders` for live requests. `run` is a critical task: it returns only when cancelled."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        settings: UpstreamSettings,
        rekey: Rekey,
        clock: Callable[[], float],
        log: logging.Logger,
        on_ready: Callable[[bool], None] = lambda ready: None,
        on_load: Callable[[scheduler_pb2.CellLoad], None] = lambda load: None,
    ) -> None:
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)  # type: ignore[no-untyped-call]
        self._idle = asyncio.Event()
        self._idle.set()
        self._settings = settings
        self._rekey = rekey
        self._clock = clock
        self._log = log
        self._on_ready = on_ready
        self._on_load = on_load
        self._boot_id = uuid.uuid4().hex
        self._live: dict[str, LiveRequest] = {}
        self._attaches: dict[str, scheduler_pb2.AttachOrder] = {}
        self._cancels: dict[str, list[asyncio.Future[CancelOutcome]]] = {}
        self._pauses: dict[str, list[asyncio.Future[str]]] = {}
        self._pending: deque[scheduler_pb2.AttachGatewayRequest] = deque()
        self._takes_many = False
        self._runs = RunTable()
        self._writable = asyncio.Event()
        self._changed = asyncio.Event()
        self._connected = False
        self._was_ready = False
        self._worker_ready = False
        self._lost_at: float | None = None
        self._heard = 0.0
        self._hears_heartbeats = False
        self.limits: Limits | None = None
        self.connections = 0

    @property
    def ready(self) -> bool:
        """The scheduler answers, and a worker has passed its warm-up inference."""
        return self._connected and self._worker_ready

    @property
    def live_count(self) -> int:
        """Requests under way."""
        return len(self._live)

    def live_requests(self) -> list[LiveRequest]:
        """Requests under way."""
        return list(self._live.values())

    async def wait_ready(self) -> Limits:
        """Limits in force. Waits a short grace for a scheduler or worker that is coming back; then Unavailable."""
        if not self.ready and self._was_ready:
            deadline = self._clock() + self._settings.connect_grace_s
            while not self.ready and (left := deadline - self._clock()) > 0:
                self._changed.clear()
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    break
        if not self._connected:
            raise Unavailable(
                "the scheduler does not answer; try again", reason="rejected-not-ready", retry_after_s=1.0
            )
        if not self._worker_ready or self.limits is None:
            raise Unavailable(
                "no worker is ready; try again, or see `octavo status`", reason="rejected-not-ready", retry_after_s=1.0
            )
        return self.limits

    def submit(self, live: LiveRequest) -> None:
        """Registers the request and sends it; it is sent again by itself whenever the stream breaks."""
        if len(self._pending) > MAX_PENDING:
            raise Overloaded("the scheduler takes no requests at the moment; try again", retry_after_s=1.0)
        self._register(live)
        self._send_submit(live)

    def attach(self, live: LiveRequest, idempotency_key: str) -> None:
        """Registers a request whose state the scheduler holds, and asks for it by its name or key."""
        self._register(live)
        order = scheduler_pb2.AttachOrder(request_id=live.wire_id, idempotency_key=idempotency_key, tenant=live.tenant)
        self._attaches[live.wire_id] = order
        self._send(scheduler_pb2.AttachGatewayRequest(attach=order))

    def _register(self, live: LiveRequest) -> None:
        self._live[live.wire_id] = live
        self._idle.clear()

    async def wait_idle(self) -> None:
        """Returns once no request is under way."""
        await self._idle.wait()

    def stop_choice(self, wire_id: str, index: int, at_len: int) -> None:
        """A stop string ended a choice."""
        order = scheduler_pb2.StopChoice(request_id=wire_id, index=index, at_len=at_len)
        self._send(scheduler_pb2.AttachGatewayRequest(stop_choice=order))

    def cancel(self, wire_id: str, tenant: str, reason: str) -> None:
        """Asks the scheduler to end a request of this tenant."""
        order = scheduler_pb2.CancelOrder(request_id=wire_id, reason=reason, tenant=tenant)
        self._send(scheduler_pb2.AttachGatewayRequest(cancel=order))

    def forget(self, wire_id: str) -> None:
        """The request has ended; later events of it are dropped."""
        self._live.pop(wire_id, None)
        self._attaches.pop(wire_id, None)
        self._runs.forget(wire_id)
        if not self._live:
            self._idle.set()

    async def cancel_and_wait(self, wire_id: str, tenant: str, reason: str) -> CancelOutcome:
        """Cancels any request of this tenant and cell and waits until its last block is back. Unavailable when the stream breaks."""
        if not self._connected:
            await self.wait_ready()
        answer: asyncio.Future[CancelOutcome] = asyncio.get_running_loop().create_future()
        waiting = self._cancels.setdefault(wire_id, [])
        waiting.append(answer)
        live = self._live.get(wire_id)
        if live is not None and not live.cancel_reason:
            live.cancel(reason)
        else:
            self.cancel(wire_id, tenant, reason)
        try:
            return await answer
        finally:
            if answer in waiting:
                waiting.remove(answer)
            if not waiting and self._cancels.get(wire_id) is waiting:
                del self._cancels[wire_id]

    async def pause_and_wait(self, wire_id: str, tenant: str, tool: str, expected_ms: int) -> str:
        """Tells that a client pauses after a turn; what is done about it. Unavailable when the stream breaks."""
        if not self._connected:
            await self.wait_ready()
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pauses.setdefault(wire_id, []).append(answer)
        self.pause(wire_id, tenant, tool, expected_ms)
        try:
            return await answer
        finally:
            waiting = self._pauses.get(wire_id, [])
            if answer in waiting:
                waiting.remove(answer)
            if not waiting:
                self._pauses.pop(wire_id, None)

    def pause(self, wire_id: str, tenant: str, tool: str, expected_ms: int = 0) -> None:
        """Tells that a client pauses after a turn; nobody waits for what is done about it."""
        order = scheduler_pb2.PauseOrder(request_id=wire_id, tool=tool, expected_us=expected_ms * 1000, tenant=tenant)
        self._send(scheduler_pb2.AttachGatewayRequest(pause=order))

    def _send(self, message: scheduler_pb2.AttachGatewayRequest) -> None:
        # While disconnected nothing is queued: a new stream begins with what the live requests need.
        if self._connected:
            self._pending.append(message)
            self._writable.set()

    def _send_submit(self, live: LiveRequest) -> None:
        if live.admitted is not None:
            submit = submit_message(live, live.admitted, self._clock())
            self._send(scheduler_pb2.AttachGatewayRequest(submit=submit))

    async def run(self) -> None:
        """Keeps one stream open."""
        backoff = FIRST_BACKOFF_S
        while True:
            try:
                await self._one_connection()
            except grpc.aio.AioRpcError as error:
                self._disconnected(f"{error.code().name}: {error.details()}")
            except (TokenGap, ValueError) as error:
                self._disconnected(f"its events do not fit together: {error}")
            except (ConnectionError, asyncio.InvalidStateError) as error:  # a write after the end raises the latter
                self._disconnected(str(error))
            if self._heard and self._clock() - self._heard < 2 * LAST_BACKOFF_S:
                backoff = FIRST_BACKOFF_S
            self._give_up_if_too_late()
            await asyncio.sleep(backoff * (1 + 0.2 * random.random()))
            backoff = min(2 * backoff, LAST_BACKOFF_S)

    async def _one_connection(self) -> None:
        call = self._stub.AttachGateway()
        tasks: list[asyncio.Task[None]] = []
        try:
            hello = scheduler_pb2.GatewayHello(
                gateway_id=self._settings.gateway_id, boot_id=self._boot_id, takes_runs=True
            )
            await call.write(scheduler_pb2.AttachGatewayRequest(hello=hello))
            first = await call.read()
            if not isinstance(first, scheduler_pb2.AttachGatewayResponse) or first.WhichOneof("message") != "welcome":
                raise ConnectionError("the scheduler did not begin with a Welcome")
            self._connect(first.welcome)
            for work in (self._read(call), self._write(call), self._beat()):
                tasks.append(asyncio.create_task(work))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _connect(self, welcome: scheduler_pb2.GatewayWelcome) -> None:
        self._connected, self._lost_at, self._heard, self._hears_heartbeats = True, None, self._clock(), False
        self.connections += 1
        self._pending.clear()
        self._runs.clear()
        self._welcome(welcome)
        self._log.info("connected to scheduler %s", welcome.scheduler_boot_id)
        for live in list(self._live.values()):
            self._resume(live)

    def _resume(self, live: LiveRequest) -> None:
        """What a live request needs on a new stream."""
        if live.cancel_reason:
            self.cancel(live.wire_id, live.tenant, live.cancel_reason)
        elif live.admitted is None:
            self._send(scheduler_pb2.AttachGatewayRequest(attach=self._attaches[live.wire_id]))
        else:
            if self.limits is not None and keyed_otherwise(live.admitted, self.limits):
                live.admitted = self._rekey(live.admitted, self.limits)
            live.attempt += 1
            live.resubmitted = self._clock()
            self._send_submit(live)

    def _welcome(self, welcome: scheduler_pb2.GatewayWelcome) -> None:
        if welcome.max_model_len:
            self.limits = limits_from(welcome, self._settings.max_stop_strings, self._settings.max_logprobs)
        self._takes_many = welcome.takes_many
        self._worker_ready = welcome.ready
        self._was_ready = self._was_ready or welcome.ready
        self._changed.set()
        self._on_ready(self.ready)

    def _disconnected(self, why: str) -> None:
        if self._lost_at is None:
            self._lost_at = self._clock()
            self._log.warning("scheduler stream lost, %d requests wait for the next: %s", len(self._live), why)
        self._connected = False
        self._pending.clear()
        self._changed.set()
        self._on_ready(False)
        gone = Unavailable("the scheduler's stream broke; ask again", reason="scheduler-lost", retry_after_s=1.0)
        waited = [answer for waiting in self._cancels.values() for answer in waiting]
        pausing = [answer for waiting in self._pauses.values() for answer in waiting]
        unanswered: list[asyncio.Future[Any]] = [*waited, *pausing]
        for answer in unanswered:
            if not answer.done():
                answer.set_exception(gone)
        self._cancels.clear()
        self._pauses.clear()

    def _give_up_if_too_late(self) -> None:
        if self._lost_at is None or self._clock() - self._lost_at < self._settings.patience_s:
            return
        for live in list(self._live.values()):
            live.fail(Unavailable("the scheduler did not come back", reason="scheduler-lost", retry_after_s=5.0))

    async def _read(self, call: Call) -> None:
        while True:
            message = await call.read()
            if not isinstance(message, scheduler_pb2.AttachGatewayResponse):  # grpc.aio.EOF
                raise ConnectionError("the scheduler closed the stream")
            self._heard = self._clock()
            kind = message.WhichOneof("message")
            if kind == "events":
                events = message.events
                if events.HasField("runs"):
                    self._runs.apply(events.runs, self._heard)
                for event in events.events:
                    self._dispatch(event)
            elif kind == "welcome":
                self._welcome(message.welcome)
            elif kind == "heartbeat":
                self._hears_heartbeats = True
                if message.heartbeat.HasField("load"):
                    self._on_load(message.heartbeat.load)

    def _dispatch(self, event: scheduler_pb2.RequestEvent) -> None:
        kind = event.WhichOneof("event")
        live = self._live.get(event.request_id)
        if kind == "cancel_result":
            self._cancel_done(event, live)
        elif kind == "pause_result":
            for asked in self._pauses.pop(event.request_id, []):
                if not asked.done():
                    asked.set_result(event.pause_result.decision)
        elif live is not None:
            if kind == "accepted":
                self._runs.name(live, event.accepted.handle)
            apply_event(live, event, kind, self._heard)

    def _cancel_done(self, event: scheduler_pb2.RequestEvent, live: LiveRequest | None) -> None:
        result = event.cancel_result
        outcome = CancelOutcome(
            result.found,
            result.outcome,
            result.last_step,
            result.blocks_freed,
            result.latency_us,
            read_cost(result.cost),
        )
        for answer in self._cancels.pop(event.request_id, []):
            if not answer.done():
                answer.set_result(outcome)
        if live is not None:
            live.on_cancel_result()

    async def _write(self, call: Call) -> None:
        while True:
            while self._pending:
                await call.write(self._next_message())
            self._writable.clear()
            await self._writable.wait()

    def _next_message(self) -> scheduler_pb2.AttachGatewayRequest:
        """What has waited for the stream, as one message where the scheduler reads that; it counts as written now."""
        first = self._taken()
        if not self._pending or not self._takes_many:
            return first
        orders, size = [first], first.ByteSize()
        while self._pending and len(orders) < MANY_ORDERS and (size := size + self._pending[0].ByteSize()) < MANY_BYTES:
            orders.append(self._taken())
        if len(orders) == 1:  # a large one: what is wrapped around it could be what gRPC does not send any more
            return first
        return scheduler_pb2.AttachGatewayRequest(many=scheduler_pb2.GatewayOrders(orders=orders))

    def _taken(self) -> scheduler_pb2.AttachGatewayRequest:
        message = self._pending.popleft()
        if message.HasField("submit") and (live := self._live.get(message.submit.request_id)) is not None:
            live.on_sent()
        return message

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self._hears_heartbeats and self._clock() - self._heard > SILENCE_S:
                raise ConnectionError(f"the scheduler was silent for {SILENCE_S:.0f} s")
            if not self._pending:
                self._send(scheduler_pb2.AttachGatewayRequest(heartbeat=scheduler_pb2.Heartbeat()))
