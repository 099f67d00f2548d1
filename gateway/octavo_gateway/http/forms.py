"""How the two endpoints show the same deltas: chat.completion and text_completion, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import UNSET, UnsetType

from octavo_gateway.http.logprobs import CompletionLogprobsForm, chat_logprobs
from octavo_gateway.http.shapes import (
    BeamBody,
    CallBody,
    CalledFunction,
    CalledPart,
    CallPartBody,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatMessageBody,
    CompletionChoice,
)
from octavo_gateway.requests import Delta, TokenLogprob, ToolCall, ToolCallPart
from octavo_gateway.tool_calls import ToolText


@dataclass(slots=True)
class WholeChoice:
    """All deltas of one choice, joined."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    echoed: str = ""  # text that came before any token
    finish_reason: str | None = None
    stop_hit: str = ""
    tokens: int = 0
    tool_calls: Sequence[ToolCall] = ()
    beam: BeamBody | UnsetType = UNSET

    def take(self, delta: Delta) -> None:
        if is_echo(delta) and not self.tokens:
            self.echoed += delta.text
        self.texts.append(delta.text)
        self.logprobs += delta.logprobs
        self.tokens = delta.token_end
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.stop_hit = delta.stop_hit or self.stop_hit
        self.tool_calls = delta.tool_calls or self.tool_calls
        self.beam = beam_body(delta) or self.beam


class Ended(Protocol):
    """What a choice's end is read off: a delta, or the whole choice."""

    @property
    def finish_reason(self) -> str | None: ...
    @property
    def stop_hit(self) -> str: ...


@dataclass(frozen=True, slots=True)
class StopReasons:
    """What the caller asked to stop at; the model's own end token is no such thing, and is told as null."""

    strings: frozenset[str] = frozenset()
    token_ids: frozenset[int] = frozenset()

    def shown(self, end: Ended) -> str | int | UnsetType | None:
        """`stop_reason`: the stop string, the stop token id, null, or nothing while the choice goes on."""
        if end.finish_reason is None:
            return UNSET
        hit = end.stop_hit
        if hit in self.strings:
            return hit
        return int(hit) if hit.isdecimal() and int(hit) in self.token_ids else None


class Form(Protocol):
    """One endpoint's view; `index` is the choice's place in the response."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def chunk(self, index: int, delta: Delta) -> Any | None:
        """The chunk's choice, or None when the delta has nothing to show."""

    def whole(self, index: int, choice: WholeChoice) -> Any:
        """The choice of a response that is not streamed."""


def beam_body(delta: Delta) -> BeamBody | UnsetType:
    """What the beam that ends with this delta counts."""
    return UNSET if delta.beam is None else BeamBody(*delta.beam)


def is_echo(delta: Delta) -> bool:
    """Text without tokens of its own before the first token: an echoed prompt."""
    return bool(delta.text) and not delta.token_ids and not delta.logprobs and delta.finish_reason is None


class ChatForm:
    """POST /v1/chat/completions. With `tools`, text that is a call is shown as one: in chunks as it grows, otherwise whole."""

    id_prefix, whole_object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, logprobs: bool, stops: StopReasons, tools: frozenset[str] = frozenset()) -> None:
        self._logprobs = logprobs
        self._stops = stops
        self._tools = tools
        self._splits: dict[int, ToolText] = {}
        self._begun: set[int] = set()

    def _content(self, index: int, delta: Delta) -> str:
        """The delta's text that is no part of a call."""
        if not self._tools:
            return delta.text
        split = self._splits.setdefault(index, ToolText(self._tools))
        content = split.feed(delta.text)
        return content + split.finish() if delta.finish_reason else content

    def chunk(self, index: int, delta: Delta) -> ChatChunkChoice | None:
        """The role goes with the first chunk of a choice that has something to show."""
        content = self._content(index, delta)
        if not (content or delta.call_parts or delta.finish_reason) and not (self._logprobs and delta.logprobs):
            return None
        first = index not in self._begun
        self._begun.add(index)
        calls = [_part(part) for part in delta.call_parts] or UNSET
        empty = None if calls else ""
        return ChatChunkChoice(
            index,
            ChatDelta("assistant" if first else UNSET, content or empty if content or first else UNSET, calls),
            chat_logprobs(delta.logprobs) if self._logprobs else None,
            delta.finish_reason,
            self._stops.shown(delta),
            beam_body(delta),
        )

    def whole(self, index: int, choice: WholeChoice) -> ChatChoice:
        content: str | None = "".join(choice.texts)
        if choice.tool_calls:
            split = ToolText(self._tools)
            content = (split.feed("".join(choice.texts)) + split.finish()) or None
        return ChatChoice(
            index,
            ChatMessageBody(content, tool_calls=[_call(call) for call in choice.tool_calls] or UNSET),
            chat_logprobs(choice.logprobs) if self._logprobs else None,
            choice.finish_reason,
            self._stops.shown(choice),
            choice.beam,
        )


def _call(call: ToolCall) -> CallBody:
    return CallBody(call.id, CalledFunction(call.name, call.arguments))


def _part(part: ToolCallPart) -> CallPartBody:
    if not part.name:
        return CallPartBody(part.number, CalledPart(part.arguments))
    return CallPartBody(part.number, CalledPart(part.arguments, part.name), part.id, "function")


class CompletionForm:
    """POST /v1/completions."""

    id_prefix, whole_object, chunk_object = "cmpl-", "text_completion", "text_completion"

    def __init__(self, logprobs: bool, stops: StopReasons) -> None:
        self._logprobs = logprobs
        self._stops = stops
        self._forms: dict[int, CompletionLogprobsForm] = {}

    def chunk(self, index: int, delta: Delta) -> CompletionChoice | None:
        if not delta.text and not delta.finish_reason and not (self._logprobs and delta.logprobs):
            return None
        logprobs = None
        if self._logprobs:
            form = self._forms.setdefault(index, CompletionLogprobsForm())
            if is_echo(delta):
                form.skip(delta.text)
            logprobs = form.take(delta.logprobs)
        shown = self._stops.shown(delta)
        return CompletionChoice(index, delta.text, logprobs, delta.finish_reason, shown, beam_body(delta))

    def whole(self, index: int, choice: WholeChoice) -> CompletionChoice:
        logprobs = None
        if self._logprobs:
            form = CompletionLogprobsForm()
            form.skip(choice.echoed)
            logprobs = form.take(choice.logprobs)
        text, shown = "".join(choice.texts), self._stops.shown(choice)
        return CompletionChoice(index, text, logprobs, choice.finish_reason, shown, choice.beam)
