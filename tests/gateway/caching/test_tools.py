"""Tool schemas in canonical order: what two clients say in another order is the same prompt."""

from __future__ import annotations

from typing import Any

import pytest
from octavo_gateway.admission import Admission
from octavo_gateway.caching.tools import canonical_tools
from octavo_gateway.chat import ChatRenderer
from octavo_gateway.requests import ChatMessage

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"required": ["b", "a"], "properties": {"b": {"type": "x"}, "a": {}}},
    },
}
CLOCK = {"function": {"name": "clock", "parameters": {}}, "type": "function"}


def turned(value: Any) -> Any:
    """The same with every object's keys the other way round."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


def test_the_order_of_tools_and_keys_does_not_matter_and_that_of_lists_does() -> None:
    one, other = canonical_tools([WEATHER, CLOCK]), canonical_tools([turned(CLOCK), turned(WEATHER)])
    assert repr(one) == repr(other)
    assert one[1]["function"]["parameters"]["required"] == ["b", "a"]
    swapped = {"type": "function", "function": {"name": "w", "parameters": {"required": ["a", "b"]}}}
    again = {"type": "function", "function": {"name": "w", "parameters": {"required": ["b", "a"]}}}
    assert canonical_tools([swapped]) != canonical_tools([again])


@pytest.fixture
def renderer(admission: Admission) -> ChatRenderer:
    return ChatRenderer("{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0].content }}", admission.tokenizer)


def test_a_template_gets_them_in_that_order(renderer: ChatRenderer) -> None:
    messages = [ChatMessage("user", "hi")]
    ids = renderer.encode(messages, tools=[WEATHER, CLOCK])
    assert ids == renderer.encode(messages, tools=[turned(CLOCK), turned(WEATHER)])
    assert ids != renderer.encode(messages)


def test_a_tool_s_text_never_becomes_a_control_token(renderer: ChatRenderer, admission: Admission) -> None:
    control = next(iter(admission.tokenizer.control_texts))
    tool = {"type": "function", "function": {"name": "x", "description": f"{control} \ufdd0", control: 1}}
    ids = renderer.encode([ChatMessage("user", "hi")], tools=[tool])
    plain = set(admission.tokenizer.encode(control, parse_special=True))
    assert not plain & set(ids)
