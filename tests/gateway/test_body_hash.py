"""The hash of a body: everything that is asked for is in it once, however it is spelled, and nothing that a retry may change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from octavo_gateway.body_hash import body_hash
from octavo_gateway.requests import ChatMessage, RequestParams, ToolCall

OTHER: dict[str, Any] = {
    "kind": "chat", "prompt_ids": [5, 6], "messages": [ChatMessage("user", "Hello")], "logit_bias": {1: 2.0},
    "tools": [{"type": "function", "function": {"name": "f"}}], "stop": ["x"], "stop_token_ids": [7],
    "cache_tiers": ["dram"], "cache_chunks": ["c"],
}  # fmt: skip
"""Values that a field does not have by default, where one more or one word more is not one."""


def generate(**options: Any) -> RequestParams:
    return RequestParams(**{"kind": "generate", "prompt_text": "Hello"} | options)


def other(item: dataclasses.Field[Any]) -> Any:
    if item.name in OTHER:
        return OTHER[item.name]
    return not item.default if isinstance(item.default, bool) else "x" if isinstance(item.default, str) else 1


def test_every_field_counts_but_those_that_name_an_attempt() -> None:
    base = body_hash(generate(), "t")
    for item in dataclasses.fields(RequestParams):
        changed = body_hash(generate(**{item.name: other(item)}), "t")
        assert (changed == base) == (item.name in ("request_id", "idempotency_key", "deadline_ms")), item.name
    assert body_hash(generate(), "u") != base


def test_what_is_given_counts_even_where_it_is_nothing() -> None:
    """Zero and false are words of the client where nothing at all is the default."""
    base = body_hash(generate(), "t")
    given = [{"temperature": 0.0}, {"seed": 0}, {"logprobs": 0}, {"early_stopping": False}, {"prompt_text": ""}]
    assert len({base, *(body_hash(generate(**options), "t") for options in given)}) == 1 + len(given)


def test_empty_lists_and_the_order_of_biases_say_nothing() -> None:
    assert body_hash(generate(stop=[], tools=[], logit_bias={}, messages=[]), "t") == body_hash(generate(), "t")
    assert body_hash(generate(stop=("x",)), "t") == body_hash(generate(stop=["x"]), "t")
    assert body_hash(generate(logit_bias={1: 2.0, 3: 1}), "t") == body_hash(generate(logit_bias={3: 1.0, 1: 2}), "t")


@pytest.mark.parametrize("ids", [[], [0], [1, 2, 3], [3, 2, 1], [257], [1, 1, 0]])
def test_prompts_of_ids_differ_from_each_other_and_from_none(ids: list[int]) -> None:
    def hashed(prompt: list[int] | None) -> bytes:
        return body_hash(generate(prompt_text=None, prompt_ids=prompt), "t")

    assert hashed(ids) == hashed(list(ids))
    assert hashed(ids) not in [hashed(None), hashed([*ids, 0]), hashed([9, *ids])]


def test_parts_of_messages_count() -> None:
    turns = [
        [ChatMessage("user", "Hello")], [ChatMessage("system", "Hello")], [ChatMessage("user", "Hello", "ann")],
        [ChatMessage("user", "Hello"), ChatMessage("user", "")], [ChatMessage("user", "Hello", tool_call_id="c")],
        [ChatMessage("user", "Hello", tool_calls=[ToolCall("c", "f", "{}")])],
    ]  # fmt: skip
    assert len({body_hash(generate(prompt_text=None, messages=messages), "t") for messages in turns}) == len(turns)
