"""Tools that a request offers: what is checked of them, and their canonical order, so that two clients who say the same in another
order share a prefix."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from octavo.errors import FieldName

from octavo_gateway import sampling_checks as check
from octavo_gateway.call_opening import FORCED, NAMED, is_forced
from octavo_gateway.requests import RequestParams

MAX_TOOLS: Final = 128
MAX_NAME_CHARS: Final = 128
MAX_SCHEMA_CHARS: Final = 500_000
"""Of all tools as JSON."""
MAX_DEPTH: Final = 64
CHOICES: Final = ("auto", "none", FORCED)
KEYWORDS: Final = frozenset(
    (
        "type",
        "function",
        "name",
        "description",
        "parameters",
        "arguments",
        "id",
        "properties",
        "required",
        "items",
        "enum",
        "default",
    )
)
"""Keys that a template looks up: they must be found."""


def check_tools(params: RequestParams) -> None:
    """InvalidRequest, naming the field, for tools that cannot be offered, and for a choice that is none of them."""
    _check_choice(params)
    if not params.tools:
        return
    if params.kind != "chat":
        raise check.invalid("tools", "they are for chat only; leave them out")
    if len(params.tools) > MAX_TOOLS:
        raise check.invalid("tools", f"{len(params.tools)} of them; send at most {MAX_TOOLS}")
    for i, tool in enumerate(params.tools):
        _check_tool(f"tools[{i}]", tool)
    names = [tool["function"]["name"] for tool in params.tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise check.invalid(f"tools[{i}].function.name", f"{name!r} is offered twice; name each tool once")
    if (chars := len(json.dumps(list(params.tools)))) > MAX_SCHEMA_CHARS:
        raise check.invalid("tools", f"{chars} characters of JSON; send at most {MAX_SCHEMA_CHARS}")


def _check_choice(params: RequestParams) -> None:
    choice = params.tool_choice
    if not is_forced(choice):
        if choice not in ("", *CHOICES):
            named = '\'function NAME\' (over HTTP {"type": "function", "function": {"name": NAME}})'
            raise check.invalid("tool_choice", f"{choice[:80]!r} is none; use {', '.join(CHOICES)} or {named}")
        return
    if not params.tools:
        raise check.invalid("tool_choice", f"{choice[:80]!r} without tools; offer one, or use auto")
    if choice != FORCED and (name := choice.removeprefix(NAMED)) not in tool_names(params.tools):
        raise check.invalid("tool_choice", f"{name[:80]!r} is not offered; name one of tools")
    if not params.add_generation_prompt:
        problem = f"{choice[:80]!r} begins an answer; leave "
        raise check.invalid("tool_choice", problem, FieldName("add_generation_prompt"), " out")


def _check_tool(where: str, tool: Mapping[str, Any]) -> None:
    function = tool["function"]
    field = f"{where}.function.name"
    if not check.name(field, function["name"], MAX_NAME_CHARS):
        raise check.invalid(field, "it is empty; name the function")
    field = f"{where}.function.parameters"
    if not isinstance(function.get("parameters", {}), Mapping):
        raise check.invalid(field, "no JSON object; send a JSON schema of type object")
    if depth_of(tool) > MAX_DEPTH:
        raise check.invalid(field, f"nested more than {MAX_DEPTH} deep; flatten the schema")
    check.text(where, json.dumps(tool, ensure_ascii=False))


def depth_of(value: Any) -> int:
    """How deep a JSON value is nested; 0: it is no object and no list."""
    deepest, stack = 0, [(value, 0)]
    while stack:
        item, depth = stack.pop()
        deepest = max(deepest, depth)
        if isinstance(item, Mapping):
            stack += [(part, depth + 1) for part in item.values()]
        elif isinstance(item, list | tuple):
            stack += [(part, depth + 1) for part in item]
    return deepest


def shown_tools(params: RequestParams) -> Sequence[Mapping[str, Any]]:
    """The tools that the model is told of: with the choice `none` it knows of none."""
    return () if params.tool_choice == "none" else params.tools


def callable_names(params: RequestParams) -> frozenset[str]:
    """What the answer may call: with a choice that names a function nothing else."""
    if params.tool_choice.startswith(NAMED):
        return frozenset({params.tool_choice.removeprefix(NAMED)})
    return tool_names(shown_tools(params))


def tool_names(tools: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """What may be called."""
    return frozenset(tool["function"]["name"] for tool in tools)


def canonical_tools(tools: Sequence[Mapping[str, Any]], change: Callable[[str], str] = str) -> list[Any]:
    """Tools by their JSON, objects by their keys; lists keep their order, which may mean something.

    `change` is applied to every string, names of keys included, but for those that templates ask for by name.
    """
    ordered = [canonical(tool, change) for tool in tools]
    return sorted(ordered, key=lambda tool: json.dumps(tool, sort_keys=True, ensure_ascii=False))


def canonical(value: Any, change: Callable[[str], str] = str) -> Any:
    """A JSON value with its keys in order."""
    if isinstance(value, Mapping):
        return {
            key if key in KEYWORDS else change(str(key)): canonical(value[key], change)
            for key in sorted(value, key=str)
        }
    if isinstance(value, list | tuple):
        return [canonical(item, change) for item in value]
    return change(value) if isinstance(value, str) else value
