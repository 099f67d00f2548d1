"""Prompts of several preloads: where each stands, one BOS, and what cannot stand behind another."""

from __future__ import annotations

import pytest
from octavo.errors import InvalidRequest
from octavo_gateway.caching.chunks import join_chunks
from octavo_gateway.caching.preloads import Preloaded
from octavo_gateway.requests import PromptChunk

BOS = 1


def raw(*ids: int, salt: str = "", form: str = "raw") -> Preloaded:
    return Preloaded(b"c", form, salt, ids)


def test_each_stands_behind_the_one_before_it() -> None:
    whole, chunks = join_chunks(["a", "b", "a"], [raw(5, 6), raw(7, 8, 9), raw(5, 6)], BOS)
    assert whole.token_ids == (5, 6, 7, 8, 9, 5, 6)
    assert chunks == [PromptChunk("a", 0, 2, 0), PromptChunk("b", 2, 3, 0), PromptChunk("a", 5, 2, 0)]


def test_a_bos_comes_once() -> None:
    whole, chunks = join_chunks(["a", "b"], [raw(BOS, 5), raw(BOS, 7, 8)], BOS)
    assert whole.token_ids == (BOS, 5, 7, 8)
    assert chunks == [PromptChunk("a", 0, 2, 0), PromptChunk("b", 2, 2, 1)]
    assert join_chunks(["a", "b"], [raw(5), raw(7)], None)[0].token_ids == (5, 7)


def test_a_system_message_stands_in_front_or_nowhere() -> None:
    whole, _chunks = join_chunks(["rules", "b"], [raw(3, form="system"), raw(7)], BOS)
    assert whole.form == "system"
    with pytest.raises(InvalidRequest, match="'rules' is a system message") as caught:
        join_chunks(["b", "rules"], [raw(7), raw(3, form="system")], BOS)
    assert caught.value.field == "cache.chunks"


def test_one_salt_for_all() -> None:
    assert join_chunks(["a", "b"], [raw(1, salt="s"), raw(2, salt="s")], None)[0].salt == "s"
    with pytest.raises(InvalidRequest, match="another salt"):
        join_chunks(["a", "b"], [raw(1, salt="s"), raw(2)], None)
