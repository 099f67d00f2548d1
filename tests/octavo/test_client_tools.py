"""Tools and calls as the SDK takes them: our own shape and OpenAI's."""

from __future__ import annotations

from typing import Any

import pytest
from octavo.client import Choice, Completion, Message, ToolCall, ToolCallPart
from octavo.client.stream import _beyond_parts
from octavo.client.wire import chat_request, generate_request, wire_messages
from octavo.errors import InvalidRequest

CALL = ToolCall("call_1", "weather", '{"city": "Bern"}')
TOOL = {"name": "weather", "description": "Of a city.", "parameters": {"type": "object"}}
HELLO = [Message("user", "Bern?")]


def test_tools_in_either_shape_are_the_same_request() -> None:
    one = chat_request(HELLO, {"tools": [TOOL], "tool_choice": "none"})
    assert one == chat_request(HELLO, {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "none"})
    (tool,) = one.tools
    assert (tool.name, tool.description, tool.parameters) == ("weather", "Of a city.", '{"type": "object"}')
    assert chat_request(HELLO, {"tools": [{"name": "now"}]}).tools[0].parameters == ""


def test_calls_in_a_history_in_either_shape_are_the_same_message() -> None:
    plain = {"id": CALL.id, "name": CALL.name, "arguments": CALL.arguments}
    openai = {"id": CALL.id, "type": "function", "function": {"name": CALL.name, "arguments": CALL.arguments}}
    ours = wire_messages([Message("assistant", "", tool_calls=(CALL,)), Message("tool", "9", tool_call_id="call_1")])
    for shape in (plain, openai, CALL):
        theirs: list[Any] = [
            {"role": "assistant", "content": None, "tool_calls": [shape]},
            {"role": "tool", "content": "9", "tool_call_id": "call_1"},
        ]
        assert wire_messages(theirs) == ours


@pytest.mark.parametrize(
    "tool",
    [
        {}, {"name": 7}, "weather", {"name": "f", "parameters": {"x": object()}}, {"function": None},
        {"function": {"description": "no name"}}, {"name": "f", "description": 7},
    ],
)  # fmt: skip
def test_a_tool_that_cannot_be_sent_is_named(tool: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_request(HELLO, {"tools": [TOOL, tool]})
    assert caught.value.field == "tools[1]"


def test_a_choice_is_a_word_or_names_a_function() -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    assert chat_request(HELLO, {"tools": [TOOL], "tool_choice": choice}).tool_choice == "function weather"
    for wrong in ({"type": "function"}, 7, {"function": "weather"}):
        with pytest.raises(InvalidRequest, match="use auto, none, required") as caught:
            chat_request(HELLO, {"tools": [TOOL], "tool_choice": wrong})  # type: ignore[typeddict-item]
        assert caught.value.field == "tool_choice"


@pytest.mark.parametrize("call", [{}, {"function": {"name": "f"}}, "f", {"name": "f", "arguments": {}}])
def test_a_call_that_cannot_be_sent_is_named(call: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire_messages([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert caught.value.field == "messages[0]"


def test_raw_prompts_have_no_tools() -> None:
    with pytest.raises(InvalidRequest, match="for chat only"):
        generate_request("x", {"tools": [TOOL]})


def test_an_answer_is_the_next_turn_of_its_conversation() -> None:
    done = Completion("r", "m", (Choice(0, "<tool_call>...", finish_reason="tool_calls", tool_calls=(CALL,)),))
    assert done.message == Message("assistant", "", tool_calls=(CALL,)) and done.tool_calls == (CALL,)
    assert Completion("r", "m", (Choice(0, "Hi"),)).message == Message("assistant", "Hi")
    for text, said in (("I look.\n<tool_call>...</tool_call>", "I look."), ('{"name": "<tool_call>"}', "")):
        done = Completion("r", "m", (Choice(0, text, tool_calls=(CALL,)),))
        assert done.message == Message("assistant", said, tool_calls=(CALL,))


def test_parts_of_a_call_that_arrive_twice_are_cut_away() -> None:
    known: dict[int, int] = {}
    first = ToolCallPart(0, "call_1", "weather", '{"a": "é', 9)
    assert _beyond_parts((first,), known) == (first,) and known == {0: 9}
    assert _beyond_parts((first,), known) == ()
    again = (ToolCallPart(0, "call_1", "weather", '{"a": "éb"', 11), ToolCallPart(1, "call_2", "now", "", 0))
    assert _beyond_parts(again, known) == (ToolCallPart(0, "", "", 'b"', 11), again[1])
    assert _beyond_parts(again, known) == () and known == {0: 11, 1: 0}
