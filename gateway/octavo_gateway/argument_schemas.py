"""The JSON schema of an offered function's arguments: whether it is one, and whether the arguments of a call fit it.

By the `jsonschema` package, in the draft that `$schema` names, 4 to 2020-12 (the default). A schema is a stranger's program and the
arguments are what a model was made to say: what both together may take is bounded, nothing outside of a schema is read, and no
regular expression of it runs. So `pattern`, `patternProperties`, `format`, `unevaluatedProperties` and `unevaluatedItems` are left
unchecked, and `additionalProperties` beside `patternProperties`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from blake3 import blake3

from octavo_gateway import sampling_checks as check
from octavo_gateway.requests import RequestParams

MOST_STEPS: Final = 20_000
"""Of checking one call: keywords that are applied, and the items and properties that they look at; 0.1 to 0.2 s."""
MOST_KNOWN: Final = 1024
"""Schemas that are remembered as good."""
MOST_SAID: Final = 120
"""Characters of a schema's own words in an error."""
UNCHECKED: Final = ("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA: Final = ("const", "enum", "default", "examples")
"""Keywords whose values are no schemas."""
_OLDEST: Final = "http://json-schema.org/draft-03/schema"

Rule = Callable[[Any, Any, Any, Any], Iterable[Any] | None]


class TooManySteps(Exception):
    """A check took more than MOST_STEPS."""


class KnownSchemas:
    """The schemas that were found good, so that an agent's tools are judged once."""

    def __init__(self) -> None:
        self._good: OrderedDict[bytes, None] = OrderedDict()

    def check(self, params: RequestParams, names: frozenset[str]) -> None:
        """Of the tools with these names. InvalidRequest naming `tools[i].function.parameters`; may run in a thread."""
        for i, tool in enumerate(params.tools):
            schema = tool["function"].get("parameters")
            if not schema or tool["function"]["name"] not in names:
                continue
            digest = blake3(json.dumps(schema).encode()).digest()
            if digest not in self._good and (problem := problem_of(schema)):
                raise check.invalid(f"tools[{i}].function.parameters", f"no JSON schema: {problem}")
            self._good[digest] = None
            if len(self._good) > MOST_KNOWN:
                self._good.popitem(last=False)


def schemas_of(params: RequestParams, names: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """(name, JSON of its schema) of the tools with these names that have one."""
    functions = [tool["function"] for tool in params.tools if tool["function"]["name"] in names]
    return tuple((item["name"], json.dumps(item["parameters"])) for item in functions if item.get("parameters"))


def problem_of(schema: Mapping[str, Any]) -> str:
    """What is wrong with a schema and what mends it; empty when it can be applied."""
    from jsonschema import FormatChecker
    from jsonschema.exceptions import SchemaError

    named = schema.get("$schema", "")
    if not isinstance(named, str) or named.rstrip("#") == _OLDEST:
        return "$schema names no draft from 4 to 2020-12; leave it out"
    kind = _kind(schema)
    try:
        kind.check_schema(schema, format_checker=FormatChecker(formats=()))
    except SchemaError as error:
        return f"at {error.json_path}: {_short(error.message)}; mend it"
    except RecursionError:
        return "nested too deeply; flatten it"
    return _unread(kind, schema)


def _unread(kind: Any, schema: Mapping[str, Any]) -> str:
    """The first reference to what the schema does not hold."""
    from referencing import Registry
    from referencing.exceptions import NoSuchAnchor, PointerToNowhere, Unresolvable
    from referencing.jsonschema import specification_with

    resource = specification_with(kind.META_SCHEMA["$schema"]).create_resource(schema)
    here = resource.id() or ""
    resolver = Registry().with_resource(here, resource).resolver(here)
    for reference in _references(schema):
        if not reference.startswith("#"):
            return f"{_short(reference)} lies outside of it; refer to its own parts (#...)"
        try:
            resolver.lookup(reference)
        except (Unresolvable, NoSuchAnchor, PointerToNowhere):
            return f"it has no {_short(reference)}; define that, or leave the reference out"
    return ""


def _references(schema: Any) -> Iterator[str]:
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            yield from (item[key] for key in _REFERENCES if isinstance(item.get(key), str))
            stack += [value for key, value in item.items() if key not in _DATA]
        elif isinstance(item, list):
            stack += item


def fault_of(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """How arguments miss a schema that `problem_of` passed, where and by which rule, none of their values told; empty: they fit."""
    from jsonschema.exceptions import best_match
    from referencing import Registry

    try:
        judge = _bounded(_kind(schema))(schema, registry=Registry())
        error = best_match(judge.iter_errors(arguments))
    except TooManySteps:
        return f"take more than {MOST_STEPS} steps to check against their schema"
    except RecursionError:
        return "cannot be checked against their schema, which refers to itself without end"
    if error is None:
        return ""
    rule = _short(json.dumps(error.validator_value, ensure_ascii=False))
    return f"miss their schema at {_short(error.json_path)}: {error.validator} {rule}"


def _kind(schema: Mapping[str, Any]) -> Any:
    """The validator class of the draft that it names."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    return validator_for(schema, default=Draft202012Validator)


def _bounded(kind: Any) -> Any:
    """A class that does as `kind`, but for what is UNCHECKED, and no more than MOST_STEPS of it."""
    from jsonschema.validators import extend

    left = MOST_STEPS

    def counted(rule: Rule) -> Rule:
        def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
            nonlocal left
            left -= 1 + sum(len(item) for item in (value, instance) if isinstance(item, list | dict))
            if left < 0:
                raise TooManySteps
            return rule(validator, value, instance, schema)

        return apply

    rules: dict[str, Rule] = {name: counted(rule) for name, rule in kind.VALIDATORS.items()}
    rules |= dict.fromkeys(UNCHECKED, _nothing)
    rules["additionalProperties"] = _unless_patterns(rules["additionalProperties"])
    rules["uniqueItems"] = counted(_unique)
    return extend(kind, validators=rules)  # type: ignore[no-untyped-call]


def _nothing(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    return None


def _unless_patterns(rule: Rule) -> Rule:
    def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
        return None if schema.get("patternProperties") else rule(validator, value, instance, schema)

    return apply


def _unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any]:
    """In time that grows with the items; the package's own compares objects pair by pair."""
    from jsonschema.exceptions import ValidationError

    if value and isinstance(instance, list):
        texts = {json.dumps(item, sort_keys=True) for item in instance}
        if len(texts) < len(instance):
            yield ValidationError("items that are equal")


def _short(text: str) -> str:
    return text if len(text) <= MOST_SAID else text[:MOST_SAID] + "..."
