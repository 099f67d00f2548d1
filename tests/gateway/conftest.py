"""A scripted scheduler over real grpc.aio, and a whole gateway in front of it: what the gateway's tests share."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
import pytest
from octavo.artifacts import chat_template, resolve_model
from octavo.packing import pack_u32
from octavo.rpc.channels import open_channel
from octavo.v1 import inference_pb2 as pb
from octavo.v1 import inference_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from octavo_gateway.admission import Admission
from octavo_gateway.chat import ChatRenderer
from octavo_gateway.gateway import ModelFacts, OctavoGateway
from octavo_gateway.metrics import GatewayMetrics
from octavo_gateway.service import InferenceServicer, register
from octavo_gateway.tenants import TenantDirectory
from octavo_gateway.tokenizer_files import load_tokenizer
from octavo_gateway.upstream import Upstream, UpstreamSettings
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

EVENT_TIMEOUT_S = 20.0


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Says nothing by itself but Welcome. Tests take what the gateway sent with `next_*` and answer with the verbs."""

    def __init__(self) -> None:
        self.welcome = scheduler_pb2.GatewayWelcome(
            scheduler_boot_id="boot", ready=True, root_key=b"r" * 32, block_tokens=16, max_model_len=256,
            max_choices=8, max_request_blocks=64, model="smollm2",
        )  # fmt: skip
        self.received: dict[str, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)
        self.connections = self.messages = 0
        self._outbox: asyncio.Queue[scheduler_pb2.AttachGatewayResponse | None] = asyncio.Queue()
        self._server = grpc.aio.server()
        self.address = ""

    async def start(self, address: str = "127.0.0.1:0") -> None:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def AttachGateway(self, requests: Any, context: Any) -> None:
        self.connections += 1
        self._outbox = outbox = asyncio.Queue()
        reading = asyncio.create_task(self._read(requests))
        try:
            await context.write(scheduler_pb2.AttachGatewayResponse(welcome=self.welcome))
            while (message := await outbox.get()) is not None:
                await context.write(message)
        finally:
            reading.cancel()

    async def _read(self, requests: Any) -> None:
        async for message in requests:
            self.messages += 1
            for order in message.many.orders if message.HasField("many") else (message,):
                kind = order.WhichOneof("message")
                self.received[kind].put_nowait(getattr(order, kind))

    async def next(self, kind: str) -> Any:
        """The next message of a kind: hello, submit, cancel, stop_choice, attach, heartbeat."""
        return await asyncio.wait_for(self.received[kind].get(), EVENT_TIMEOUT_S)

    def none(self, kind: str) -> bool:
        """Nothing of this kind is left."""
        return self.received[kind].empty()

    def break_stream(self) -> None:
        self._outbox.put_nowait(None)

    def set_ready(self, ready: bool) -> None:
        self.welcome.ready = ready
        self._outbox.put_nowait(scheduler_pb2.AttachGatewayResponse(welcome=self.welcome))

    def send(self, *events: scheduler_pb2.RequestEvent) -> None:
        message = scheduler_pb2.AttachGatewayResponse(events=scheduler_pb2.RequestEvents(events=events))
        self._outbox.put_nowait(message)

    def accept(self, request_id: str, **given: Any) -> None:
        self.send(scheduler_pb2.RequestEvent(request_id=request_id, accepted=scheduler_pb2.Accepted(**given)))

    def tokens(
        self,
        request_id: str,
        ids: Sequence[int],
        start: int = 0,
        index: int = 0,
        logprobs: Any = (),
        relay_us: int = 0,
    ) -> None:
        tokens = scheduler_pb2.Tokens(index=index, tokens=pack_u32(ids), logprobs=logprobs, relay_us=relay_us)
        setattr(tokens, "from", start)
        self.send(scheduler_pb2.RequestEvent(request_id=request_id, tokens=tokens))

    def runs(self, runs: scheduler_pb2.TokenRuns) -> None:
        message = scheduler_pb2.AttachGatewayResponse(events=scheduler_pb2.RequestEvents(runs=runs))
        self._outbox.put_nowait(message)

    def choice_finished(
        self, request_id: str, reason: str, tokens: int = 0, index: int = 0, stop_token: int = 0
    ) -> None:
        ended = scheduler_pb2.ChoiceFinished(index=index, reason=reason, tokens=tokens, stop_token=stop_token)
        self.send(scheduler_pb2.RequestEvent(request_id=request_id, choice_finished=ended))

    def finish(self, request_id: str, outcome: str = "finished", **given: Any) -> None:
        ended = scheduler_pb2.RequestFinished(outcome=outcome, **given)
        self.send(scheduler_pb2.RequestEvent(request_id=request_id, finished=ended))

    def paused(self, request_id: str, decision: str) -> None:
        result = scheduler_pb2.PauseResult(decision=decision)
        self.send(scheduler_pb2.RequestEvent(request_id=request_id, pause_result=result))

    def cancelled(self, request_id: str, **given: Any) -> None:
        result = scheduler_pb2.CancelResult(**given)
        self.send(scheduler_pb2.RequestEvent(request_id=request_id, cancel_result=result))

    async def play(self, ids: Sequence[int], reason: str = "length", step: int = 1) -> scheduler_pb2.Submit:
        """Takes the next submit and runs it to its end, `step` tokens per event, for every choice."""
        submit: scheduler_pb2.Submit = await self.next("submit")
        self.accept(submit.request_id, attempt=submit.attempt)
        for start in range(0, len(ids), step):
            for index in range(len(submit.choices)):
                self.tokens(submit.request_id, ids[start : start + step], start, index)
        for index in range(len(submit.choices)):
            self.choice_finished(submit.request_id, reason, len(ids), index)
        self.finish(submit.request_id, cached_tokens=0)
        return submit


@dataclasses.dataclass
class Stack:
    """A gateway on a real port, its client, and everything a test may look at."""

    scheduler: FakeScheduler
    gateway: OctavoGateway
    upstream: Upstream
    admission: Admission
    stub: Any
    spans: InMemorySpanExporter
    registry: CollectorRegistry
    address: str

    def ids(self, data: str | bytes) -> list[int]:
        """One token per byte of `data`."""
        raw = data.encode() if isinstance(data, str) else data
        return [byte_ids(self.admission)[byte] for byte in raw]

    async def until(self, condition: Any) -> None:
        """Waits for something that has no event of its own."""
        async with asyncio.timeout(EVENT_TIMEOUT_S):
            while not condition():
                await asyncio.sleep(0.005)


def byte_ids(admission: Admission) -> dict[int, int]:
    """The token of each single byte that has one."""
    return {data[0]: i for i, data in enumerate(admission.tokenizer.token_bytes) if len(data) == 1}


@pytest.fixture(scope="session")
def admission() -> Admission:
    files = resolve_model("smollm2")
    tokenizer = load_tokenizer(files)
    return Admission("smollm2", tokenizer, ChatRenderer(chat_template(files), tokenizer), b"secret")


@contextlib.asynccontextmanager
async def running_stack(
    admission: Admission,
    *,
    keys: dict[str, str] | None = None,
    slow_s: float = 10.0,
    grace_s: float = 5.0,
    ready: bool = True,
) -> AsyncIterator[Stack]:
    """Scheduler, gateway and client, all on loopback."""
    scheduler = FakeScheduler()
    scheduler.welcome.ready = ready
    await scheduler.start()
    spans = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    registry, log = CollectorRegistry(), logging.getLogger("octavo.test")
    upstream_channel = open_channel(scheduler.address)
    settings = UpstreamSettings("gw", connect_grace_s=grace_s)
    upstream = Upstream(upstream_channel, settings, admission.rekey, time.monotonic, log)
    metrics = GatewayMetrics(registry, lambda: upstream.live_count)
    gateway = OctavoGateway(
        admission, upstream, TenantDirectory(keys or {}), ModelFacts("llama", 1), metrics,
        provider.get_tracer("test"), log, time.monotonic, slow_s,
    )  # fmt: skip
    server = grpc.aio.server()
    register(InferenceServicer(gateway, log), server, 1_000_000)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    running = asyncio.create_task(upstream.run())
    client_channel = open_channel(f"127.0.0.1:{port}")
    stub: Any = inference_pb2_grpc.InferenceServiceStub(client_channel)  # type: ignore[no-untyped-call]
    stack = Stack(scheduler, gateway, upstream, admission, stub, spans, registry, f"127.0.0.1:{port}")
    try:
        await scheduler.next("hello")
        await stack.until(lambda: upstream.connections == 1)
        yield stack
    finally:
        await client_channel.close()
        await server.stop(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await upstream_channel.close()
        await scheduler.stop()


@pytest.fixture
async def stack(admission: Admission) -> AsyncIterator[Stack]:
    async with running_stack(admission) as running:
        yield running


@pytest.fixture
def make_stack() -> Any:
    """`running_stack` for tests that need other settings."""
    return running_stack


def whole(responses: Sequence[Any], index: int = 0) -> tuple[str, list[int]]:
    """Text and ids of one choice, put together from its deltas; checks their running totals on the way."""
    text, ids = "", []
    for response in responses:
        if response.WhichOneof("event") != "delta" or response.delta.index != index:
            continue
        text += response.delta.text
        ids += response.delta.token_ids
        assert response.delta.byte_end == len(text.encode())
        assert response.delta.token_end == len(ids)
    return text, ids


@pytest.fixture
def put_together() -> Any:
    """`whole`, for tests."""
    return whole


def generate_request(
    text: str = "Hello",
    *,
    options: dict[str, Any] | None = None,
    context: dict[str, Any] | None = None,
    sampling: dict[str, Any] | None = None,
) -> pb.GenerateRequest:
    """A Generate of `text`."""
    return pb.GenerateRequest(
        text=text,
        options=pb.Options(**(options or {})),
        context=pb.RequestContext(**(context or {})),
        sampling=pb.Sampling(**(sampling or {})),
    )


@pytest.fixture
def request_of() -> Any:
    """`generate_request`, for tests."""
    return generate_request
