"""What the SDK gives back: plain frozen values, no protobuf type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

CALL_TAG = "<tool_call>"
"""Before a call in an answer's text."""
FinishReason = Literal["", "stop", "length", "tool_calls", "cancelled", "deadline"]
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asks for a function; `arguments` is a JSON object as text. Answer with a message of the role `tool`."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """What is new of a call that is being written: `id` and `name` come with its first part, `arguments` add up.

    `number` counts the calls of a choice that began; `end` is the UTF-8 bytes of the arguments so far. Of a call that comes to nothing
    the arguments never end: those that can be read as JSON are a call's, whole.
    """

    number: int
    id: str
    name: str
    arguments: str
    end: int


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `tool_calls` are an assistant's, `tool_call_id` is the call that a tool's message answers."""

    role: str
    content: str
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log probability (natural logarithm) and the likeliest alternatives."""

    token_id: int
    text: str
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """New text and tokens of one choice. `byte_end` and `token_end` count this choice's output so far."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    token_end: int = 0
    byte_end: int = 0
    finish_reason: FinishReason = ""
    stop_hit: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """On the last one; their words are in the text too."""
    call_parts: tuple[ToolCallPart, ...] = ()
    """Of calls, as they grow."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that were billed."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    blended_tokens: int = 0
    """Of the prompt, reused at other positions (cache.blending): the answer is then not exact."""

    @property
    def total_tokens(self) -> int:
        """Prompt and completion."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Microseconds since the gateway received the request, on its clock; the last five are durations that travelled."""

    t_received_unix_us: int = 0
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
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What the request took, over all its choices: device microseconds by phase, KV bytes held times seconds by tier,
    and prompt tokens that were not computed, by what saved them."""

    prefill_device_us: int = 0
    decode_device_us: int = 0
    recompute_device_us: int = 0
    kv_pool_byte_s: float = 0.0
    kv_dram_byte_s: float = 0.0
    kv_nvme_byte_s: float = 0.0
    saved_prefix_tokens: int = 0
    saved_tier_tokens: int = 0
    saved_sibling_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole answer."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason = ""
    stop_hit: str = ""
    ids_blake3: bytes = b""
    tool_calls: tuple[ToolCall, ...] = ()
    score: float | None = None
    """Of a beam: cumulative_logprob / tokens ^ length_penalty, by which the choices are sorted."""
    cumulative_logprob: float | None = None
    """Of a beam: over all tokens of its hypothesis, also those behind a stop string."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request. `first_token_ms` and `last_token_ms` are on the client's clock since the call."""

    request_id: str
    model: str
    choices: tuple[Choice, ...]
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    trace_id: str = ""
    seed: int = 0
    first_token_ms: float = 0.0
    last_token_ms: float = 0.0
    resumes: int = 0
    cost: Cost = field(default_factory=Cost)
    degraded: str = ""
    """What overload made of the request: `pool=LABEL`, `max_tokens=N`; empty: as asked for."""

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text if self.choices else ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The first choice's tool calls."""
        return self.choices[0].tool_calls if self.choices else ()

    @property
    def message(self) -> Message:
        """The first choice as the turn that a conversation goes on from: what it says before its calls, and the calls."""
        if not self.tool_calls:
            return Message("assistant", self.text)
        is_call = self.text.lstrip().startswith(("{", "["))  # as a whole, without tags
        words = "" if is_call else self.text.partition(CALL_TAG)[0].rstrip()
        return Message("assistant", words, tool_calls=self.tool_calls)

    @property
    def finish_reason(self) -> FinishReason:
        """The first choice's finish reason."""
        return self.choices[0].finish_reason if self.choices else ""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What a cancel did. `found` is False for an unknown or finished request: then nothing was done."""

    found: bool
    outcome: str = ""
    last_step: int = 0
    blocks_freed: int = 0
    latency_us: int = 0
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True, slots=True)
class Pausing:
    """What becomes of the KV of a turn after which the client pauses: keep, offload, drop, or later when the turn is over.

    `found` is False for an unknown turn, or one that did not finish.
    """

    found: bool
    decision: str = ""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids, and the text piece of each."""

    token_ids: tuple[int, ...]
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenCount:
    """How many prompt tokens a request would have, and how many the model takes with its output."""

    tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served model."""

    id: str
    max_model_len: int
    vocab_size: int
    architecture: str
    fingerprint: str
    created_unix_s: int
