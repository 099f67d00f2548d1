"""Stop strings: exact cuts, no leaks, no dependence on token borders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo_gateway.stops import StopMatcher


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None, list[str]]:
    """Whole text shown, the stop that hit, and what was shown after each piece."""
    matcher = StopMatcher(stops, include=include)
    shown = []
    for piece in pieces:
        shown.append(matcher.feed(piece))
        if matcher.hit:
            return "".join(shown), matcher.hit.stop, shown
    shown.append(matcher.flush())
    return "".join(shown), None, shown


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first end wins, then the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    st.lists(st.text("ab\n🌶", max_size=5), max_size=12),
    st.lists(st.text("ab\n🌶", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_any_chunking_cuts_where_the_text_says(pieces: list[str], stops: list[str]) -> None:
    text, hit, shown = run(pieces, stops)
    assert (text, hit) == reference("".join(pieces), stops)
    for i in range(len(shown)):
        assert "".join(pieces).startswith("".join(shown[: i + 1]))


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_only_a_possible_beginning_is_held_back(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = fed = ""
    for piece in pieces:
        fed += piece
        shown += matcher.feed(piece)
        if matcher.hit:
            return
        held = fed[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize("include", [False, True])
def test_nothing_of_a_long_stop_leaks(include: bool) -> None:
    text, hit, shown = run(["AB", "C", "DEF", "GH", "IJK", "LM"], ["DEFGHIJ"], include=include)
    assert hit == "DEFGHIJ"
    assert text == ("ABCDEFGHIJ" if include else "ABC")
    assert shown[2:4] == ["", ""]


def test_near_miss_is_flushed() -> None:
    assert run(["x DEFG", "HI?", " y"], ["DEFGHIJ"]) == ("x DEFGHI? y", None, ["x ", "DEFGHI?", " y", ""])


def test_end_of_text_flushes_what_was_held() -> None:
    assert run(["x\n"], ["\n\n"])[0] == "x\n"


def test_one_stop_is_a_prefix_of_the_other() -> None:
    assert run(["xABC"], ["ABC", "AB"])[:2] == ("x", "AB")
    assert run(["xA", "B", "C"], ["ABC", "AB"])[:2] == ("x", "AB")


def test_stop_equal_to_the_first_output() -> None:
    assert run(["END", "more"], ["END"])[:2] == ("", "END")


def test_stops_that_end_together_take_the_longest() -> None:
    assert run(["abc"], ["bc", "abc"])[:2] == ("", "abc")


def test_unarmed_lets_a_stop_pass_and_still_holds_the_next_beginning() -> None:
    matcher = StopMatcher(["##"])
    assert matcher.feed("a##", armed=False) == "a"
    assert matcher.hit is None
    assert matcher.feed("b", armed=True) == "##b"
    assert matcher.feed("#") == ""
    assert matcher.feed("#") == ""
    assert matcher.hit is not None


def test_nothing_after_a_hit() -> None:
    matcher = StopMatcher(["."])
    assert matcher.feed("a.b") == "a"
    assert matcher.feed("c") == ""
    assert matcher.flush() == ""
