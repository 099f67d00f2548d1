"""Messages to prompt ids through the model's own chat template.

What a user wrote never becomes a control token, and otherwise ids are those of the reference renderer. Before rendering,
an unused Unicode noncharacter (the mark) is put inside every control token that a user typed, and inside every beginning
or end of one at a message's border; afterwards only unbroken control tokens are structure, and the mark is taken out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import jinja2
from octavo.artifacts import BadArtifact
from octavo.errors import FeatureOff, InvalidRequest

from octavo_gateway import sampling_checks as check
from octavo_gateway.caching.tools import MAX_DEPTH, canonical, canonical_tools, depth_of
from octavo_gateway.call_opening import PROBE, PROBE_TOOL, CallOpening, opening_in
from octavo_gateway.requests import ChatMessage
from octavo_gateway.template_sandbox import MAX_CHARS, TemplateLimit, compile_template, render_bounded, variables_of
from octavo_gateway.tokenizer import Tokenizer
from octavo_gateway.tool_calls import parse_json
from octavo_gateway.tool_prompt import told_in_text

ROLES: Final = ("system", "user", "assistant", "tool")
MAX_MESSAGES: Final = 4096
_NONCHARACTERS: Final = [chr(code) for code in range(0xFDD0, 0xFDF0)]
_BASE_STEPS: Final = 50_000
_STEPS_PER_MESSAGE: Final = 1_000
_PROBE: Final = (ChatMessage("user", "Hello"),)


class ChatRenderer:
    """A model's chat template, compiled once. BadArtifact at construction when it cannot render a plain user message."""

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template: jinja2.Template | None = None
        controls = sorted(tokenizer.control_texts, key=len, reverse=True)
        # Case is ignored, in case a template changes it.
        self._typed = re.compile("|".join(map(re.escape, controls)), re.IGNORECASE) if controls else None
        lowered = [text.lower() for text in controls]
        self._beginnings = tuple({text[:i] for text in lowered for i in range(1, len(text))})
        self._ends = tuple({text[i:] for text in lowered for i in range(1, len(text))})
        self._lowered = lowered
        self._knows_tools = False
        self._opening: CallOpening | None = None
        if source is None:
            return
        try:
            self._template = compile_template(source)
            self._knows_tools = "tools" in variables_of(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise BadArtifact(
                f"chat template: cannot be compiled ({error}); repair it or serve the model without"
            ) from error
        try:
            self._render(self._variables(_PROBE, True), len(_PROBE))
        except TemplateLimit as error:
            raise BadArtifact(f"chat template: {error}; repair it") from error
        except jinja2.exceptions.SecurityError as error:
            raise BadArtifact(f"chat template: touches what it must not ({error}); repair it") from error
        except Exception as error:
            raise BadArtifact(f"chat template: fails on a plain user message ({error}); repair it") from error
        self._opening = self._find_opening()

    def _find_opening(self) -> CallOpening | None:
        tools = [PROBE_TOOL] if self._knows_tools else []
        turn = list(PROBE) if tools else told_in_text(PROBE, ())
        try:
            prompt = self._render(self._variables(turn[:1], True, tools=tools), 1)
            return opening_in(prompt, self._render(self._variables(turn, False, tools=tools), len(turn)))
        except Exception:  # noqa: BLE001  a template that refuses calls raises what it likes, and has no opening
            return None

    def opening(self, choice: str) -> str:
        """What an answer begins with that must be a call. FeatureOff when this template writes calls in no form that is read here."""
        if self._opening is None:
            raise FeatureOff(
                f"tool_choice: {choice[:80]!r} needs a chat template that writes calls as JSON with the name first, which this model's does not; use auto or none",
                field="tool_choice",
            )
        return self._opening.of(choice)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        mark: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The prompt's text, tools in canonical order. InvalidRequest when the template refuses these messages; FeatureOff
        without a template."""
        if self._template is None:
            raise FeatureOff("this model has no chat template; use a raw prompt instead of messages")
        try:
            return self._render(self._variables(messages, add_generation_prompt, mark, tools), len(messages))
        except TemplateLimit as error:
            raise InvalidRequest(f"messages: the chat template gave up on them: {error}", field="messages") from error
        except jinja2.exceptions.SecurityError as error:
            raise InvalidRequest(
                f"messages: the chat template did what it must not: {error}", field="messages"
            ) from error
        except Exception as error:  # a template is a program of its own and raises what it likes
            raise InvalidRequest(f"messages: the chat template refuses them: {error}", field="messages") from error

    def encode(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        opening: str = "",
    ) -> list[int]:
        """Prompt ids of checked messages, and of the `opening` of the answer. InvalidRequest as `render`."""
        if not self._knows_tools:
            messages, tools = told_in_text(messages, tools), ()
        mark = _unused_mark(messages, json.dumps(canonical_tools(tools), ensure_ascii=False) if tools else "")
        text = self.render(messages, add_generation_prompt=add_generation_prompt, mark=mark, tools=tools)
        if opening and self._opening is not None:
            before = self._opening.before  # the template's own words; what follows has the client's
            text += self._opening.lead + before + self._broken(opening[len(before) :], mark)
        return self._tokenizer.one_bos(self._tokenizer.encode(text, parse_special=True, mark=mark))

    def encode_behind_system(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> list[int]:
        """Ids of checked messages as they follow a system message that is not given here: what `encode` gives for both less
        what it gives for the first alone. InvalidRequest as `render`, and for a template that has no such border."""
        if messages and messages[0].role == "system":
            raise InvalidRequest(
                "messages[0].role: the preload is the system message; leave yours out", field="messages[0].role"
            )
        if not self._knows_tools:
            messages = told_in_text(messages, ())
        mark = _unused_mark(messages)
        system = ChatMessage("system", "-")
        head = self.render([system], add_generation_prompt=False, mark=mark)
        text = self.render([system, *messages], add_generation_prompt=add_generation_prompt, mark=mark)
        if not head or not text.startswith(head):
            raise InvalidRequest(
                "cache.preload: this model's chat template does not keep a system message in front; preload the documents as raw text",
                field="cache.preload",
            )
        return self._tokenizer.encode(text[len(head) :], parse_special=True, mark=mark)

    def _render(self, variables: dict[str, Any], messages: int) -> str:
        assert self._template is not None
        return render_bounded(self._template, variables, max_steps=_BASE_STEPS + _STEPS_PER_MESSAGE * messages)

    def _variables(
        self,
        messages: Sequence[ChatMessage],
        add_generation_prompt: bool,
        mark: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        eos = self._tokenizer.eos_ids[0] if self._tokenizer.eos_ids else None
        return {
            "messages": [self._message(message, mark) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._tokenizer.text_of(self._tokenizer.bos_id),
            "eos_token": self._tokenizer.text_of(eos),
            "tools": canonical_tools(tools, lambda text: self._broken(text, mark)) or None,
            "documents": None,
        }

    def _message(self, message: ChatMessage, mark: str) -> dict[str, Any]:
        """As templates expect it; arguments as an object, since they are what a template writes as JSON."""
        plain: dict[str, Any] = {"role": message.role, "content": self._broken(message.content, mark)}
        if message.name:
            plain["name"] = self._broken(message.name, mark)
        if message.tool_call_id:
            plain["tool_call_id"] = self._broken(message.tool_call_id, mark)
        if message.tool_calls:
            made = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": parse_json(call.arguments)},
                }
                for call in message.tool_calls
            ]
            plain["tool_calls"] = canonical(made, lambda text: self._broken(text, mark))
        return plain

    def _broken(self, text: str, mark: str) -> str:
        """`text` with every control token in it, whole or cut by its border, broken by `mark`."""
        if not mark or self._typed is None:
            return text
        # The mark goes after each typed token's first character; searching on from there also finds overlapping ones.
        parts: list[str] = []
        position = 0
        while (match := self._typed.search(text, position)) is not None:
            parts += text[position : match.start() + 1], mark
            position = match.start() + 1
        parts.append(text[position:])
        broken = "".join(parts)
        # At its border a text may complete, or be completed to, a control token by what the template puts there.
        core = text.strip().lower()
        if not core:
            return broken
        inner = any(core in control for control in self._lowered)
        head, tail = len(broken) - len(broken.lstrip()), len(broken.rstrip())
        if inner or core.endswith(self._beginnings):
            broken = broken[:tail] + mark + broken[tail:]
        if inner or core.startswith(self._ends):
            broken = broken[:head] + mark + broken[head:]
        return broken


def _unused_mark(messages: Sequence[ChatMessage], beside: str = "") -> str:
    for mark in _NONCHARACTERS:
        if mark not in beside and not any(mark in text for message in messages for text in _texts(message)):
            return mark
    raise InvalidRequest(
        "messages: they use every Unicode noncharacter U+FDD0 to U+FDEF; leave one out", field="messages"
    )


def _texts(message: ChatMessage) -> Iterable[str]:
    """All that a client wrote in a message."""
    yield from (message.content, message.name, message.tool_call_id)
    for call in message.tool_calls:
        yield from (call.id, call.name, json.dumps(parse_json(call.arguments), ensure_ascii=False))


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """InvalidRequest, naming the field, for what no template should see."""
    if not messages:
        raise InvalidRequest("messages: there are none; send at least one", field="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages: {len(messages)} of them; send at most {MAX_MESSAGES}", field="messages")
    for i, message in enumerate(messages):
        if message.role not in ROLES:
            field = f"messages[{i}].role"
            raise InvalidRequest(
                f"{field}: {message.role[:40]!r} is unknown; use one of {', '.join(ROLES)}", field=field
            )
        check.text(f"messages[{i}].content", message.content)
        check.text(f"messages[{i}].name", message.name)
        check.text(f"messages[{i}].tool_call_id", message.tool_call_id)
        if message.tool_calls:
            _check_calls(f"messages[{i}]", message)
    if sum(len(text) for message in messages for text in _texts(message)) > MAX_CHARS:
        raise InvalidRequest(f"messages: more than {MAX_CHARS} characters in all; shorten them", field="messages")


def _check_calls(where: str, message: ChatMessage) -> None:
    if message.role != "assistant":
        raise check.invalid(f"{where}.tool_calls", f"the role is {message.role!r}; only an assistant calls tools")
    for i, call in enumerate(message.tool_calls):
        field = f"{where}.tool_calls[{i}]"
        if not call.name:
            raise check.invalid(f"{field}.function.name", "it is empty; name the function")
        arguments = parse_json(call.arguments)
        if not isinstance(arguments, dict) or depth_of(arguments) > MAX_DEPTH:
            problem = f"no JSON object of at most {MAX_DEPTH} levels; send what the answer had"
            raise check.invalid(f"{field}.function.arguments", problem)
        for text in (call.id, call.name, json.dumps(arguments, ensure_ascii=False)):
            check.text(field, text)
