"""Between the SDK's values and the protobuf messages; the only module of the SDK that builds or reads them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypedDict, TypeVar, cast

from octavo.client.types import (
    Cancellation,
    Choice,
    Chunk,
    Cost,
    FinishReason,
    Message,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallPart,
    Usage,
)
from octavo.errors import InvalidRequest
from octavo.v1 import inference_pb2 as pb


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of every generation; what is absent takes the server's default (see inference.proto)."""

    model: str
    request_id: str
    idempotency_key: str
    priority: int
    slo_class: str
    deadline_s: float
    cache_off: bool
    cache_salt: str
    cache: Mapping[str, Any]
    pause: Mapping[str, Any]
    resumes: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str: bool
    n: int
    logprobs: int
    beam_width: int
    length_penalty: float
    early_stopping: bool
    echo: bool
    skip_special_tokens: bool
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]


Prompt = str | Sequence[int]
MessageLike = Message | Mapping[str, Any]
_CONTEXT = ("model", "request_id", "idempotency_key", "priority", "slo_class", "cache_off", "cache_salt", "resumes")
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
)
MAX_DEADLINE_S = 4_000_000
"""So that milliseconds fit 32 bits."""
CACHE_FIELDS = ("ttl", "pin", "priority", "tiers", "off", "salt", "preload", "chunks")
_OPTIONS = (
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str",
    "n",
    "logprobs",
    "beam_width",
    "length_penalty",
    "early_stopping",
    "echo",
    "skip_special_tokens",
)
_FINISH: dict[int, FinishReason] = {
    pb.FINISH_REASON_UNSPECIFIED: "",
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TOOL_CALLS: "tool_calls",
    pb.FINISH_REASON_CANCELLED: "cancelled",
    pb.FINISH_REASON_DEADLINE: "deadline",
}
_Message = TypeVar("_Message", pb.RequestContext, pb.Sampling, pb.Options)


def generate_request(prompt: Prompt, options: RequestOptions) -> pb.GenerateRequest:
    """The request for a raw prompt, text or token ids. Raises InvalidRequest naming the argument at fault."""
    if options.get("tools"):
        raise InvalidRequest("tools: they are for chat only; leave them out", field="tools")
    context, sampling, rest = _parts(options)
    if isinstance(prompt, str):
        return pb.GenerateRequest(context=context, text=prompt, sampling=sampling, options=rest)
    try:
        ids = pb.TokenIds(ids=prompt)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"prompt: {error}; give text or token ids of 0 and above", field="prompt") from error
    return pb.GenerateRequest(context=context, token_ids=ids, sampling=sampling, options=rest)


def choices_of(options: pb.Options) -> int:
    """How many choices come back: of a beam search without `n` all its beams."""
    return options.n or options.beam_width or 1


def chat_request(messages: Sequence[MessageLike], options: RequestOptions) -> pb.ChatRequest:
    """The request for a conversation. Raises InvalidRequest naming the argument at fault."""
    context, sampling, rest = _parts(options)
    return pb.ChatRequest(
        context=context,
        messages=wire_messages(messages),
        sampling=sampling,
        options=rest,
        tools=[_tool(i, tool) for i, tool in enumerate(options.get("tools") or ())],
        tool_choice=_tool_choice(options.get("tool_choice") or ""),
    )


def _tool_choice(choice: str | Mapping[str, Any]) -> str:
    """A word, or OpenAI's `{"type": "function", "function": {"name": ...}}` as `function NAME`."""
    try:
        return choice if isinstance(choice, str) else f"function {choice['function']['name']}"
    except (TypeError, KeyError) as error:
        raise InvalidRequest(
            f"tool_choice: {choice!r} names no function; use auto, none, required or 'function NAME'",
            field="tool_choice",
        ) from error


def _tool(index: int, tool: Mapping[str, Any]) -> pb.Tool:
    """`{"name": ..., "description": ..., "parameters": {JSON schema}}`, or that as the `function` of OpenAI's shape."""
    field = f"tools[{index}]"
    said = tool.get("function", tool) if isinstance(tool, Mapping) else tool
    if not isinstance(said, Mapping):
        wrong, cause = f"{said!r:.80} is no dict", None
    elif "name" not in said:
        wrong, cause = "it has no name", None
    else:
        schema = said.get("parameters")
        try:
            text = "" if schema is None else json.dumps(schema)
            return pb.Tool(name=said["name"], description=said.get("description") or "", parameters=text)
        except (TypeError, ValueError) as error:
            wrong, cause = str(error), error
    raise InvalidRequest(
        f"{field}: {wrong}; give name, description, and parameters as a JSON schema", field=field
    ) from cause


def wire_messages(messages: Sequence[MessageLike]) -> list[pb.Message]:
    """Messages from our dataclass or from mappings with its fields."""
    listed = []
    for number, message in enumerate(messages):
        try:
            fields = asdict(message) if isinstance(message, Message) else {**message}
            calls = [_call(call) for call in fields.pop("tool_calls", None) or ()]
            listed.append(pb.Message(**fields, tool_calls=calls))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            field = f"messages[{number}]"
            raise InvalidRequest(f"{field}: {error}; give role and content as text", field=field) from error
    return listed


def _call(call: ToolCall | Mapping[str, Any]) -> pb.ToolCall:
    """`{"id": ..., "name": ..., "arguments": JSON text}`, or OpenAI's shape with these two in `function`."""
    if isinstance(call, ToolCall):
        return pb.ToolCall(**asdict(call))
    said = call.get("function", call)
    return pb.ToolCall(id=call.get("id", ""), name=said["name"], arguments=said["arguments"])


def chat_messages(messages: Sequence[MessageLike]) -> pb.ChatMessages:
    """Messages as the input of Tokenize and CountTokens."""
    return pb.ChatMessages(messages=wire_messages(messages))


def _parts(options: RequestOptions) -> tuple[pb.RequestContext, pb.Sampling, pb.Options]:
    given = cast(dict[str, Any], dict(options))
    known = (*_CONTEXT, *_SAMPLING, *_OPTIONS, "cache", "pause", "deadline_s", "tools", "tool_choice")
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise TypeError(f"unknown argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    context = _fill(pb.RequestContext, _CONTEXT, given)
    if given.get("cache") is not None:
        context.cache.CopyFrom(_cache(given["cache"]))
    if given.get("pause") is not None:
        context.pause.CopyFrom(pause_of(given["pause"]))
    deadline_s = given.get("deadline_s")
    if deadline_s is not None:
        context.deadline_ms = max(1, round(checked_deadline(deadline_s) * 1000))
    return context, _fill(pb.Sampling, _SAMPLING, given), _fill(pb.Options, _OPTIONS, given)


def checked_deadline(deadline_s: float) -> float:
    """`deadline_s`. Raises InvalidRequest when it is none."""
    if not 0 < deadline_s < MAX_DEADLINE_S:  # NaN is neither
        raise InvalidRequest(
            f"deadline_s: {deadline_s!r} must be seconds above 0 and below {MAX_DEADLINE_S}", field="deadline_s"
        )
    return deadline_s


def pause_of(given: Mapping[str, Any]) -> pb.ToolPause:
    """`pause={"tool": "search", "expected_ms": 800}`. Raises InvalidRequest naming the field."""
    for name in given:
        if name not in ("tool", "expected_ms"):
            raise InvalidRequest(f"pause.{name}: unknown; use tool, expected_ms", field=f"pause.{name}")
    try:
        return pb.ToolPause(**given)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"pause: {dict(given)!r} cannot be sent: {error}", field="pause") from error


def _cache(given: Mapping[str, Any]) -> pb.CacheControl:
    """`cache={"ttl": seconds, "pin": True, "priority": 2, "tiers": ["hbm"], "off": True, "salt": "s", "preload": "name", "chunks": ["name", "other"]}`."""
    for name in given:
        if name not in CACHE_FIELDS:
            near = difflib.get_close_matches(name, CACHE_FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"use {', '.join(CACHE_FIELDS)}"
            raise InvalidRequest(f"cache.{name}: unknown; {hint}", field=f"cache.{name}")
    try:
        return pb.CacheControl(**given)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"cache: {dict(given)!r} cannot be sent: {error}", field="cache") from error


def _fill(kind: type[_Message], names: Sequence[str], given: Mapping[str, Any]) -> _Message:
    message = kind()
    for name in names:
        if given.get(name) is None:
            continue
        try:
            message.MergeFrom(kind(**{name: given[name]}))
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{name}: {given[name]!r} cannot be sent: {error}", field=name) from error
    return message


def chunk_of(delta: pb.Delta) -> Chunk:
    """A Delta as a Chunk."""
    return Chunk(
        index=delta.index,
        text=delta.text,
        token_ids=tuple(delta.token_ids),
        logprobs=tuple([logprob_of(item) for item in delta.logprobs]),
        token_end=delta.token_end,
        byte_end=delta.byte_end,
        finish_reason=_FINISH.get(delta.finish_reason, ""),
        stop_hit=delta.stop_hit,
        tool_calls=tuple(ToolCall(call.id, call.name, call.arguments) for call in delta.tool_calls),
        call_parts=tuple(
            [ToolCallPart(part.number, part.id, part.name, part.arguments, part.end) for part in delta.call_parts]
        ),
    )


def logprob_of(item: pb.TokenLogprob) -> TokenLogprob:
    """A TokenLogprob with its alternatives."""
    top = tuple(logprob_of(other) for other in item.top)
    return TokenLogprob(item.token_id, item.text, item.token_bytes, item.logprob, top)


def finish_of(end: pb.ChoiceEnd) -> FinishReason:
    """The finish reason of an ended choice."""
    return _FINISH.get(end.finish_reason, "")


def usage_of(usage: pb.Usage) -> Usage:
    """A Usage."""
    return Usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.blended_tokens)


def cancellation_of(answer: pb.CancelResponse) -> Cancellation:
    """A Cancellation."""
    return Cancellation(
        answer.found,
        answer.outcome,
        answer.last_step,
        answer.blocks_freed,
        answer.latency_us,
        cost_of(answer.cost),
    )


def cost_of(cost: pb.Cost) -> Cost:
    """Cost, field by field of the same name."""
    return Cost(**{name: getattr(cost, name) for name in Cost.__dataclass_fields__})


def timings_of(timings: pb.Timings) -> Timings:
    """Timings, field by field of the same name."""
    return Timings(**{name: getattr(timings, name) for name in Timings.__dataclass_fields__})


def choice_of(index: int, chunks: Sequence[Chunk], end: pb.ChoiceEnd | None) -> Choice:
    """One choice out of its chunks, in order."""
    last = next((chunk for chunk in reversed(chunks) if chunk.finish_reason), None)
    return Choice(
        index=index,
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        logprobs=tuple(item for chunk in chunks for item in chunk.logprobs),
        finish_reason=last.finish_reason if last else finish_of(end) if end is not None else "",
        stop_hit=last.stop_hit if last else "",
        ids_blake3=end.ids_blake3 if end is not None else b"",
        tool_calls=last.tool_calls if last else (),
        score=end.score if end is not None and end.HasField("score") else None,
        cumulative_logprob=end.cumulative_logprob if end is not None and end.HasField("cumulative_logprob") else None,
    )
