"""Regular expressions of a schema, in ECMA-262's language, matched by RE2: in time that grows with the text, whatever they are.

RE2 speaks another dialect, so an expression is written anew first. What it has no means for (lookaround, references to groups), or what
would take more than a mebibyte as a program, cannot be matched here; nor is anything that only another language's dialect knows.
"""

from __future__ import annotations

import re
from typing import Any, Final

from octavo_gateway.bounded_steps import Steps

MAX_PROGRAM_BYTES: Final = 1 << 20
WORK_PER_STEP: Final = 4096
"""Instructions of a program times characters of a text in the time of one step: 4 ns each, where RE2's fast ways are of no use."""
COMPILED_PER_STEP: Final = 64
"""Instructions that are made in it."""
REFUSED_STEPS: Final = 512
"""Of an expression that is found too large while it is made: 8 ms."""

_SPACES: Final = r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_NO_SPACES: Final = (
    r"\x{0}-\x{8}\x{e}-\x{1f}!-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}"
    r"\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}"
)
"""As ranges: within brackets nothing else says what is no space."""
_NO_LINE_END: Final = r"[^\n\r\x{2028}\x{2029}]"
_ANYTHING: Final = r"\x{0}-\x{10ffff}"
_CATEGORIES: Final = {
    "Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Mark": "M", "Number": "N", "Decimal_Number": "Nd",
    "Punctuation": "P", "Symbol": "S", "Separator": "Z", "Space_Separator": "Zs", "Other": "C", "Control": "Cc",
}  # fmt: skip
"""Long names of general categories, of which RE2 knows the short ones."""
_ESCAPE: Final = re.compile(
    r"\\(?:(?P<same>[dDwWtnvfr])|(?P<space>[sS])|(?P<edge>[bB])|u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u(?P<unit>[0-9a-fA-F]{4})|u\{(?P<point>[0-9a-fA-F]{1,6})\}|x(?P<byte>[0-9a-fA-F]{2})|c(?P<control>[a-zA-Z])|(?P<nul>0)(?![0-9])"
    r"|(?P<property>[pP])\{(?:(?P<key>\w+)=)?(?P<value>\w+)\}|(?P<mark>[!-/:-@\[-`{-~]))"
)
_GROUP: Final = re.compile(r"\(\?(?::|<[A-Za-z_$][\w$]*>)")


class NoPattern(ValueError):
    """What cannot be matched here."""


class Patterns:
    """The expressions of one schema, each made once."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._made: dict[str, Any] = {}

    def finds(self, pattern: str, text: str) -> bool | None:
        """Whether `pattern` occurs in `text`; None: it cannot be matched here. Raises TooManySteps."""
        self._steps.take(1)
        found = self._made[pattern] if pattern in self._made else self._make(pattern)
        if found is None:
            return None
        self._steps.take(found.programsize * len(text) // WORK_PER_STEP)
        return found.search(text) is not None

    def _make(self, pattern: str) -> Any:
        import re2

        self._steps.take(len(pattern) // COMPILED_PER_STEP)
        options = re2.Options()
        options.max_mem, options.log_errors, options.never_capture = MAX_PROGRAM_BYTES, False, True
        made = None
        try:
            made = re2.compile(as_re2(pattern), options)
            self._steps.take(made.programsize // COMPILED_PER_STEP)
        except NoPattern:
            pass  # None says so
        except (re2.error, UnicodeEncodeError):
            self._steps.take(REFUSED_STEPS)
        self._made[pattern] = made
        return made


def as_re2(pattern: str) -> str:
    """An ECMA-262 expression (with the flag u, without others) in RE2's dialect. Raises NoPattern for what has no counterpart."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            text, at = _escape(pattern, at, inside=False)
            parts.append(text)
        elif char == "[":
            text, at = _brackets(pattern, at)
            parts.append(text)
        elif char == "(" and pattern.startswith("(?", at):
            if not (match := _GROUP.match(pattern, at)):
                raise NoPattern
            parts.append("(?:")
            at = match.end()
        else:
            parts.append(_NO_LINE_END if char == "." else char)
            at += 1
    return "".join(parts)


def _brackets(pattern: str, at: int) -> tuple[str, int]:
    """The class that begins at `at`, and where it ends."""
    negated = pattern.startswith("^", at + 1)
    at += 1 + negated
    parts = []
    while at < len(pattern) and pattern[at] != "]":
        if pattern[at] == "\\":
            text, at = _escape(pattern, at, inside=True)
            parts.append(text)
        else:
            parts.append("\\[" if pattern[at] == "[" else pattern[at])  # else it may begin a class by name
            at += 1
    if at == len(pattern):
        raise NoPattern
    inside = "".join(parts)
    if not inside:
        inside, negated = _ANYTHING, not negated
    elif inside.startswith("^"):
        inside = "\\" + inside
    return f"[{'^' if negated else ''}{inside}]", at + 1


def _escape(pattern: str, at: int, *, inside: bool) -> tuple[str, int]:
    """The escape at `at`, outside or inside of brackets, and where it ends."""
    if not (match := _ESCAPE.match(pattern, at)):
        raise NoPattern
    kind, said = match.lastgroup, match[0]
    if kind in ("unit", "point", "byte", "control", "nul", "low"):
        return f"\\x{{{_code_point(match):x}}}", match.end()
    if kind == "space":
        listed = _SPACES if match["space"] == "s" else _NO_SPACES
        said = listed if inside else f"[{listed}]"
    elif kind == "edge" and inside:
        if said == "\\B":
            raise NoPattern
        said = r"\x{8}"
    elif kind == "value":
        said = f"\\{match['property']}{{{_property(match['key'], match['value'])}}}"
    return said, match.end()


def _code_point(match: re.Match[str]) -> int:
    if match["high"]:
        return 0x10000 + ((int(match["high"], 16) & 0x3FF) << 10) + (int(match["low"], 16) & 0x3FF)
    if match["control"]:
        return ord(match["control"]) & 0x1F
    point = int(match["unit"] or match["point"] or match["byte"] or "0", 16)
    if 0xD800 <= point < 0xE000:  # half a character
        raise NoPattern
    return point


def _property(key: str | None, value: str) -> str:
    """RE2's name of a Unicode property."""
    if key not in (None, "gc", "General_Category", "sc", "Script"):
        raise NoPattern
    return value if key in ("sc", "Script") else _CATEGORIES.get(value, value)
