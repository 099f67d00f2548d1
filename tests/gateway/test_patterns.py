"""Regular expressions of schemas: what ECMA-262 means by them is what is matched, and what cannot be is said to be so."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_gateway.bounded_steps import Steps, TooManySteps
from octavo_gateway.patterns import NoPattern, Patterns, as_re2


def finds(pattern: str, text: str) -> bool | None:
    return Patterns(Steps(10**6)).finds(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        ("b", "abc", "ac"),
        ("^[A-Z]{2}[0-9]{2,4}$", "CH123", "CH12345"),
        ("a$", "ba", "a\n"),
        (".", "a", "\u2028"),
        ("a.c", "a\x0bc", "a\nc"),
        (r"^\s$", "\u3000", "a"),
        (r"^\s$", "\x0b", "\u200b"),
        (r"^\S$", "\u200b", "\u00a0"),
        (r"^[\s\S]+$", "a\n\u2028b", ""),
        (r"^[^\s]$", "\u0085", "\u2003"),
        (r"^[\S]$", "é", "\ufeff"),
        (r"^\d+\w*$", "12_a", "٣"),
        (r"^\D$", "٣", "3"),
        (r"\u00e9", "café", "cafe"),
        (r"^\ud83d\ude00$", "😀", "\ufffd"),
        (r"^\u{1F600}$", "😀", "x"),
        (r"^\x41\cJ\0$", "A\n\0", "AJ0"),
        (r"^[\b]$", "\b", "b"),
        (r"\bcat\b", "a cat.", "concat"),
        (r"\Bat", "cat", "at"),
        (r"^\p{Lu}\p{Letter}+$", "Ärger", "ärger"),
        (r"^\p{Script=Greek}+$", "αβγ", "abc"),
        (r"^\P{L}+$", "12", "1a"),
        (r"^\p{gc=Decimal_Number}$", "٣", "x"),
        ("^(?<year>[0-9]{4})-(?:0[1-9]|1[0-2])$", "2024-12", "2024-13"),
        ("^(a|b)*?c$", "ababc", "abd"),
        (r"^[[a]+$", "[a", "b"),
        (r"^[[:alpha:]]$", ":]", "b"),  # no class by name in this language
        (r"^[\]\-/]\/$", "-/", "a/"),
        (r"^[\^a]$", "^", "b"),
        ("^[^]$", "\n", ""),
        ("^a[]*$", "a", "ab"),
        ("^a{,3}$", "a{,3}", "aa"),
        (r"^https?://[^\s/$.?#].[^\s]*$", "https://a.example/x", "ftp://a"),
        ("^.{1,1000}$", "é" * 1000, "é" * 1001),
        ("", "", None),
    ],
)  # fmt: skip
def test_what_ecma_script_means(pattern: str, found: str, missed: str | None) -> None:
    assert finds(pattern, found) is True
    assert missed is None or finds(pattern, missed) is False


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", r"(a)\1", r"(?<n>a)\k<n>", "(?P<n>a)", "(?i)a", r"\Aa", r"a\z", r"\Qa\E", r"\pL",
        r"\p{Emoji}", r"\p{Nothing=X}", r"[a-\s]", r"[\B]", r"\01", r"\e", r"\u12", "a**", "a++", "(", ")", "[a", "a\\", "a{1001}",
        r"\ud83d", r"(?:\p{L}{900}){9}", "\ud83d", r"\x{41}",
    ],
)  # fmt: skip
def test_what_cannot_be_matched_is_told(pattern: str) -> None:
    assert finds(pattern, "a") is None


def test_one_that_is_never_right_is_named_by_an_error_of_its_own() -> None:
    with pytest.raises(NoPattern):
        as_re2("(?=a)")


def test_steps_are_taken_for_making_and_matching() -> None:
    steps = Steps(1000)
    patterns = Patterns(steps)
    assert patterns.finds("^[a-z]+$", "abc") and steps.left > 990
    with pytest.raises(TooManySteps):
        patterns.finds("(?:a?){500}b", "a" * 100_000)
    steps = Steps(600)
    patterns = Patterns(steps)
    for _ in range(50):  # too large once, and known to be
        assert patterns.finds(r"\p{L}{900}", "a") is None
    assert 0 < steps.left < 88


ATOMS = st.sampled_from(
    ["a", "b", "ab", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", r"\W", "(?:)", "^", "$", r"\b", "1", "-"]
)


def longer(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantified = st.tuples(parts, st.sampled_from(["*", "+", "?", "*?", "+?", "{0,2}", "{1}", "{2,}"])).map(
        lambda pair: f"(?:{pair[0]}){pair[1]}"
    )
    either = st.tuples(parts, parts).map(lambda pair: f"(?:{pair[0]}|{pair[1]})")
    return quantified | either | st.tuples(parts, parts).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.recursive(ATOMS, longer, max_leaves=6), st.text("ab1- c", max_size=8))
def test_it_finds_what_pythons_engine_finds_where_both_languages_agree(pattern: str, text: str) -> None:
    assert finds(pattern, text) is (re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None)
