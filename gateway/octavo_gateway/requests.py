"""The edge-neutral nouns of the gateway: what an edge asks for, and what it gets back.

gRPC and HTTP edges build `RequestParams`, call `Gateway.start`, and iterate a `Generation`. They know nothing of the
scheduler; the gateway's inside knows nothing of protobuf or JSON.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, Protocol

from octavo_gateway.delta_runs import DeltaColumns
from octavo_gateway.ttft import TtftParts

FinishWord = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for a function; `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """What is new of a call that is being written. `number`: which of the answer's calls that began; `id` and `name` come with its
    first part only; `end`: UTF-8 bytes of its arguments so far. Arguments that can be read as JSON are a call's, whole."""

    number: int
    id: str
    name: str
    arguments: str
    end: int


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str
    name: str = ""
    tool_calls: Sequence[ToolCall] = ()  # of an assistant
    tool_call_id: str = ""  # of a tool: the call that it answers


@dataclass(slots=True)
class RequestParams:
    """A request as the client sent it: absent stays None, nothing is checked beyond its type."""

    kind: Literal["generate", "chat"]
    model: str = ""
    prompt_text: str | None = None
    prompt_ids: Sequence[int] | None = None
    messages: Sequence[ChatMessage] = ()
    add_generation_prompt: bool = True
    tools: Sequence[Mapping[str, Any]] = ()  # {"type": "function", "function": {name, description, parameters}}
    tool_choice: str = ""  # empty: auto
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str: bool = False
    n: int | None = None
    logprobs: int | None = None
    beam_width: int = 0  # 0: no beam search
    length_penalty: float | None = None
    early_stopping: bool | None = None
    echo: bool = False
    skip_special_tokens: bool = True
    request_id: str = ""
    idempotency_key: str = ""
    priority: int = 0
    slo_class: str = ""
    deadline_ms: int = 0
    cache_off: bool = False
    cache_salt: str = ""
    cache_ttl_s: float = 0.0
    cache_pin: bool = False
    cache_priority: int = 0
    cache_tiers: Sequence[str] = ()
    cache_preload: str = ""
    cache_chunks: Sequence[str] = ()
    pause_tool: str = ""
    pause_expected_ms: int = 0
    resumes: str = ""


@dataclass(frozen=True, slots=True)
class Encoded:
    """What tokenizing a checked request gave."""

    prompt_ids: list[int]
    schemas: tuple[tuple[str, str], ...] = ()  # of functions that must be called: name, JSON of its arguments' schema


@dataclass(frozen=True, slots=True)
class EdgeContext:
    """What an edge knows of the call rather than of the request."""

    edge: Literal["grpc", "http"]
    api_key: str = ""
    traceparent: str = ""
    deadline_s: float | None = None  # the call's own remaining time
    internal: bool = False  # came through the channel of the release gate, which is before ready


@dataclass(frozen=True, slots=True)
class Audience:
    """Who looks at the live view."""

    tenant: str
    sees_all: bool  # every tenant's requests, workers, ledger


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    text: str
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class BeamScore(NamedTuple):
    """What a beam that came back counts: sum of log-probabilities / tokens ^ length_penalty, and the sum itself."""

    score: float
    cumulative_logprob: float


@dataclass(slots=True)  # not frozen: that costs several times as much to make, once per message
class Delta:
    """New text and tokens of one choice; `finish_reason` is set on its last one."""

    index: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    token_end: int
    byte_end: int
    finish_reason: FinishWord | None = None
    stop_hit: str = ""
    tool_calls: Sequence[ToolCall] = ()  # on the last one; their text was in the deltas too
    call_parts: Sequence[ToolCallPart] = ()  # of calls, as they grow
    beam: BeamScore | None = None  # on the last one


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Prompt tokens [start, start + tokens) are those of the preload `name` from its token `skip` on."""

    name: str
    start: int
    tokens: int
    skip: int


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    blended_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Microseconds since t_received on the gateway's clock (0: never happened); `*_us` durations travelled."""

    t_received_unix_us: int
    t_tokenized_us: int = 0
    t_admitted_us: int = 0
    t_prefill_start_us: int = 0
    t_first_token_us: int = 0
    t_last_token_us: int = 0
    t_complete_us: int = 0
    queue_us: int = 0
    kv_load_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    preemptions: int = 0
    attempts: int = 1
    ttft: TtftParts | None = None


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    index: int
    finish_reason: FinishWord
    tokens: int
    bytes: int
    ids_blake3: builtins.bytes
    beam: BeamScore | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request took over all its choices: device microseconds, KV bytes times seconds, prompt tokens spared."""

    prefill_device_us: int = 0
    decode_device_us: int = 0
    recompute_device_us: int = 0
    kv_pool_byte_s: float = 0.0
    kv_dram_byte_s: float = 0.0
    kv_nvme_byte_s: float = 0.0
    saved_prefix_tokens: int = 0
    saved_tier_tokens: int = 0
    saved_sibling_tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        """Of several prompts in one call."""
        return Cost(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(Cost)})


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a generation that did not fail."""

    usage: Usage
    timings: Timings
    choices: Sequence[ChoiceEnd]
    cost: Cost = Cost()


Event = Delta | Finished


@dataclass(frozen=True, slots=True)
class CancelOutcome:
    found: bool
    outcome: str = ""
    last_step: int = 0
    blocks_freed: int = 0
    latency_us: int = 0
    cost: Cost = Cost()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    id: str
    max_model_len: int
    vocab_size: int
    architecture: str
    fingerprint: str
    created_unix_s: int


class Wakeup(Protocol):
    """Something that waits to be set, as an asyncio.Event."""

    def set(self) -> None: ...


class Generation(Protocol):
    """One request under way. Iterate it once; it ends after `Finished`, or raises an OctavoError: exactly one of the two.

    One that serves many of them `watch`es each instead, and calls `give` and then `pull` when it was woken.
    """

    request_id: str
    trace_id: str  # 32 hex digits
    model: str
    prompt_tokens: int
    seed: int
    degraded: str  # what overload made of it: `pool=LABEL`, `max_tokens=N`; empty: as asked for
    max_tokens: int  # per choice, in force

    @property
    def cost(self) -> Cost:
        """What it took up to its end, whatever end that was; nothing before it."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Deltas in order; backlog that piled up between two pulls comes as one delta per choice."""

    async def close(self, reason: str) -> None:
        """The client is gone (`client_disconnect`) or too slow (`slow_client`): cancels; idempotent, never raises."""

    def abandon(self, reason: str) -> None:
        """As `close`."""

    def watch(self, wakeup: Wakeup) -> None:
        """From now on `wakeup` is set when there may be something to pull, and nobody iterates."""

    def give(self, call: int, columns: DeltaColumns) -> bool:
        """Puts plain new tokens into the columns under this number. True: `pull` has what comes next."""

    def pull(self) -> Event | None:
        """The next event that is there; None: nothing yet. Raises the terminal error after the last delta."""


class Gateway(Protocol):
    """What both edges call."""

    slow_client_timeout_s: float

    async def start(self, params: RequestParams, edge: EdgeContext) -> Generation:
        """Validates and submits. Raises OctavoError (InvalidRequest, UnknownModel, Unavailable, Overloaded, ...)."""

    async def attach(self, request_id: str, idempotency_key: str, from_byte: int, edge: EdgeContext) -> Generation:
        """A live or stored generation from a byte offset per choice. Raises UnknownRequest."""

    async def cancel(self, request_id: str, reason: str, edge: EdgeContext) -> CancelOutcome:
        """Stops a generation, answers when its last block is back; unknown or finished: found=False."""

    async def pause(self, request_id: str, tool: str, expected_ms: int, edge: EdgeContext) -> str:
        """A turn ended in a tool call: keep, offload, drop or later; empty for an unknown or unfinished turn."""

    def ack(
        self, request_id: str, byte_end: int, first_token_ms: float, last_token_ms: float, edge: EdgeContext
    ) -> bool:
        """What the client saw; False when the request is unknown."""

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
        """Token ids of text or of rendered messages. Raises Unauthenticated, InvalidRequest, UnknownModel."""

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The vocabulary's piece of each id."""

    def detokenize(
        self, model: str, token_ids: Sequence[int], edge: EdgeContext, *, skip_special_tokens: bool = False
    ) -> str:
        """Text of ids; invalid UTF-8 becomes U+FFFD. Raises Unauthenticated, InvalidRequest on an id out of range."""

    def models(self, edge: EdgeContext) -> list[ModelInfo]:
        """The served models. Raises Unauthenticated."""

    def audience(self, edge: EdgeContext) -> Audience:
        """What the caller may see of the cell. Raises Unauthenticated."""

    @property
    def ready(self) -> bool:
        """A worker has passed its warm-up inference and the scheduler answers."""

    @property
    def why_not_ready(self) -> str:
        """Empty when it is ready."""
