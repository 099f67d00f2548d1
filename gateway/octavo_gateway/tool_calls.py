"""Whether an answer is a tool call, by its text: the API's own field for them is not built yet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Tags in which many chat templates ask for one."""
LONGEST: Final = 65_536
"""Characters of an answer that are looked at; a longer one is no call."""
FIRST_PIECES: Final = 8
"""Pieces among which the first word of an answer stands; nearly every answer is told by it."""


def is_tool_call(pieces: Sequence[str], tail: str = "") -> bool:
    """One or more calls and nothing else: a JSON object with a `name` and an object of `arguments` (or `parameters`), a list of such
    objects, or each in <tool_call> tags."""
    if not "".join(islice(pieces, FIRST_PIECES)).lstrip().startswith(("{", "[", "<")) or len(pieces) > LONGEST:
        return False
    text = ("".join(pieces) + tail).strip()
    if len(text) > LONGEST:
        return False
    if text.startswith(OPEN):
        return all(map(_is_call, _in_tags(text)))
    return _is_call(_parsed(text))


def _in_tags(text: str) -> Iterable[Any]:
    """What each pair of tags holds; None where something else stands."""
    while text:
        inside, closed, rest = text.removeprefix(OPEN).partition(CLOSE)
        yield _parsed(inside) if text.startswith(OPEN) and closed else None
        text = rest.strip()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_call(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, dict) and _is_call(item) for item in value)
    if not isinstance(value, dict):
        return False
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
    return isinstance(name, str) and bool(name) and isinstance(arguments, dict)
