"""Which answers are tool calls by their text, and how a growing text is split into content and calls."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_gateway.caching.tools import MAX_DEPTH
from octavo_gateway.tool_calls import CLOSE, LONGEST, OPEN, ToolText, call_id, is_tool_call

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


NAMES = frozenset({"weather", "now"})
WEATHER = ("weather", '{"city": "Bern"}')
NOW = ("now", "{}")
DEEP = f'{{"name": "now", "arguments": {{"x": {"[" * (MAX_DEPTH + 1)}{"]" * (MAX_DEPTH + 1)}}}}}'
TAGGED = f"{OPEN}\n{CALL}\n{CLOSE}"


def split(*pieces: str) -> tuple[str, list[tuple[str, str]]]:
    text = ToolText(NAMES)
    content = "".join(map(text.feed, pieces)) + text.finish()
    return content, [(call.name, call.arguments) for call in text.calls]


def told(*pieces: str) -> tuple[list[tuple[str, str]], list[int]]:
    """Names and arguments of all calls that began, put together from their parts; and the numbers of those that are calls."""
    text, grown = ToolText(NAMES), list[tuple[str, str]]()
    for step in (*(lambda piece=piece: text.feed(piece) for piece in pieces), text.finish):
        step()
        for part in text.take_parts():
            if part.name:
                assert part.number == len(grown)
                grown.append((part.name, ""))
            name, arguments = grown[part.number]
            grown[part.number] = name, arguments + part.arguments
            assert part.end == len(grown[part.number][1].encode())
    for call in text.calls:
        assert grown[call.number] == (call.name, call.arguments), "what was told is what the call is"
    return grown, [call.number for call in text.calls]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", [WEATHER]),
        (f" [{CALL}, {CALL}]\n", "", [WEATHER, WEATHER]),
        (TAGGED, "", [WEATHER]),
        (f"\n{TAGGED}\n{TAGGED}\n", "", [WEATHER, WEATHER]),
        (f"Let me see.\n\n{TAGGED}", "Let me see.", [WEATHER]),
        (f"One. \n Two. {TAGGED} Three.\n", "One. \n Two. Three.", [WEATHER]),
        (f"{OPEN}{CALL}", "", [WEATHER]),  # a stop string took the end
        (f'{OPEN}{{"name": "now", "parameters": {{}}}}{CLOSE}', "", [NOW]),
        (f"{OPEN}not JSON{CLOSE} {TAGGED}", f"{OPEN}not JSON{CLOSE}", [WEATHER]),
        (f"{OPEN}{OPEN}{CALL}{CLOSE}", OPEN, [WEATHER]),
        (f"{OPEN}" + "x" * (LONGEST + 20) + CLOSE, f"{OPEN}" + "x" * (LONGEST + 20) + CLOSE, []),
        ('{"name": "elsewhere", "arguments": {}}', '{"name": "elsewhere", "arguments": {}}', []),  # was not offered
        (f'{OPEN}{{"name": "elsewhere", "arguments": {{}}}}{CLOSE}', None, []),
        ('{"name": "now", "arguments": {"x": 1e999}}', None, []),
        ('{"name": "now", "arguments": {"x": "\\ud800"}}', None, []),
        (DEEP, None, []),  # no conversation may have it
        (f"{OPEN}{DEEP}{CLOSE}{TAGGED}", f"{OPEN}{DEEP}{CLOSE}", [WEATHER]),
        (f"{CALL} and so on", None, []),
        ("  {\n", None, []),
        ("a <tool_call", None, []),
        (" \n", None, []),
        ("", None, []),
    ],
)
def test_content_and_calls(text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    assert split(text) == (text if content is None else content, calls)
    if len(text) < LONGEST:
        assert split(*text) == split(text)


PARTS = st.sampled_from(
    [OPEN, CLOSE, CALL, TAGGED, "{", "}", "[", "]", " ", "\n", "a", "<", "é", '{"name": "now", "arguments": {}}']
)


@given(st.lists(PARTS, max_size=8), st.data())
def test_how_the_text_is_cut_changes_nothing(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    content, calls = split(text)
    assert split(*pieces) == (content, calls)
    if not calls:
        assert content == text
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


@given(
    st.lists(
        st.one_of(PARTS, st.sampled_from(['{"name": "now", "arguments": {', '"a": "b"', "}}", '"\\"', "\\"])),
        max_size=9,
    ),
    st.data(),
)
def test_what_is_told_of_growing_calls_is_true_however_the_text_is_cut(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    grown, numbers = told(*[text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    assert (grown, numbers) == told(text) == told(*text)
    for number, (_, arguments) in enumerate(grown):
        assert is_json(arguments) == (number in numbers), "arguments that can be read are a call's"


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "grown", "numbers"),
    [
        (TAGGED, [WEATHER], [0]),
        (CALL, [WEATHER], [0]),
        (f"[{CALL}, {CALL}]", [WEATHER, WEATHER], [0, 1]),
        (
            f"I see. {TAGGED}\n{OPEN}" + '{"name":"now","parameters":{"é":[1,"]}"]}}' + CLOSE,
            [WEATHER, ("now", '{"é":[1,"]}"]}')],
            [0, 1],
        ),
        (f'{OPEN}{{"arguments": {{"city": "Bern"}}, "name": "weather"}}{CLOSE}', [WEATHER], [0]),  # told whole
        (
            f'{OPEN}{{"name": "weather", "arguments": {{"city": Bern}}}}{CLOSE} {TAGGED}',
            [("weather", '{"city": Bern'), WEATHER],
            [1],
        ),
        (f'{OPEN}{{"name": "weather", "arguments": {{"city": "Be', [("weather", '{"city": "Be')], []),
        (f"{CALL} and so on", [("weather", '{"city": "Bern"')], []),
        (f"{OPEN}{CALL[:-1]}, 1}}{CLOSE}", [("weather", '{"city": "Bern"')], []),
        ('{"name": "now", "arguments": {}, "arguments": {"a": 1}}', [("now", "{")], []),  # says two things
        ('{"name": "now", "arguments": {}, "name": "weather"}', [("now", "{")], []),
        ('{"name": "elsewhere", "arguments": {}}', [], []),
        ('{"name": "now", "arguments": "{}"}', [], []),
        (f'{OPEN}{{"name": "now", "arguments": {{"x": 1e999}}}}{CLOSE}', [("now", '{"x": 1e999')], []),
        ('{"name": ' + " " * 2000 + '"now", "arguments": {}}', [NOW], [0]),  # its head is too long to wait for
        ("It is warm.", [], []),
    ],
)
def test_calls_are_told_as_they_grow(text: str, grown: list[tuple[str, str]], numbers: list[int]) -> None:
    assert told(text) == told(*text) == (grown, numbers)


def test_arguments_come_with_the_text_and_only_their_last_brace_waits() -> None:
    text = ToolText(NAMES)
    assert text.feed(f'{OPEN}\n{{"name": "weather", "argum') == "" and not text.take_parts()
    text.feed('ents": {"city": "Be')
    assert text.take_parts() == [(0, "weather", '{"city": "Be', 12)]
    text.feed('rn"}}')
    assert text.take_parts() == [(0, "", 'rn"', 15)]
    text.feed("\n</tool")
    assert not text.take_parts()
    text.feed("_call>")
    assert text.take_parts() == [(0, "", "}", 16)]


def test_each_closing_tag_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening tags without end cost what their text costs, not its square."""
    tried: list[int] = []
    monkeypatch.setattr(ToolText, "_calls_of", lambda self, text: tried.append(len(text)) or [])
    for text in (OPEN * 50_000, OPEN * 5000 + CLOSE, f"{OPEN} " * 5000 + "{" + CLOSE):
        tried.clear()
        assert split(text) == (text, []) and len(tried) <= 1


def test_content_is_not_held_back_for_longer_than_it_may_be_a_call() -> None:
    text = ToolText(NAMES)
    assert text.feed("The sky") == "The sky" and text.feed(" is <") == " is" and text.feed("b>blue") == " <b>blue"


def test_a_call_has_the_same_name_for_everyone() -> None:
    assert call_id("r", 0, 1) == call_id("r", 0, 1) != call_id("r", 1, 0)
    assert call_id("r", 0, 1).startswith("call_") and len(call_id("r", 0, 1)) == 29
