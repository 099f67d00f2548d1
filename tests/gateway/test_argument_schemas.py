"""Schemas of arguments: which are refused and with which words, what misses them, and what hostile ones may cost."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from octavo.errors import InvalidRequest
from octavo_gateway import argument_schemas
from octavo_gateway.admission import Admission, Limits
from octavo_gateway.argument_schemas import MOST_STEPS, fault_of, problem_of
from octavo_gateway.bounded_steps import Steps
from octavo_gateway.requests import ChatMessage, RequestParams
from octavo_gateway.tool_calls import ToolText

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "uniqueItems": True},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "integer", "minimum": 1}},
}


@pytest.mark.parametrize(
    "schema",
    [
        CITY,
        {},
        {"$schema": DRAFT_7, "definitions": {"a": {}}, "properties": {"a": {"$ref": "#/definitions/a"}}},
        {"$schema": "https://example.org/mine", "type": "object"},  # a draft of their own is read as the latest
        {
            "properties": {"$ref": {"type": "string"}, "a": {"const": {"$ref": "elsewhere"}}}
        },  # names and data, no references
        {"properties": {"a": {"pattern": "\\p{L}(?<!x)"}}},  # another language's regular expression
        {"$id": "https://example.org/s", "$defs": {"a": {"$anchor": "x"}}, "$ref": "#x"},
    ],
)
def test_good_schemas(schema: dict[str, Any]) -> None:
    assert problem_of(schema) == ""


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strng"}, "at $.type: 'strng' is not one of ['array', 'boolean', "),
        ({"type": ["string", "nul"]}, "at $.type[1]: 'nul' is not one of ['array', 'boolean', "),
        (
            {"$schema": DRAFT_7, "properties": {"a": {"type": "strng"}}},
            "at $.properties.a.type: 'strng' is not one of [",
        ),
        ({"properties": {"a": {"minimum": "x"}}}, "at $.properties.a.minimum: 'x' is not of type 'number'"),
        ({"required": "city"}, "at $.required: 'city' is not of type 'array'"),
        ({"properties": []}, "at $.properties: "),
        ({"$ref": "#/$defs/day"}, "it has no #/$defs/day; define that"),
        ({"items": {"$ref": "#day"}}, "it has no #day; "),
        ({"$ref": "https://example.org/s"}, "https://example.org/s lies outside of it"),
        ({"$ref": "file:///etc/passwd"}, "lies outside of it"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema names no draft"),
        ({"$schema": ["x"]}, "$schema names no draft"),
        ({"type": "x" * 1000}, "..."),
        ({"properties": {"default": {"$ref": "https://example.org/s"}}}, "lies outside of it"),  # a name, no data
        ({"x": {"type": "strng"}, "$ref": "#/x"}, "#/x is none: at $.type: 'strng' is not one of"),
        ({"default": {"minimum": "x"}, "items": {"$ref": "#/default"}}, "#/default is none: at $.minimum"),
        ({"x": {"items": {"$ref": "#/y"}}, "$ref": "#/x"}, "it has no #/y"),  # found behind another one
        ({"x": 5, "$ref": "#/x"}, "#/x is none"),
        ({"title": "ab", "items": {"$ref": "#/title/0/0"}}, "#/title/0/0 is none"),
        ({"allOf": [{}], "items": {"$ref": "#/allOf/x"}}, "it has no #/allOf/x"),
        (
            {"$id": "http://a/", "$defs": {"y": {}}, "properties": {"x": {"$id": "http://b/", "$ref": "#/$defs/y"}}},
            "it has no #/$defs/y",  # which is read below another $id
        ),
        ({"$id": "http://["}, "an $id in it is no URI"),
        ({"$id": "https://example.org/s", "items": {"$id": "http://["}}, "an $id in it is no URI"),
    ],
)
def test_bad_schemas_are_named_with_the_fix(schema: dict[str, Any], words: str) -> None:
    problem = problem_of(schema)
    assert words in problem and len(problem) < 250


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"city": "Bern"}, ""),
        ({"city": "Bern", "days": [1, 2]}, ""),
        ({}, 'at $: required ["city"]'),
        ({"city": 3}, 'at $.city: type "string"'),
        ({"city": "B"}, "at $.city: minLength 2"),
        ({"city": "Bern", "days": [1, 0]}, "at $.days[1]: minimum 1"),
        ({"city": "Bern", "days": [4, 4]}, "at $.days: uniqueItems true"),
        ({"city": "Bern", "secret": "x"}, "at $: additionalProperties false"),
    ],
)
def test_arguments_that_miss_their_schema_are_placed_and_not_told(arguments: dict[str, Any], fault: str) -> None:
    found = fault_of(CITY, arguments)
    assert found == (f"miss their schema {fault}" if fault else "")


NAMED: dict[str, Any] = {
    "properties": {"id": {}},
    "patternProperties": {"^x_": {"type": "integer"}, r"^day\d$": {"type": "string"}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "arguments", "fault"),
    [
        ({"properties": {"a": {"pattern": "^b+$"}}}, {"a": "bb"}, ""),
        ({"properties": {"a": {"pattern": "^b+$"}}}, {"a": "bb\n"}, 'at $.a: pattern "^b+$"'),
        ({"properties": {"a": {"pattern": "b"}}}, {"a": 3}, ""),
        (NAMED, {"id": 1, "x_1": 2, "day1": "mon"}, ""),
        (NAMED, {"x_1": "2"}, 'at $.x_1: type "integer"'),
        (NAMED, {"day12": "mon"}, "at $: additionalProperties false"),
        ({**NAMED, "additionalProperties": {"type": "null"}}, {"y": 1}, 'at $.y: type "null"'),
        ({**NAMED, "additionalProperties": {"type": "null"}}, {"y": None, "id": 1}, ""),
        ({"properties": {"a": {"format": "date"}}}, {"a": "2023-02-29"}, 'at $.a: format "date"'),
        ({"properties": {"a": {"format": "date"}}}, {"a": 5}, ""),
        ({"properties": {"a": {"format": "colour"}}}, {"a": "x"}, ""),  # of their own: anything fits
        ({"$schema": DRAFT_7, "properties": {"a": {"pattern": "^b"}}}, {"a": "a"}, 'at $.a: pattern "^b"'),
    ],
)
def test_patterns_and_formats(schema: dict[str, Any], arguments: dict[str, Any], fault: str) -> None:
    assert problem_of(schema) == ""
    assert fault_of(schema, arguments) == (f"miss their schema {fault}" if fault else "")


def test_a_pattern_that_cannot_be_matched_constrains_nothing() -> None:
    for pattern in ("^(?=b)", r"(a)\1", "a{2000}", "("):
        schema = {"properties": {"a": {"pattern": pattern}}, "patternProperties": {pattern: False, "^c$": {"type": "null"}},
                  "additionalProperties": False}  # fmt: skip
        assert problem_of(schema) == fault_of(schema, {"a": "x", "other": 1}) == ""
        assert fault_of(schema, {"c": 1}) == 'miss their schema at $.c: type "null"'
    left_out = {"unevaluatedProperties": False, "properties": {"a": {"unevaluatedItems": False}}}
    assert problem_of(left_out) == fault_of(left_out, {"a": [1], "b": 2}) == ""


def test_what_patterns_may_cost_is_bounded() -> None:
    slow = "^(a+)+$"  # for an engine that tries one way after the other
    assert fault_of({"properties": {"a": {"pattern": slow}}}, {"a": "a" * 30_000}) == ""
    assert fault_of({"properties": {"a": {"pattern": slow}}}, {"a": "a" * 30_000 + "!"}).endswith('pattern "^(a+)+$"')
    wide = {"properties": {"a": {"pattern": "(?:a?){900}a{900}b"}}}
    assert fault_of(wide, {"a": "a" * 60_000}).startswith(f"take more than {MOST_STEPS} steps")
    names = {"patternProperties": {f"(?={i})": {} for i in range(200)}}
    assert "steps" in fault_of(names, {f"k{i}": 0 for i in range(200)})
    large = {"allOf": [{"properties": {"a": {"pattern": rf"\p{{L}}{{{900 + i}}}"}}} for i in range(60)]}
    assert "steps" in fault_of(large, {"a": "x"})


@pytest.mark.parametrize("place", ["part", "whole"])
def test_a_part_that_names_a_draft_is_not_handed_to_unbounded_rules(place: str) -> None:
    evil = {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^(a+)+$", "uniqueItems": True}
    schema = {"properties": {"a": evil}} if place == "part" else {**evil, "properties": {"a": {"$ref": "#"}}}
    assert problem_of(schema) == fault_of(schema, {"a": "a" * 60}) == ""
    assert fault_of(schema, {"a": "a" * 60 + "!"}) == 'miss their schema at $.a: pattern "^(a+)+$"'
    assert fault_of(schema, {"a": [1, 1]}) == "miss their schema at $.a: uniqueItems true"


def test_what_a_rule_does_not_survive_is_a_fault_and_no_more() -> None:
    schema = {"properties": {"a": {"multipleOf": 0.5}}}
    assert problem_of(schema) == fault_of(schema, {"a": 3}) == ""
    assert fault_of(schema, {"a": 10**400}) == "cannot be checked against their schema: OverflowError"


def doubling(levels: int) -> dict[str, Any]:
    """A schema that looks at its instance 2 ** levels times."""
    parts = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i - 1}"}] * 2} for i in range(1, levels + 1)}
    return {"$defs": {"a0": {"type": "object"}, **parts}, "$ref": f"#/$defs/a{levels}"}


def test_what_a_schema_may_cost_is_bounded() -> None:
    assert fault_of(doubling(8), {}) == ""
    assert fault_of(doubling(60), {}).startswith(f"take more than {MOST_STEPS} steps")
    assert "refers to itself without end" in fault_of({"$ref": "#"}, {})
    assert "refers to itself without end" in fault_of({"not": {"$ref": "#"}}, {})
    long = {"a": [{"x": i} for i in range(5000)]}
    assert fault_of({"properties": {"a": {"uniqueItems": True}}}, long) == ""
    assert "steps" in fault_of({"properties": {"a": {"allOf": [{"uniqueItems": True}] * 20}}}, long)


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"allOf": [{"type": "string"}] * 1000}, {"a": "x" * 20_000}),  # each error quotes the arguments
        ({"properties": {"a": {"items": {"enum": [["y" * 400_000]]}}}}, {"a": list(range(8000))}),
        ({"$defs": {"k" * 200_000: {}}, "properties": {"a": {"items": {"$ref": "#/$defs/" + "k" * 200_000}}}},
         {"a": list(range(8000))}),
    ],
)  # fmt: skip
def test_what_is_quoted_and_compared_counts(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert problem_of(schema) == ""
    assert "steps" in fault_of(schema, arguments)


def test_names_of_parts_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from referencing import Registry

    crawls: list[int] = []
    real = Registry.crawl
    monkeypatch.setattr(Registry, "crawl", lambda self: crawls.append(len(list(self._uncrawled))) or real(self))
    schema = {"$defs": {"y": {"$anchor": "x", "type": "integer"}}, "properties": {"a": {"items": {"$ref": "#x"}}}}
    assert problem_of(schema) == fault_of(schema, {"a": [1] * 50}) == ""
    assert sum(crawls) == 2  # by the one and by the other


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "http://json-schema.org/draft-04/schema#", "enum": [{"a": i} for i in range(4000)]},
        {"type": [{"a": i} for i in range(4000)]},
    ],
)
def test_a_schema_is_judged_in_time_that_grows_with_it(schema: dict[str, Any]) -> None:
    """The package compares items that must differ pair by pair."""
    steps = Steps(200_000)
    problem_of(schema, steps)
    assert steps.left > 0


def test_the_schemas_of_a_request_are_judged_within_one_bound(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(argument_schemas, "MOST_SCHEMA_STEPS", 8000)
    large = {"properties": {f"p{i}": {"type": "string"} for i in range(20)}}
    admission.encode(offering(large))
    with pytest.raises(InvalidRequest, match="more than 8000 steps to look through with those before it") as caught:
        admission.encode(offering(large, *({**large, "title": str(i)} for i in range(5))))
    assert caught.value.field != "tools[0].function.parameters"


def test_the_calls_of_an_answer_are_checked_within_one_bound() -> None:
    text = ToolText(frozenset({"f"}), [("f", json.dumps({"allOf": [{"type": "object"}] * 1000}))])
    text.feed('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>' * 100)
    text.finish()
    assert 5 < len(text.calls) < 50
    assert "steps" in text.fault


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it asked the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert problem_of({"$ref": "http://127.0.0.1:9/s"})


REAL = json.dumps
LIMITS = Limits(root_key=b"r" * 32, block_tokens=16, max_model_len=4096, max_choices=8)


def offering(*schemas: Any, choice: str = "required") -> RequestParams:
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": item}} for i, item in enumerate(schemas)]
    return RequestParams("chat", messages=[ChatMessage("user", "Hi")], tools=tools, tool_choice=choice)


def test_only_what_must_be_called_is_judged_and_once(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Any] = []
    real = problem_of
    monkeypatch.setattr(
        argument_schemas, "problem_of", lambda schema, steps: judged.append(schema) or real(schema, steps)
    )
    for choice, field in (
        ("required", "tools[1]"),
        ("function f1", "tools[1]"),
        ("function f0", ""),
        ("auto", ""),
        ("none", ""),
    ):
        params = offering(CITY, {"type": "strng"}, choice=choice)
        admission.check(params, LIMITS)
        if not field:
            admission.encode(params)
            continue
        with pytest.raises(InvalidRequest, match=r"no JSON schema: at \$\.type") as caught:
            admission.encode(params)
        assert caught.value.field == f"{field}.function.parameters"
    assert judged.count(CITY) == 1


def test_the_schemas_are_those_of_what_must_be_called_and_written_once(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(
        argument_schemas.json, "dumps", lambda value, **how: written.append(value) or REAL(value, **how)
    )
    params = offering(CITY, {}, choice="required")
    encoded = admission.encode(params)
    assert written.count(CITY) == 1
    assert admission.admit(params, encoded, "t", None, LIMITS).text.schemas == (("f0", REAL(CITY)),)
    assert written.count(CITY) == 1
    params = offering(CITY, {}, choice="auto")
    assert admission.admit(params, admission.encode(params), "t", None, LIMITS).text.schemas == ()


@pytest.mark.parametrize("pieces", [1, 1000])
def test_a_call_that_misses_its_schema_is_none_and_its_last_brace_never_comes(pieces: int) -> None:
    schemas = [("weather", '{"required": ["city"]}')]
    good = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'
    bad = good.replace("city", "town")
    for whole in (bad, good + bad, bad + good, bad.removeprefix("<tool_call>").removesuffix("</tool_call>")):
        text, told = ToolText(frozenset({"weather"}), schemas), dict[int, str]()
        for at in range(0, len(whole), max(1, len(whole) // pieces)):
            text.feed(whole[at : at + max(1, len(whole) // pieces)])
            parts = text.take_parts()
            told.update({part.number: told.get(part.number, "") + part.arguments for part in parts})
        text.finish()
        told.update({part.number: told.get(part.number, "") + part.arguments for part in text.take_parts()})
        assert text.fault == 'the arguments of weather miss their schema at $: required ["city"]'
        assert [call.arguments for call in text.calls] == (['{"city": "Bern"}'] if good in whole else [])
        assert '{"town": "Bern"}' not in told.values() and '{"town": "Bern"' in told.values()
