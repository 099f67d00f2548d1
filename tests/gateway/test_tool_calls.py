"""Which answers are tool calls by their text."""

from __future__ import annotations

import pytest
from octavo_gateway.tool_calls import LONGEST, is_tool_call

CALL = '{"name": "weather", "arguments": {"city": "Bern"}}'


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"\n  {CALL}\n",
        f"[{CALL}, {CALL}]",
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tool_call>{CALL}</tool_call> <tool_call>{CALL}</tool_call>",
        '{"name": "now", "parameters": {}}',
    ],
)
def test_calls(text: str) -> None:
    assert is_tool_call([text]) and is_tool_call(list(text)) and is_tool_call([text[:-1]], text[-1:])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sure: " + CALL,
        CALL[:-1],
        CALL + " and so on",
        "[]",
        "[1]",
        f"[[{CALL}]]",
        '{"name": "", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": "x", "arguments": "{}"}',
        '{"city": "Bern"}',
        f"<tool_call>{CALL}",
        f"<tool_call>{CALL}</tool_call> done",
        "<tool_call></tool_call>",
        "[" * 50_000,
        '{"name": "x", "arguments": {"a": "' + "b" * LONGEST + '"}}',
    ],
)
def test_everything_else(text: str) -> None:
    assert not is_tool_call([text]) and not is_tool_call(list(text))
