"""The two forms of log-probabilities at their edges: no JSON number for -inf, none at all for an echoed first token."""

from __future__ import annotations

import math
from typing import Any

from octavo_gateway.http.logprobs import LOWEST, CompletionLogprobsForm, chat_logprobs
from octavo_gateway.requests import TokenLogprob


def token(text: str | bytes, logprob: float, *top: TokenLogprob) -> TokenLogprob:
    data = text.encode() if isinstance(text, str) else text
    return TokenLogprob(1, data.decode("utf-8", "replace"), data, logprob, top)


def test_minus_infinity_becomes_openais_lowest() -> None:
    shown = chat_logprobs([token("a", -math.inf, token("b", -math.inf))])
    assert shown.content[0].logprob == LOWEST
    assert shown.content[0].top_logprobs[0].logprob == LOWEST


def test_an_unknown_logprob_is_null() -> None:
    form = CompletionLogprobsForm().take([token("a", math.nan), token("b", -1.0)])
    assert form.token_logprobs == [None, -1.0]
    assert form.top_logprobs == [None, {"b": -1.0}]


def test_of_two_tokens_with_one_text_the_likelier_is_shown() -> None:
    form = CompletionLogprobsForm().take([token("a", -3.0, token("a", -1.0), token("b", -2.0))])
    assert form.top_logprobs == [{"a": -1.0, "b": -2.0}]


def test_offsets_count_characters_not_bytes_across_split_characters() -> None:
    chilli = "🌶".encode()
    pieces: list[Any] = ["é", chilli[:2], chilli[2:], "x"]
    form = CompletionLogprobsForm()
    first = form.take([token(piece, -1.0) for piece in pieces[:2]])
    rest = form.take([token(piece, -1.0) for piece in pieces[2:]])
    assert first.text_offset + rest.text_offset == [0, 1, 1, 2]
