"""Request bodies as clients send them, and how bytes become one: every refusal names the field and the fix."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec
from octavo.errors import InvalidRequest


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class ToolCallBody(msgspec.Struct):
    function: CalledFunction
    id: str = ""
    type: str = "function"


class Message(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None


class OfferedFunction(msgspec.Struct):
    """`strict` asks for arguments that cannot miss the schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct):
    type: str
    function: OfferedFunction


class CacheBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What may be kept of a request's KV; the fields of octavo.v1.CacheControl."""

    ttl: float | None = None
    pin: bool | None = None
    priority: int | None = None
    tiers: list[str] | None = None
    off: bool | None = None
    salt: str | None = None
    preload: str | None = None
    chunks: list[str] | None = None


class PauseBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The turn ends in a tool call; the fields of octavo.v1.ToolPause."""

    tool: str | None = None
    expected_ms: int | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """What both generating endpoints take: OpenAI's fields, then the ones vLLM made common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    use_beam_search: bool | None = None
    best_of: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    slo_class: str | None = None
    deadline_ms: int | None = None
    cache: CacheBody | None = None
    pause: PauseBody | None = None
    resumes: str | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None


class ChatBody(GenerationBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    tools: list[ToolBody] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize, in vLLM's shape: `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize, in vLLM's shape."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool | None = None


BodyT = TypeVar("BodyT")

_MISSING = re.compile(r"missing required field `([^`]+)`")
_KEY_OF = re.compile(r"at `key` in `\$([^`]*)`")
_PATH = re.compile(r"at `\$([^`]*)`")


def decode_body(raw: bytes, kind: type[BodyT]) -> BodyT:
    """JSON bytes as `kind`. Raises InvalidRequest naming the field (`body` when no field is to blame)."""
    try:
        str(raw, "utf-8")
    except UnicodeDecodeError as error:
        field = _blame(raw) or "body"
        raise InvalidRequest(f"{field}: invalid UTF-8 at byte {error.start}; send JSON in UTF-8", field=field) from None
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        field, message = _explain(str(error))
        raise InvalidRequest(f"{field}: {message}", field=field) from None
    except msgspec.DecodeError as error:
        field = _blame(raw) or "body"
        raise InvalidRequest(f"{field}: malformed JSON: {_detail(raw, str(error))}", field=field) from None
    except RecursionError:
        raise InvalidRequest("body: JSON is nested too deeply; send a flat object", field="body") from None


def _explain(message: str) -> tuple[str, str]:
    """(field, reason) of a msgspec validation error, whose path reads `$.messages[0].role`."""
    reason = message.partition(" - at ")[0].replace("`", "")
    if missing := _MISSING.search(message):
        found = _PATH.search(message)
        parent = found.group(1).lstrip(".") if found else ""
        return ".".join(filter(None, (parent, missing.group(1)))), "this field is required"
    found = _KEY_OF.search(message) or _PATH.search(message)
    path = (found.group(1).lstrip(".") if found else "").replace("[...]", "")
    return path or "body", reason[:1].lower() + reason[1:]


def _detail(raw: bytes, message: str) -> str:
    if not raw.strip():
        return "the body is empty; send a JSON object"
    return message.removeprefix("JSON is malformed: ")


def _blame(raw: bytes) -> str:
    """The top-level field whose value is not JSON (NaN, Infinity) or not Unicode (bad UTF-8, lone surrogates)."""
    try:
        body = json.loads(raw.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return ""
    if not isinstance(body, dict):
        return ""
    return next((key for key, value in body.items() if _is_foreign(value)), "")


def _is_foreign(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
            return True
        if isinstance(item, str) and any("\ud800" <= character <= "\udfff" for character in item):
            return True
        if isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            stack += item
    return False
