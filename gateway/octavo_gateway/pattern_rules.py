"""The rules of a JSON schema that match regular expressions of it: `pattern`, `patternProperties`, and `additionalProperties` beside them.

One that cannot be matched (`patterns`) constrains nothing, and what it may have named is nothing additional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from octavo_gateway.patterns import Patterns

Rule = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
"""As the `jsonschema` package has it: (validator, the rule's value, what it judges, the schema around it), to errors."""


def pattern_rules(patterns: Patterns, additional: Rule) -> dict[str, Rule]:
    """Them by name; `additional` is the rule where no `patternProperties` stand beside it."""
    from jsonschema.exceptions import ValidationError

    def pattern(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any]:
        if isinstance(instance, str) and patterns.finds(value, instance) is False:
            yield ValidationError("no match")

    def pattern_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any]:
        for expression, part in value.items() if isinstance(instance, dict) else ():
            for name, item in instance.items():
                if patterns.finds(expression, name):
                    yield from validator.descend(item, part, path=name, schema_path=expression)

    def additional_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any]:
        expressions = schema.get("patternProperties")
        if not expressions or not isinstance(instance, dict):
            yield from additional(validator, value, instance, schema) or ()
            return
        named = schema.get("properties", {})
        for name, item in instance.items():
            # found, or nobody can tell
            if name in named or any(patterns.finds(expression, name) is not False for expression in expressions):
                continue
            if value is False:
                yield ValidationError("additional")
            else:
                yield from validator.descend(item, value, path=name)

    return {
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
    }
