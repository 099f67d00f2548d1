"""Log-probabilities in OpenAI's two forms: chat (a list of tokens) and completions (four parallel lists)."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence

from octavo_gateway.http.shapes import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from octavo_gateway.requests import TokenLogprob

LOWEST = -9999.0
"""What OpenAI sends for a probability of zero; JSON has no -inf."""


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
    """The `logprobs` object of a chat choice."""
    return ChatLogprobs(
        [
            ChatLogprob(
                token.text,
                _number(token.logprob),
                list(token.token_bytes),
                [TopLogprob(top.text, _number(top.logprob), list(top.token_bytes)) for top in token.top],
            )
            for token in tokens
        ]
    )


class CompletionLogprobsForm:
    """The `logprobs` object of a completions choice, whose text offsets run through the whole choice."""

    def __init__(self) -> None:
        self._offset = 0  # characters of the choice's text before the next token
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def skip(self, text: str) -> None:
        """Text that came without tokens: an echoed prompt."""
        self._offset += len(text)

    def take(self, tokens: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The next tokens; a NaN logprob (the first token of an echoed prompt) becomes null."""
        form = CompletionLogprobs([], [], [], [])
        for token in tokens:
            unknown = math.isnan(token.logprob)
            form.tokens.append(token.text)
            form.token_logprobs.append(None if unknown else _number(token.logprob))
            form.top_logprobs.append(None if unknown else _top(token))
            form.text_offset.append(self._offset)
            self._offset += len(self._decoder.decode(token.token_bytes))
        return form


def _top(token: TokenLogprob) -> dict[str, float]:
    """Text -> logprob of the alternatives, the sampled token always among them; of equal texts the likelier stays."""
    table: dict[str, float] = {}
    for item in (*token.top, token):
        value = _number(item.logprob)
        table[item.text] = max(value, table.get(item.text, value))
    return table


def _number(logprob: float) -> float:
    return max(logprob, LOWEST)
