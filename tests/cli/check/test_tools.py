"""The judge of tool calls on answers that were written down."""

from __future__ import annotations

from dataclasses import replace

import pytest
from octavo.client import Choice, Completion, ToolCall
from octavo_cli.check.result import Wrong
from octavo_cli.check.tools import conversation, has_call, judge

TEXT = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Berlin"}}\n</tool_call>'
CALL = ToolCall("call_1", "get_weather", '{"city": "Berlin"}')


def answer(text: str = TEXT, reason: str = "tool_calls", *calls: ToolCall) -> Completion:
    return Completion("r", "m", (Choice(0, text, finish_reason=reason, tool_calls=calls),))  # type: ignore[arg-type]


PLAIN = answer("It is warm.", "stop")


def test_a_call_that_is_what_the_text_says_is_right() -> None:
    assert judge(answer(TEXT, "tool_calls", CALL), PLAIN) == "Berlin"


@pytest.mark.parametrize(
    ("done", "refused", "said"),
    [
        (answer(TEXT, "stop"), PLAIN, "ended with 'stop' and 0 tool calls"),
        (answer(TEXT, "tool_calls", CALL, CALL), PLAIN, "2 tool calls"),
        (answer(TEXT, "tool_calls", replace(CALL, arguments='{"city": "Berlin"')), PLAIN, "are no JSON"),
        (answer(TEXT, "tool_calls", replace(CALL, arguments='{"city": "Bern"}')), PLAIN, "the answer says"),
        (answer(TEXT, "tool_calls", replace(CALL, name="f")), PLAIN, "the answer says"),
        (answer(TEXT, "tool_calls", replace(CALL, id="")), PLAIN, "the answer says"),
        (answer(TEXT, "tool_calls", CALL), answer(TEXT, "tool_calls", CALL), "tool_choice none"),
    ],
)
def test_every_fault_is_named(done: Completion, refused: Completion, said: str) -> None:
    with pytest.raises(Wrong, match=said):
        judge(done, refused)


def test_which_texts_are_calls() -> None:
    assert has_call(TEXT) and has_call('{"name": "get_weather", "arguments": {}}')
    assert not any(
        map(has_call, ("", "It is warm.", '{"name": "other", "arguments": {}}', "[]", "<tool_call></tool_call>"))
    )
    assert [message.role for message in conversation("Oslo")][-2:] == ["assistant", "user"]
