"""The rules of a JSON schema with a bound on what they may take together: both the schema and what it judges are strangers' work.

The `jsonschema` package's own, but for four things. Each application of a rule takes steps, by what it looks at and by what its
error would quote. What is unique is found by sorting texts and not pair by pair. A part of a schema that names a draft is not
handed to that draft's own rules, which are unbounded. And a regular expression of the schema is matched by `patterns`, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from octavo_gateway.bounded_steps import Steps
from octavo_gateway.formats import fits
from octavo_gateway.pattern_rules import Rule, pattern_rules
from octavo_gateway.patterns import Patterns

UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
"""Rules that are left out: what they ask of the package's other rules takes no steps, and runs regular expressions."""
CHARS_PER_STEP: Final = 256
"""Characters that are written or compared in the time of one step."""


class Sizes:
    """About how many characters parts of JSON values have, each part with all that it holds. They live as long as this does."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._held: list[Any] = []

    def add(self, value: Any) -> None:
        """Measures a value and all its parts."""
        self._held.append(value)
        self._measure(value)

    def of(self, value: Any) -> int:
        """Of a part of what was added, or of a text."""
        return len(value) if isinstance(value, str) else self._of.get(id(value), 1)

    def _measure(self, value: Any) -> int:
        if isinstance(value, str):
            return len(value)
        if isinstance(value, int):
            return 1 + value.bit_length() // 3
        if isinstance(value, list):
            size = 2 + sum([1 + self._measure(item) for item in value])
        elif isinstance(value, dict):
            size = 2 + sum([2 + len(key) + self._measure(item) for key, item in value.items()])
        else:
            return 8
        self._of[id(value)] = size
        return size


def bounded(kind: Any, steps: Steps, sizes: Sizes, patterns: Patterns | None = None) -> Any:
    """A validator class that does as `kind` and takes its steps from `steps`. `patterns`: of a stranger's schema; None: its own are trusted.

    Make its first one with `registry=` and, where references are many, a crawled `_resolver=`; what it makes itself keeps them.
    """
    from jsonschema.validators import extend

    def counted(rule: Rule) -> Rule:
        def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
            looked_at = sum([len(item) for item in (value, instance) if isinstance(item, list | dict)])
            steps.take(1 + looked_at + (sizes.of(value) + sizes.of(instance)) // CHARS_PER_STEP)
            return rule(validator, value, instance, schema)

        return apply

    own: dict[str, Rule] = {**kind.VALIDATORS, "uniqueItems": _unique}
    if patterns is not None:
        own |= dict.fromkeys(UNEVALUATED, _nothing)
        own |= pattern_rules(patterns, own["additionalProperties"])
        own["format"] = _format
    made: Any = extend(kind, validators={name: counted(rule) for name, rule in own.items()})  # type: ignore[no-untyped-call]

    def evolve(self: Any, **changes: Any) -> Any:
        resolver = changes.get("_resolver", self._resolver)
        return made(changes.get("schema", self.schema), registry=self._registry, _resolver=resolver)

    made.evolve = evolve  # the package's own looks at `$schema` of the part
    return made


def _nothing(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    return None


def _format(validator: Any, name: Any, instance: Any, schema: Any) -> Iterable[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not fits(name, instance):
        yield ValidationError("another format")


def _unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any]:
    from jsonschema.exceptions import ValidationError

    if value and isinstance(instance, list):
        texts = {json.dumps(item, sort_keys=True) for item in instance}
        if len(texts) < len(instance):
            yield ValidationError("items that are equal")
