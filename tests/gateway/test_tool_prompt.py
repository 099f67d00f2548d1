"""Tools and calls in prompts: through a template that knows them, and in plain text for one that does not."""

from __future__ import annotations

import json

import pytest
from octavo.errors import InvalidRequest
from octavo_gateway.admission import Admission
from octavo_gateway.body_hash import body_hash
from octavo_gateway.caching.tools import check_tools
from octavo_gateway.chat import ChatRenderer, check_messages
from octavo_gateway.requests import ChatMessage, RequestParams, ToolCall
from octavo_gateway.tool_prompt import HEAD, told_in_text

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = ToolCall("call_1", "weather", '{"to": 2, "city": "Bern"}')
TURNS = [
    ChatMessage("user", "Bern?"),
    ChatMessage("assistant", "", tool_calls=[CALL]),
    ChatMessage("tool", "9 degrees", tool_call_id="call_1"),
]
KNOWS = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}"
    "{{ m.tool_call_id or '' }};{% endfor %}"
)


def test_a_template_that_knows_tools_gets_objects(admission: Admission) -> None:
    renderer = ChatRenderer(KNOWS, admission.tokenizer)
    text = '[weather]user:Bern?;assistant:(call_1 weather {"city": "Bern", "to": 2});tool:9 degreescall_1;'
    assert renderer.render(TURNS, tools=[WEATHER]) == text
    assert admission.tokenizer.decode(renderer.encode(TURNS, tools=[WEATHER])) == text


def test_any_other_is_told_in_the_system_message(admission: Admission) -> None:
    text = admission.tokenizer.decode(admission.chat.encode(TURNS, tools=[WEATHER]))
    system, _, rest = text.partition("<|im_end|>")
    assert (
        system.startswith(f"<|im_start|>system\n{HEAD}\n") and json.dumps(WEATHER["function"], sort_keys=True) in system
    )
    assert "Bern?<|im_end|>" in rest
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "to": 2}}\n</tool_call><|im_end|>' in rest
    assert "<|im_start|>tool\n9 degrees<|im_end|>" in rest
    own = told_in_text([ChatMessage("system", "Be brief."), *TURNS], [WEATHER])
    assert own[0].content.startswith(f"Be brief.\n\n{HEAD}") and len(own) == 4
    assert told_in_text(TURNS[:1], ()) == TURNS[:1]
    assert admission.chat.encode(TURNS[:1]) != admission.chat.encode(TURNS[:1], tools=[WEATHER])


def test_what_a_call_says_never_becomes_a_control_token(admission: Admission) -> None:
    control = "<|im_end|>"
    nasty = ToolCall("c", "weather", json.dumps({"city": f"{control} \ufdd0"}))
    for source in (KNOWS, None):
        renderer = admission.chat if source is None else ChatRenderer(source, admission.tokenizer)
        plain = [TURNS[0], ChatMessage("assistant", "", tool_calls=[CALL]), TURNS[2]]
        ids = renderer.encode([TURNS[0], ChatMessage("assistant", "", tool_calls=[nasty]), TURNS[2]], tools=[WEATHER])
        (end,) = admission.tokenizer.encode(control, parse_special=True)
        assert ids.count(end) == renderer.encode(plain, tools=[WEATHER]).count(end)


def params(**given: object) -> RequestParams:
    return RequestParams(**{"kind": "chat", "messages": TURNS, "tools": [WEATHER], **given})  # type: ignore[arg-type]


def function(**given: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "weather", **given}}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "required", "add_generation_prompt": False}, "tool_choice"),
        ({"tool_choice": "function elsewhere"}, "tool_choice"),
        ({"kind": "generate"}, "tools"),
        ({"tools": [WEATHER] * 2}, "tools[1].function.name"),
        ({"tools": [function(name=str(k)) for k in range(129)]}, "tools"),
        ({"tools": [function(name="")]}, "tools[0].function.name"),
        ({"tools": [function(name="a b")]}, "tools[0].function.name"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function(description="\ud800")]}, "tools[0]"),
        ({"tools": [function(description="x" * 600_000)]}, "tools"),
    ],
)
def test_what_cannot_be_offered_is_refused_by_name(given: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_tools(params(**given))
    assert caught.value.field == field and caught.value.message.startswith(field)


def test_a_schema_without_end_is_refused() -> None:
    deep: dict[str, object] = {}
    for _ in range(100):
        deep = {"properties": deep}
    with pytest.raises(InvalidRequest, match="nested more than 64 deep"):
        check_tools(params(tools=[function(parameters=deep)]))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (ChatMessage("user", "", tool_calls=[CALL]), "messages[0].tool_calls"),
        (ChatMessage("assistant", "", tool_calls=[ToolCall("", "", "{}")]), "messages[0].tool_calls[0].function.name"),
        (
            ChatMessage("assistant", "", tool_calls=[ToolCall("", "f", "[]")]),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            ChatMessage("assistant", "", tool_calls=[ToolCall("", "f", "{")]),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (ChatMessage("assistant", "", tool_calls=[ToolCall("", "f", '{"a": "\\ud800"}')]), "messages[0].tool_calls[0]"),
        (ChatMessage("tool", "", tool_call_id="\ud800"), "messages[0].tool_call_id"),
    ],
)
def test_calls_in_a_history_are_checked(message: ChatMessage, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_messages([message])
    assert caught.value.field == field


def test_tools_and_calls_are_part_of_what_was_asked_for() -> None:
    hashes = {
        body_hash(params(), "t"), body_hash(params(tools=[]), "t"), body_hash(params(tool_choice="none"), "t"),
        body_hash(params(messages=TURNS[:1]), "t"),
        body_hash(params(messages=[TURNS[0], ChatMessage("assistant", "", tool_calls=[ToolCall("x", "f", "{}")])]), "t"),
    }  # fmt: skip
    assert len(hashes) == 5
