"""The JSON schema of an offered function's arguments: whether it is one, and whether the arguments of a call fit it.

By the `jsonschema` package, in the draft that `$schema` names, 4 to 2020-12 (the default). A schema is a stranger's program and the
arguments are what a model was made to say: what both together may take is bounded, nothing outside of a schema is read, and its regular
expressions are matched in linear time. Left unchecked are `unevaluatedProperties` and `unevaluatedItems`, expressions that cannot be
matched so (`patterns`), and formats that `formats` does not list.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from blake3 import blake3

from octavo_gateway import sampling_checks as check
from octavo_gateway.bounded_rules import Sizes, bounded
from octavo_gateway.bounded_steps import Steps, TooManySteps
from octavo_gateway.patterns import Patterns
from octavo_gateway.requests import RequestParams

MOST_STEPS: Final = 20_000
"""Of checking the calls of one answer: rules that are applied, and what they look at; 0.1 to 0.4 s."""
MOST_SCHEMA_STEPS: Final = 1_500_000
"""Of judging the schemas of one request: some 5000 properties; a second or two beside the event loop."""
MOST_KNOWN: Final = 1024
"""Schemas that are remembered as good."""
MOST_SAID: Final = 120
"""Characters of a schema's own words in an error."""
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_OLDEST: Final = "http://json-schema.org/draft-03/schema"


Schemas = tuple[tuple[str, str], ...]
"""(name of a function, JSON of the schema that its arguments must fit)."""


class KnownSchemas:
    """The schemas that were found good, so that an agent's tools are judged once."""

    def __init__(self) -> None:
        self._good: OrderedDict[bytes, None] = OrderedDict()

    def check(self, params: RequestParams, names: frozenset[str]) -> Schemas:
        """The schemas of the tools with these names. InvalidRequest naming `tools[i].function.parameters`; may run in a thread."""
        steps = Steps(MOST_SCHEMA_STEPS)
        found = []
        for i, tool in enumerate(params.tools):
            name, schema = tool["function"]["name"], tool["function"].get("parameters")
            if not schema or name not in names:
                continue
            text = json.dumps(schema)
            digest = blake3(text.encode()).digest()
            if digest not in self._good and (problem := problem_of(schema, steps)):
                raise check.invalid(f"tools[{i}].function.parameters", f"no JSON schema: {problem}")
            self._good[digest] = None
            if len(self._good) > MOST_KNOWN:
                self._good.popitem(last=False)
            found.append((name, text))
        return tuple(found)


def problem_of(schema: Mapping[str, Any], steps: Steps | None = None) -> str:
    """What is wrong with a schema and what mends it; empty when it can be applied."""
    named = schema.get("$schema", "")
    if not isinstance(named, str) or named.rstrip("#") == _OLDEST:
        return "$schema names no draft from 4 to 2020-12; leave it out"
    try:
        return _SchemaCheck(schema, steps or Steps(MOST_SCHEMA_STEPS)).problem()
    except TooManySteps:
        return f"more than {MOST_SCHEMA_STEPS} steps to look through with those before it; shorten it"
    except RecursionError:
        return "nested too deeply; flatten it"


class _SchemaCheck:
    """Looks at the schema as its draft has it, then at each part that a reference makes one."""

    def __init__(self, schema: Mapping[str, Any], steps: Steps) -> None:
        from referencing import Registry
        from referencing.jsonschema import specification_with

        self._schema = schema
        self._steps = steps
        self._kind = _kind(schema)
        self._rules = specification_with(self._kind.META_SCHEMA["$schema"])
        sizes = Sizes()
        sizes.add(schema)
        self._judge = bounded(self._kind, steps, sizes)(self._kind.META_SCHEMA, registry=Registry())
        self._seen: set[int] = set()

    def problem(self) -> str:
        """See `problem_of`."""
        if problem := self._misshapen(self._schema):
            return problem
        try:
            resolver = _resolver_of(self._kind, self._schema)
            return self._unread(self._schema, resolver)
        except ValueError as error:  # of urllib
            return f"an $id in it is no URI ({_short(str(error))}); leave it out"

    def _misshapen(self, part: Any) -> str:
        for error in self._judge.iter_errors(part):
            while error.context:  # it fits none of several forms: what the nearest misses, the one that took its type
                error = min(error.context, key=lambda item: (item.validator == "type", -len(item.path)))
            return f"at {_short(error.json_path)}: {_short(error.message)}; mend it"
        return ""

    def _unread(self, part: Any, resolver: Any) -> str:
        """The first reference below `part` to what the schema does not hold, or what it leads to and is none."""
        waiting = list(self._parts(part, resolver))
        while waiting:
            reference, resolver = waiting.pop()
            if not reference.startswith("#"):
                return f"{_short(reference)} lies outside of it; refer to its own parts (#...)"
            self._steps.take(1 + len(reference))
            target = _target(resolver, reference)
            if target is None:
                return f"it has no {_short(reference)}; define that, or leave the reference out"
            if id(target.contents) in self._seen or isinstance(target.contents, bool):
                continue
            if problem := self._misshapen(target.contents):
                return f"{_short(reference)} is none: {problem}"
            waiting += self._parts(target.contents, target.resolver)
        return ""

    def _parts(self, part: Any, resolver: Any) -> Iterator[tuple[str, Any]]:
        """The references in `part` and the schemas within it, each with what resolves it there."""
        stack = [(part, resolver)]
        while stack:
            item, resolver = stack.pop()
            if id(item) in self._seen or not isinstance(item, Mapping):
                continue
            self._steps.take(1)
            self._seen.add(id(item))
            resolver = resolver.in_subresource(self._rules.create_resource(item))
            yield from ((item[key], resolver) for key in _REFERENCES if isinstance(item.get(key), str))
            stack += [(each, resolver) for each in self._rules.subresources_of(item)]


class Judge:
    """Checks arguments against a schema that `problem_of` passed."""

    def __init__(self, schema: Mapping[str, Any], steps: Steps) -> None:
        self._schema = schema
        self._steps = steps
        self._sizes = Sizes()
        self._validator: Any = None  # made for the first call

    def fault(self, arguments: Mapping[str, Any]) -> str:
        """How they miss it, where and by which rule, none of their values told; empty: they fit."""
        from jsonschema.exceptions import best_match

        try:
            self._validator = self._validator or self._made()
            self._sizes.add(arguments)
            error = best_match(self._validator.iter_errors(arguments))
        except TooManySteps:
            return f"take more than {MOST_STEPS} steps to check against their schema"
        except RecursionError:
            return "cannot be checked against their schema, which refers to itself without end"
        except Exception as error:  # noqa: BLE001  whatever a stranger's schema makes of them, other answers go on
            return f"cannot be checked against their schema: {type(error).__name__}"
        if error is None:
            return ""
        rule = _short(json.dumps(error.validator_value, ensure_ascii=False))
        return f"miss their schema at {_short(error.json_path)}: {error.validator} {rule}"

    def _made(self) -> Any:
        from referencing import Registry

        kind = _kind(self._schema)
        self._sizes.add(self._schema)
        made = bounded(kind, self._steps, self._sizes, Patterns(self._steps))
        return made(self._schema, registry=Registry(), _resolver=_resolver_of(kind, self._schema))


def fault_of(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """`Judge.fault` of one call alone."""
    return Judge(schema, Steps(MOST_STEPS)).fault(arguments)


def _kind(schema: Mapping[str, Any]) -> Any:
    """The validator class of the draft that it names."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    return validator_for(schema, default=Draft202012Validator)


def _resolver_of(kind: Any, schema: Mapping[str, Any]) -> Any:
    """Resolves references of the schema within it alone. It has looked for all names in it: else each lookup of one would."""
    from referencing import Registry
    from referencing.jsonschema import specification_with

    resource = specification_with(kind.META_SCHEMA["$schema"]).create_resource(schema)
    here = resource.id() or ""
    return Registry().with_resource(here, resource).crawl().resolver(here)


def _target(resolver: Any, reference: str) -> Any:
    """What a reference leads to; None: nothing."""
    from referencing.exceptions import Unresolvable

    try:
        return resolver.lookup(reference)
    except (
        Unresolvable,
        LookupError,
        TypeError,
        ValueError,
    ):  # the others: of a pointer into a list, a text or a number
        return None


def _short(text: str) -> str:
    return text if len(text) <= MOST_SAID else text[:MOST_SAID] + "..."
