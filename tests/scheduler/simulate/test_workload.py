"""Rows: what they mean as prompts and keys, and what is wrong with others."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from octavo.packing import unpack_u32
from octavo_scheduler.simulate.hardware import BadPlan
from octavo_scheduler.simulate.workload import Row, prompt_of, row_from, submitted

GOOD: dict[str, Any] = {"at_us": 5, "pieces": [["a", 40], ["b", 3]], "output_tokens": 7}


def test_equal_pieces_are_equal_tokens_and_a_longer_one_begins_like_a_shorter() -> None:
    assert prompt_of((("a", 40),)) == prompt_of((("a", 25), ("a", 15)))[:25] + prompt_of((("a", 40),))[25:]
    assert prompt_of((("a", 40),))[:25] == prompt_of((("a", 25),))
    assert len(prompt_of((("a", 41), ("b", 3)))) == 44
    names = [f"piece{i}" for i in range(3000)]
    assert len({tuple(prompt_of(((name, 2),))) for name in names}) == len(names)


def test_a_row_becomes_a_submit_with_chained_keys() -> None:
    event = submitted(3, row_from(3, GOOD), array("I"), 1, 99, 16)
    other = submitted(4, Row(5, (("a", 40), ("c", 30)), 7, max_tokens=50), array("I"), 1, 99, 16)
    assert (event.request_id, event.now_us, event.max_tokens, len(event.prompt)) == ("r3", 99, 7, 43)
    assert unpack_u32(event.sampling) == [7] and other.max_tokens == 50
    assert len(event.prompt_keys) == 2 and len(other.prompt_keys) == 4
    assert event.prompt_keys == other.prompt_keys[:2]  # all of it lies in the common piece
    behind = submitted(5, Row(0, (("a", 40),), 1), event.prompt, 1, 99, 16)
    assert behind.prompt_keys[:2] == event.prompt_keys and len(behind.prompt) == 83


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"at_us": -1}, "requests[2].at_us: -1 is too small; give at least 0"),
        ({"output_tokens": 0}, "requests[2].output_tokens: 0 is too small; give at least 1"),
        ({"output_tokens": 1.5}, "requests[2].output_tokens: 1.5 must be a whole number"),
        ({"priority": "high"}, "requests[2].priority: 'high' must be a whole number"),
        ({"tenant": 3}, "requests[2].tenant: 3 must be a string"),
        ({"after": 2}, "requests[2].after: 2 must be the number of an earlier row"),
        ({"pieces": []}, "requests[2].pieces: must be a list of [identity, tokens]"),
        ({"pieces": [["a", 0]]}, "requests[2].pieces: must be a list of [identity, tokens]"),
        ({"pieces": [["a", True]]}, "requests[2].pieces: must be a list of [identity, tokens]"),
        ({"lenght": 3}, "requests[2].lenght: is no field; the fields are at_us, pieces"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(BadPlan) as caught:
        row_from(2, {**GOOD, **changes})
    assert str(caught.value).startswith(what)


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_a_missing_field_is_named(missing: str) -> None:
    content = {name: value for name, value in GOOD.items() if name != missing}
    with pytest.raises(BadPlan, match=rf"requests\[0\]\.{missing}: is missing"):
        row_from(0, content)


def test_a_row_is_an_object() -> None:
    with pytest.raises(BadPlan, match=r"requests\[1\]: list must be an object"):
        row_from(1, [])
