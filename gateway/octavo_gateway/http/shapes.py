"""OpenAI's response objects as structs; field order and nulls as OpenAI sends them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo_gateway.requests import Cost, Usage

encode = msgspec.json.Encoder().encode
"""Struct -> JSON bytes; NaN and infinities become null."""


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    blended_tokens: int | UnsetType = UNSET
    """Reused at other positions; only where there are any."""


class UsageBody(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    octavo_cost: Cost | UnsetType = UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class CallBody(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction
    type: str = "function"


class CalledPart(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class CallPartBody(msgspec.Struct, frozen=True):
    """What a call in a chunk grew by; all but index and arguments with its first part only."""

    index: int
    function: CalledPart
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[CallPartBody] | UnsetType = UNSET


class ChatMessageBody(msgspec.Struct, frozen=True):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: list[CallBody] | UnsetType = UNSET


class BeamBody(msgspec.Struct, frozen=True):
    """What a beam's choice counts; in a stream with the chunk that ends the choice."""

    score: float
    cumulative_logprob: float


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET
    octavo_beam: BeamBody | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessageBody
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET
    octavo_beam: BeamBody | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET
    octavo_beam: BeamBody | UnsetType = UNSET


class Envelope(msgspec.Struct, frozen=True):
    """chat.completion, chat.completion.chunk, text_completion: whole answers and stream chunks."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    system_fingerprint: str | None = None
    usage: UsageBody | UnsetType | None = UNSET
    octavo_degraded: str | UnsetType = UNSET  # of a request that was taken on for less than it asked for


class ModelBody(msgspec.Struct, frozen=True):
    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "octavo"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelBody]
    object: str = "list"


class Tokens(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Paused(msgspec.Struct, frozen=True):
    """What becomes of a paused turn's KV: keep, offload, drop; later: when the turn is over."""

    id: str
    decision: str
    object: str = "octavo.pause"


class Text(msgspec.Struct, frozen=True):
    prompt: str


def usage_body(usages: list[Usage], costs: list[Cost]) -> UsageBody:
    """The sums over the prompts of one HTTP request."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    details = PromptTokensDetails(cached, sum(usage.blended_tokens for usage in usages) or UNSET)
    return UsageBody(prompt, completion, prompt + completion, details, sum(costs, Cost()))
