"""Tools for a chat template that has no place for them: told in the system message, calls and results as the messages' own text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from octavo_gateway.caching.tools import canonical, canonical_tools
from octavo_gateway.requests import ChatMessage, ToolCall
from octavo_gateway.tool_calls import CLOSE, OPEN, parse_json

HEAD: Final = "You can call these functions, each described by one line of JSON:"
TAIL: Final = (
    "To call one, answer with its name and arguments as JSON in tags, once for each call, like this:\n"
    f'{OPEN}\n{{"name": "function", "arguments": {{"argument": "value"}}}}\n{CLOSE}\n'
    "The results come in the next messages. When no function helps, answer in words."
)


def told_in_text(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    """The conversation in plain messages: tools behind the system message's text, calls as tagged JSON in the assistant's."""
    plain = [replace(message, content=_with_calls(message), tool_calls=(), tool_call_id="") for message in messages]
    if not tools:
        return plain
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in canonical_tools(tools)]
    told = "\n".join((HEAD, *lines, TAIL))
    if plain[0].role == "system":
        return [replace(plain[0], content=f"{plain[0].content}\n\n{told}"), *plain[1:]]
    return [ChatMessage("system", told), *plain]


def _with_calls(message: ChatMessage) -> str:
    calls = [f"{OPEN}\n{_as_json(call)}\n{CLOSE}" for call in message.tool_calls]
    return "\n".join((*([message.content] if message.content or not calls else []), *calls))


def _as_json(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": canonical(parse_json(call.arguments))}, ensure_ascii=False)
