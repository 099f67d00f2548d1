"""A tool call that is still being written: what of its arguments can be told already, so that what was told stays true.

Told is what a call's text says behind a head in the common form: `{"name": "f", "arguments": {`, the name first. The last
brace of the arguments waits until the call is known to be one: arguments that can be read are those of a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Set
from typing import Final, NamedTuple

HEAD_CHARS: Final = 1024
"""In which a head must end; a call with a longer one is told whole, when it has ended."""
_HEAD: Final = re.compile(
    r'\s*(?:\[\s*)?\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_MARKS: Final = re.compile(r'["\\{}\[\]]')


class CallPart(NamedTuple):
    """What is new of one call. `number` counts the calls of an answer that began; `name` comes with the first part only."""

    number: int
    name: str
    arguments: str
    end: int
    """UTF-8 bytes of the call's arguments so far."""


class GrowingCall:
    """One call's text, read as it grows. Where it lies is said anew each time, as `begin` and `end` in the text that holds it."""

    __slots__ = ("_at", "_depth", "_last", "_names", "_quoted", "_start", "_told", "bytes", "name", "told_name")

    def __init__(self, names: Set[str]) -> None:
        self.name = ""  # empty: its head was not read
        self.told_name = False
        self.bytes = 0  # of what was told
        self._names: Set[str] | None = names  # None: no head will be read any more
        self._start = self._told = self._at = 0  # from `begin` on
        self._depth = 0
        self._quoted = False
        self._last = -1  # the brace that ends the arguments

    def grow(self, text: str, begin: int, end: int) -> str:
        """What more of the arguments can be told, of text[begin:end]; empty before the head is whole."""
        if not self.name and not self._read_head(text, begin, end):
            return ""
        self._scan(text, begin, end)
        until = self._last if self._last >= 0 else end - begin
        told, self._told = text[begin + self._told : begin + until], max(self._told, until)
        self.bytes += len(told) if told.isascii() else len(told.encode())
        return told

    def arguments(self, text: str, begin: int) -> str:
        """The arguments as they stand in the text; empty while their end was not read."""
        return text[begin + self._start : begin + self._last + 1] if self._last >= 0 else ""

    def _read_head(self, text: str, begin: int, end: int) -> bool:
        if self._names is None:
            return False
        head = _HEAD.match(text, begin, min(end, begin + HEAD_CHARS))
        if head is None:
            if end - begin >= HEAD_CHARS:
                self._names = None
            return False
        name = _string(head.group(1))
        if name in self._names:
            self.name = name
        self._start = self._told = self._at = head.end() - begin
        self._names = None
        return bool(self.name)

    def _scan(self, text: str, begin: int, end: int) -> None:
        """Follows strings and brackets to the arguments' end; whether it is JSON is for others to say."""
        while self._last < 0 and begin + self._at < end:
            found = _MARKS.search(text, begin + self._at, end)
            if found is None:
                self._at = end - begin
                return
            mark, self._at = found.group(), found.end() - begin
            if mark == "\\":
                self._at += self._quoted  # the next character is no mark, though it may not be there yet
            elif mark == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if mark in "{[" else -1
                if not self._depth:
                    self._last = found.start() - begin


def _string(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return ""
