"""The rules of a JSON schema with a bound on what they may take together: both the schema and what it judges are strangers' work.

The `jsonschema` package's own, but for three things. Each application of a rule takes steps, by what it looks at and by what its
error would quote. What is unique is found by sorting texts and not pair by pair. And a part of a schema that names a draft is not
handed to that draft's own rules, which are unbounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

PATTERNS: Final = ("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems")
"""Rules that run a regular expression of the schema, or ask what such a one has matched."""
CHARS_PER_STEP: Final = 256
"""Characters that are written or compared in the time of one step."""

Rule = Callable[[Any, Any, Any, Any], Iterable[Any] | None]


class TooManySteps(Exception):
    """A check took more steps than it has."""


class Steps:
    """What may still be done; shared by everything that one request has checked at one place."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        """Raises TooManySteps."""
        self.left -= count
        if self.left < 0:
            raise TooManySteps


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


def bounded(kind: Any, steps: Steps, sizes: Sizes, left_out: Iterable[str] = ()) -> Any:
    """A validator class that does as `kind`, but for the rules that are left out, and takes its steps from `steps`.

    Make its first one with `registry=` and, where references are many, a crawled `_resolver=`; what it makes itself keeps them.
    """
    from jsonschema.validators import extend

    def counted(rule: Rule) -> Rule:
        def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
            looked_at = sum([len(item) for item in (value, instance) if isinstance(item, list | dict)])
            steps.take(1 + looked_at + (sizes.of(value) + sizes.of(instance)) // CHARS_PER_STEP)
            return rule(validator, value, instance, schema)

        return apply

    rules: dict[str, Rule] = {name: counted(rule) for name, rule in kind.VALIDATORS.items()}
    rules["uniqueItems"] = counted(_unique)
    if left_out:
        rules |= dict.fromkeys(left_out, _nothing)
        rules["additionalProperties"] = _unless_patterns(rules["additionalProperties"])
    made: Any = extend(kind, validators=rules)  # type: ignore[no-untyped-call]

    def evolve(self: Any, **changes: Any) -> Any:
        resolver = changes.get("_resolver", self._resolver)
        return made(changes.get("schema", self.schema), registry=self._registry, _resolver=resolver)

    made.evolve = evolve  # the package's own looks at `$schema` of the part
    return made


def _nothing(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    return None


def _unless_patterns(rule: Rule) -> Rule:
    def apply(validator: Any, value: Any, instance: Any, schema: Mapping[str, Any]) -> Iterable[Any] | None:
        return None if schema.get("patternProperties") else rule(validator, value, instance, schema)

    return apply


def _unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any]:
    from jsonschema.exceptions import ValidationError

    if value and isinstance(instance, list):
        texts = {json.dumps(item, sort_keys=True) for item in instance}
        if len(texts) < len(instance):
            yield ValidationError("items that are equal")
