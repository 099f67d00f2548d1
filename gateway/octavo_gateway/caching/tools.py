"""Tool schemas in canonical order, so that two clients who say the same in another order share a prefix."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def canonical_tools(tools: Sequence[Mapping[str, Any]], change: Callable[[str], str] = str) -> list[Any]:
    """Tools by their JSON, objects by their keys; lists keep their order, which may mean something.

    `change` is applied to every string, names of keys included.
    """
    ordered = [_canonical(tool, change) for tool in tools]
    return sorted(ordered, key=lambda tool: json.dumps(tool, sort_keys=True, ensure_ascii=False))


def _canonical(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {change(str(key)): _canonical(value[key], change) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_canonical(item, change) for item in value]
    return change(value) if isinstance(value, str) else value
