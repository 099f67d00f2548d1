"""Tool calls in an answer's text: JSON objects with a name and arguments, in <tool_call> tags or as the whole answer.

Two readers: `ToolText` for requests that offered tools, which splits a growing text into content and calls, told whole and as they
grow, and `is_tool_call` for the metric, which looks at any answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from blake3 import blake3

from octavo_gateway.argument_schemas import MOST_STEPS, Judge
from octavo_gateway.bounded_steps import Steps
from octavo_gateway.caching.tools import MAX_DEPTH, depth_of
from octavo_gateway.growing_call import CallPart, GrowingCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Tags in which many chat templates ask for one."""
LONGEST: Final = 65_536
"""Characters of a call, or of an answer that is one, that are looked at; a longer one is no call."""
FIRST_PIECES: Final = 8
"""Pieces among which the first word of an answer stands; nearly every answer is told by it."""

_JSON: Final = re.compile(r"\s*[\[{]")
"""How a call begins inside its tags."""

Found = tuple[str, str]
"""Name and arguments (JSON object as text) of a call."""


class Call(NamedTuple):
    """A call of an offered function. `number`: among those of its answer that began, what came to nothing included."""

    name: str
    arguments: str
    number: int


class ToolText:
    """Splits a text, fed piece by piece, into content and calls of offered functions; how it is cut into pieces changes nothing.

    What may still become a call is held back from the content. What looks like one and is not (no JSON, a function that was not
    offered) is content. Whitespace around calls belongs to neither. `take_parts` tells calls as they grow; one that
    began and came to nothing is content too, and its arguments never end.
    """

    __slots__ = (
        "_bare",
        "_begun",
        "_growing",
        "_held",
        "_judges",
        "_names",
        "_parts",
        "_schemas",
        "_space",
        "_steps",
        "calls",
        "fault",
    )

    def __init__(self, names: frozenset[str], schemas: Iterable[tuple[str, str]] = ()) -> None:
        """`schemas`: the JSON schemas that the arguments of these functions must fit, else they are no calls."""
        self.calls: list[Call] = []
        self.fault = ""  # of the first arguments that did not
        self._names = names
        self._schemas = dict(schemas)
        self._judges: dict[str, Judge] = {}  # of those that were called
        self._steps = Steps(MOST_STEPS)
        self._held = ""
        self._space = ""  # given out only with what follows it
        self._bare: bool | None = None  # the whole answer may be JSON; None: nothing but whitespace yet
        self._growing = GrowingCall(names)  # what is held begins with it
        self._begun = 0
        self._parts: list[CallPart] = []

    def feed(self, text: str) -> str:
        """The content that is certain now."""
        self._held += text
        if self._bare is None and (begun := self._held.lstrip()):
            self._bare = begun.startswith(("{", "["))
        if self._bare and len(self._held) > LONGEST:
            self._bare = False
            self._conclude(self._held, 0, len(self._held), [])
        content = self._content("" if self._bare is not False else self._scan(last=False))
        if self._bare:
            self._grow(0, len(self._held))
        elif self._held.startswith(OPEN):
            self._grow(len(OPEN), len(self._held) - _begun(self._held, CLOSE))
        return content

    def finish(self) -> str:
        """The rest of the content; `calls` is complete."""
        content = ""
        if self._bare and self._take_bare():
            self._held = ""
        elif self._held:
            self._bare = False
            content = self._content(self._scan(last=True))
        if not self.calls:
            content, self._space = content + self._space, ""
        return content

    def take_parts(self) -> list[CallPart]:
        """What is new of the calls, in their order."""
        parts, self._parts = self._parts, []
        return parts

    def _content(self, text: str) -> str:
        """`text` without its last whitespace, which waits."""
        if not (kept := text.rstrip()):
            self._space += text
            return ""
        kept, self._space = self._space + kept, text[len(kept) :]
        return kept

    def _scan(self, last: bool) -> str:
        """Takes whole calls out of what is held; returns the content before and between."""
        held, parts = self._held, [""]
        taken = searched = 0  # up to here it is given out or a call; from here on a tag is looked for
        close = 0  # the first closing tag behind the last opening one; looked for once, however many open before it
        while (start := held.find(OPEN, searched)) >= 0:
            begin = start + len(OPEN)
            if 0 <= close < begin:
                close = held.find(CLOSE, begin)
            closed = begin <= close <= begin + LONGEST
            if not closed and not last and len(held) - begin < LONGEST + len(CLOSE):
                break
            end = close if closed else len(held)  # a stop string may have taken the closing tag
            searched = begin
            if not _JSON.match(held, begin):
                self._growing = GrowingCall(self._names)
            elif self._take(held, begin, end):
                parts = ["".join((*parts, held[taken:start])).rstrip()]
                if not parts[0]:
                    self._space = ""
                taken = searched = end + len(CLOSE) if closed else end
        rest = start if start >= 0 else len(held) if last else len(held) - _begun(held, OPEN)
        parts.append(held[taken:rest])
        self._held = held[rest:]
        return "".join(parts)

    def _take_bare(self) -> bool:
        return self._take(self._held, 0, len(self._held))

    def _take(self, text: str, begin: int, end: int) -> bool:
        """Takes the calls that text[begin:end] is; False when it is anything else, or calls what was not offered."""
        return self._conclude(text, begin, end, self._calls_of(text[begin:end]) if end - begin <= LONGEST else [])

    def _calls_of(self, text: str) -> list[Found]:
        """The calls that a JSON text is; none when it is anything else, or calls what was not offered."""
        found = calls_in(parse_json(text))
        return found if all(name in self._names for name, _ in found) else []

    def _fit(self, found: list[Found]) -> bool:
        """Whether the arguments of all of them fit their schemas; what is wrong with the first that do not is the fault."""
        for name, arguments in found:
            if schema := self._schemas.get(name):
                judge = self._judges.get(name)
                if judge is None:
                    judge = self._judges[name] = Judge(json.loads(schema), self._steps)
                fault = judge.fault(json.loads(arguments))
                self.fault = self.fault or (fault and f"the arguments of {name} {fault}")
                if fault:
                    return False
        return True

    def _grow(self, begin: int, end: int) -> None:
        growing = self._growing
        told = growing.grow(self._held, begin, end)
        if growing.name and (told or not growing.told_name):
            self._tell(growing, told)

    def _tell(self, growing: GrowingCall, told: str) -> None:
        self._parts.append(CallPart(self._begun, "" if growing.told_name else growing.name, told, growing.bytes))
        growing.told_name = True

    def _conclude(self, text: str, begin: int, end: int, found: list[Found]) -> bool:
        """text[begin:end] is these calls, or none: what grew in it ends, or is left without an end. True: they are calls."""
        growing, self._growing = self._growing, GrowingCall(self._names)
        told, first = growing.grow(text, begin, end), self._begun
        if growing.name:
            whole = growing.arguments(text, begin)
            if found and calls_in({"name": growing.name, "arguments": parse_json(whole)}) != found[:1]:
                found = []  # it says its name or its arguments twice, and differently
        if found and self._schemas and not self._fit(found):
            found = []
        if growing.name:
            if found:
                told, growing.bytes = told + "}", growing.bytes + 1
                found = [(growing.name, whole), *found[1:]]
            if told or not growing.told_name:
                self._tell(growing, told)
        for number, (name, arguments) in enumerate(found, first):
            if number > first or not growing.name:
                self._parts.append(CallPart(number, name, arguments, len(arguments.encode())))
            self.calls.append(Call(name, arguments, number))
        self._begun = first + max(len(found), bool(growing.name))
        return bool(found)


def _begun(text: str, tag: str) -> int:
    """How many last characters may be the beginning of a tag."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)


def call_id(request_id: str, choice: int, number: int) -> str:
    """The name of a call: the same for everyone who reads the answer, on whichever gateway."""
    return f"call_{blake3(f'{request_id}/{choice}/{number}'.encode()).hexdigest()[:24]}"


def parse_json(text: str) -> Any:
    """The value of a JSON text; None when it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def calls_in(value: Any) -> list[Found]:
    """The calls that a JSON value is: an object with a `name` and an object of `arguments` (or `parameters`), or a list of such.

    Nested deeper than a conversation may have it, it is none: its client could not send it back.
    """
    if isinstance(value, list):
        found = [calls_in(item) if isinstance(item, dict) else [] for item in value]
        return [call for calls in found for call in calls] if all(found) else []
    if not isinstance(value, dict):
        return []
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    if not (isinstance(name, str) and name and isinstance(arguments, dict)) or depth_of(arguments) > MAX_DEPTH:
        return []
    try:
        shown = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + shown).encode()
    except ValueError:  # a number or a character that no JSON can carry
        return []
    return [(name, shown)]


def is_tool_call(pieces: Sequence[str], tail: str = "") -> bool:
    """Whether an answer is one or more calls and nothing else, whoever offered what."""
    if not "".join(islice(pieces, FIRST_PIECES)).lstrip().startswith(("{", "[", "<")) or len(pieces) > LONGEST:
        return False
    text = ("".join(pieces) + tail).strip()
    if len(text) > LONGEST:
        return False
    if text.startswith(OPEN):
        return all(calls_in(value) for value in _in_tags(text))
    return bool(calls_in(parse_json(text)))


def _in_tags(text: str) -> Iterable[Any]:
    """What each pair of tags holds; None where something else stands."""
    while text:
        inside, closed, rest = text.removeprefix(OPEN).partition(CLOSE)
        yield parse_json(inside) if text.startswith(OPEN) and closed else None
        text = rest.strip()
