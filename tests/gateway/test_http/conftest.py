"""A scripted gateway behind the real edge on a real socket."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
import uvloop
from octavo.errors import InvalidRequest, OctavoError, Unauthenticated, Unavailable, UnknownModel, UnknownRequest
from octavo.rpc.host import Host
from octavo.rpc.testing import running_host
from octavo_gateway.http.server import start_http
from octavo_gateway.page.feed import LiveFeed
from octavo_gateway.page.latency import LatencyWindow
from octavo_gateway.requests import (
    Audience,
    CancelOutcome,
    ChatMessage,
    ChoiceEnd,
    Cost,
    Delta,
    EdgeContext,
    Event,
    Finished,
    ModelInfo,
    RequestParams,
    Timings,
    TokenLogprob,
    Usage,
)

WORDS = ("Paris", " is", " the", " capital", " of", " France", ".")
MAX_BODY_BYTES = 256 * 1024

COST = Cost(prefill_device_us=1500, decode_device_us=2500, kv_pool_byte_s=1e6, saved_prefix_tokens=16)

Item = Event | Exception | asyncio.Event
"""One step of a script: an event to hand out, an error to raise, something to wait for."""
Script = Callable[[RequestParams], Sequence[Item]]


def logprob(text: str, token_id: int = 1, value: float = -0.25, alternatives: int = 0) -> TokenLogprob:
    """A token with `alternatives` less likely ones."""
    top = tuple(TokenLogprob(token_id + i, f"{text}{i}", f"{text}{i}".encode(), value - i) for i in range(alternatives))
    return TokenLogprob(token_id, text, text.encode(), value, top)


def deltas(words: Sequence[str], index: int = 0, logprobs: int | None = None, finish: str = "stop") -> list[Delta]:
    """One delta per word; the last one carries the finish reason."""
    made, size = [], 0
    for i, word in enumerate(words):
        size += len(word.encode())
        tokens = [] if logprobs is None else [logprob(word, i + 1, alternatives=logprobs)]
        last: Any = finish if i == len(words) - 1 else None
        made.append(Delta(index, word, [i + 1], tokens, i + 1, size, last))
    return made


def finished(prompt: int = 5, completion: int = 7, cached: int = 2) -> Finished:
    """The end of a generation that did not fail."""
    return Finished(Usage(prompt, cached, completion), Timings(1), [ChoiceEnd(0, "stop", completion, 1, b"")], COST)


def speak(params: RequestParams) -> list[Item]:
    """WORDS for every choice, the choices taking turns."""
    n = params.n or 1
    tracks = [deltas([f"{WORDS[0]}{i}" if i else WORDS[0], *WORDS[1:]], i, params.logprobs) for i in range(n)]
    return [*(delta for step in zip(*tracks, strict=True) for delta in step), finished(completion=7 * n)]


class FakeGeneration:
    """Plays a script; remembers how it was closed and how much was pulled."""

    def __init__(self, request_id: str, script: Sequence[Item]) -> None:
        self.request_id, self.trace_id, self.model = request_id, "ab" * 16, "smollm2"
        self.prompt_tokens, self.seed = 5, 1
        self.degraded, self.max_tokens = "", 16
        self.cost = Cost()
        self.closed: list[str] = []
        self.was_closed = asyncio.Event()
        self.pulled = 0
        self._script = script

    async def __aiter__(self) -> AsyncIterator[Event]:
        for item in self._script:
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, Exception):
                raise item
            else:
                self.pulled += 1
                yield item

    def release(self) -> None:
        """Lets everything go that the script waits for."""
        for item in self._script:
            if isinstance(item, asyncio.Event):
                item.set()

    async def close(self, reason: str) -> None:
        self.closed.append(reason)
        self.was_closed.set()


@dataclass
class FakeGateway:
    """Every request it was given, and a script for the answers."""

    script: Script = speak
    refusal: OctavoError | None = None
    gate: asyncio.Event | None = None  # start() waits for it
    stubborn: bool = False  # start() goes on when it is cancelled
    cancelled_starts: int = 0
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    slow_client_timeout_s: float = 0.5
    why_not_ready: str = ""
    api_key: str = ""  # empty: none is needed
    sees_all: bool = True
    degraded: str = ""
    requests: list[RequestParams] = field(default_factory=list)
    edges: list[EdgeContext] = field(default_factory=list)
    generations: list[FakeGeneration] = field(default_factory=list)
    tokenized: list[tuple[Any, ...]] = field(default_factory=list)
    paused: list[tuple[str, str, int]] = field(default_factory=list)
    decisions: dict[str, str] = field(default_factory=dict)

    async def start(self, params: RequestParams, edge: EdgeContext) -> FakeGeneration:
        self.requests.append(params)
        self.edges.append(edge)
        self.entered.set()
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled_starts += 1
                if not self.stubborn:
                    raise
        if self.refusal is not None:
            raise self.refusal
        generation = FakeGeneration(params.request_id or f"req-{len(self.generations)}", self.script(params))
        generation.degraded = self.degraded
        self.generations.append(generation)
        return generation

    async def attach(self, request_id: str, idempotency_key: str, from_byte: int, edge: EdgeContext) -> FakeGeneration:
        raise NotImplementedError

    async def cancel(self, request_id: str, reason: str, edge: EdgeContext) -> CancelOutcome:
        raise NotImplementedError

    async def pause(self, request_id: str, tool: str, expected_ms: int, edge: EdgeContext) -> str:
        self._check_key(edge)
        if expected_ms < 0:
            raise InvalidRequest("pause.expected_ms: -1 must be from 0", field="pause.expected_ms")
        self.paused.append((request_id, tool, expected_ms))
        return self.decisions.get(request_id, "")

    def ack(
        self, request_id: str, byte_end: int, first_token_ms: float, last_token_ms: float, edge: EdgeContext
    ) -> bool:
        raise NotImplementedError

    def tokenize(
        self,
        model: str,
        text: str | None,
        messages: Sequence[ChatMessage] | None,
        edge: EdgeContext,
        *,
        parse_special: bool = False,
        add_bos: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        self._check_key(edge)
        if model not in ("", "smollm2"):
            raise UnknownModel(f"model: {model!r} is not served", field="model")
        self.tokenized.append((text, messages, parse_special, add_bos, add_generation_prompt))
        return list((text if text is not None else messages[0].content).encode())  # type: ignore[index]

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        return [chr(item) for item in token_ids]

    def detokenize(
        self, model: str, token_ids: Sequence[int], edge: EdgeContext, *, skip_special_tokens: bool = False
    ) -> str:
        self._check_key(edge)
        if any(not 0 <= item < 256 for item in token_ids):
            raise InvalidRequest("token_ids[0]: 256 is out of range", field="token_ids[0]")
        return bytes(token_ids).decode()

    @property
    def ready(self) -> bool:
        return not self.why_not_ready

    def audience(self, edge: EdgeContext) -> Audience:
        self._check_key(edge)
        return Audience("default", self.sees_all)

    def _check_key(self, edge: EdgeContext) -> None:
        if self.api_key and edge.api_key != self.api_key:
            raise Unauthenticated("an API key is needed")

    def models(self, edge: EdgeContext) -> list[ModelInfo]:
        self._check_key(edge)
        return [ModelInfo("smollm2", 8192, 49152, "llama", "c0ffee" * 10, 1_700_000_000)]


class FakeCell:
    """A scheduler whose moments count up; away when told so."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    async def live(self) -> dict[str, Any]:
        self.asked += 1
        if self.away:
            raise Unavailable("the scheduler does not answer")
        names = (
            "running",
            "waiting",
            "recent",
            "workers",
            "stores",
            "ledger",
            "trials",
            "tenants",
            "slo_classes",
            "gateways",
        )
        moment: dict[str, Any] = {name: [] for name in names}
        return moment | {
            "ready": True, "why_not_ready": "", "waiting_count": 0, "running_count": self.asked,
            "waiting_prompt_tokens": 0, "counters": {},
        }  # fmt: skip

    async def timeline(self, request_id: str, tenant: str) -> dict[str, Any]:
        if request_id != "known":
            raise UnknownRequest("this request is not known here")
        span = {"name": "queue", "service": "scheduler", "start_ms": 0.0, "end_ms": 5.0, "running": False}
        return {"request": {"request_id": request_id, "tenant": tenant}, "spans": [span | {"attributes": {}}]}


def new_feed(cell: FakeCell | None = None, **options: Any) -> LiveFeed:
    """A feed over a scripted scheduler, for a gateway without requests."""
    window = LatencyWindow(time.monotonic, "default", lambda live: "")
    log = logging.getLogger("octavo.test")
    return LiveFeed(cell or FakeCell(), window, list, time.monotonic, "smollm2", log, **options)


@pytest.fixture
def make_feed() -> Any:
    """(a scripted scheduler, a feed over it)"""

    def build(**options: Any) -> tuple[FakeCell, LiveFeed]:
        cell = FakeCell()
        return cell, new_feed(cell, **options)

    return build


@dataclass
class Edge:
    """The edge under test and ways to talk to it."""

    gateway: FakeGateway
    host: Host
    address: str
    http: httpx.AsyncClient

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="key-1", max_retries=0)

    def request_bytes(self, path: str, body: bytes, *headers: str) -> bytes:
        """A raw HTTP/1.1 POST."""
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: octavo",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *headers,
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Every test of the edge runs on both loops: their transports close, buffer and abort by different code."""
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    """One listening edge per module; its gateway is made new for each test."""
    gateway = FakeGateway()
    settings = {
        "gateway.http_listen": "127.0.0.1:0",
        "gateway.max_body_bytes": MAX_BODY_BYTES,
        "observability.trace_files": False,
    }
    async with running_host("gateway", tmp_path_factory.mktemp("run"), settings) as host:
        address = await start_http(gateway, new_feed(), host)
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=20) as http:
            yield Edge(gateway, host, address, http)


@pytest_asyncio.fixture(loop_scope="module")
async def edge(served: Edge) -> AsyncIterator[Edge]:
    gateway = served.gateway
    gateway.__init__()  # type: ignore[misc]
    yield served
    for generation in gateway.generations:  # nothing scripted may hold up the drain
        generation.release()


@pytest.fixture
def make() -> Any:
    """The script builders, since a conftest cannot be imported."""

    class Make:
        deltas = staticmethod(deltas)
        finished = staticmethod(finished)
        logprob = staticmethod(logprob)
        speak = staticmethod(speak)
        words = WORDS
        max_body_bytes = MAX_BODY_BYTES

    return Make


@pytest.fixture
def new_gateway() -> type[FakeGateway]:
    """For tests that start an edge of their own."""
    return FakeGateway
