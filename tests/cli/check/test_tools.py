"""The judge of tool calls on answers that were written down."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from octavo.client import Choice, Completion, ToolCall
from octavo_cli.check.result import Wrong
from octavo_cli.check.tools import conversation, judge, said_calls

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


@pytest.mark.parametrize("words", ["I look it up.\n{}", "{} One moment.", "First:\n{}\nDone."])
def test_words_around_a_call_are_nothing_against_it(words: str) -> None:
    text = words.format(TEXT)
    assert judge(answer(text, "tool_calls", CALL), PLAIN) == "Berlin"
    with pytest.raises(Wrong, match="has 1 calls; it ended with 'stop' and 0 tool calls"):
        judge(answer(text, "stop"), PLAIN)


def test_each_of_several_calls_is_compared() -> None:
    other = replace(CALL, id="call_2", arguments='{"city": "Rome"}')
    text = f"{TEXT}\n{TEXT.replace('Berlin', 'Rome')}"
    assert judge(answer(text, "tool_calls", CALL, other), PLAIN) == "Berlin"
    with pytest.raises(Wrong, match="the answer says"):
        judge(answer(text, "tool_calls", CALL, CALL), PLAIN)
    with pytest.raises(Wrong, match="has 2 calls; it ended with 'tool_calls' and 1 tool calls"):
        judge(answer(text, "tool_calls", CALL), PLAIN)


def test_which_texts_have_calls() -> None:
    one = {"name": "get_weather", "arguments": {}}
    assert said_calls('{"name": "get_weather", "arguments": {}}') == [one] == said_calls(f"[{json.dumps(one)}]")
    assert (
        len(said_calls(TEXT))
        == len(said_calls(f"Well. {TEXT}"))
        == len(said_calls(TEXT.removesuffix("</tool_call>")))
        == 1
    )
    assert not any(
        map(said_calls, ("", "It is warm.", '{"name": "other", "arguments": {}}', "1", "<tool_call></tool_call>"))
    )
    assert [message.role for message in conversation("Oslo")][-2:] == ["assistant", "user"]
