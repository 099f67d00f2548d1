"""Text to token ids and back. Built from a GGUF's vocabulary and merges, or from a Hugging Face tokenizer.json.

The library's own handling of special tokens is left out: a control token in a text is found here, so that a caller
decides which parts of a text may hold control tokens (templates) and which may not (what a user wrote).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import tokenizers

THREAD_TEXT_CHARS: Final = 16_384
"""Longer texts are encoded outside the event loop (about 10 ms of work)."""


@dataclass(frozen=True, slots=True)
class AddedPiece:
    """A token that is matched as a whole before any merge. lstrip, rstrip: it swallows whitespace on that side."""

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What a loader found; `Tokenizer` is made of it.

    `first` encodes a text's beginning as plain text, `inner` what follows a control token (they differ only where a
    leading space is added once). `token_bytes[id]` is the exact bytes of each token, empty for an id without a piece.
    `controls` stand for structure; `literals` are text like any other (runs of spaces, say).
    """

    first: tokenizers.Tokenizer
    inner: tokenizers.Tokenizer
    pieces: Sequence[str]
    token_bytes: Sequence[bytes]
    controls: Sequence[AddedPiece]
    literals: Sequence[AddedPiece]
    special_ids: frozenset[int]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool
    strips_leading_space: bool = False


class Tokenizer:
    """Immutable after construction but for `texts`; `encode` may run in any thread."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self.token_bytes = parts.token_bytes
        self.special_ids = parts.special_ids
        self.bos_id = parts.bos_id
        self.eos_ids = parts.eos_ids
        self.add_bos = parts.add_bos
        self.vocab_size = len(parts.token_bytes)
        self.longest_token_bytes = max(map(len, parts.token_bytes), default=1)
        self._controls = {token.text: token for token in parts.controls}
        self._literals = {token.text: token for token in parts.literals}
        self._plain_pattern = _alternatives(self._literals)
        self._full_pattern = _alternatives({**self._literals, **self._controls})
        self._texts: dict[bool, list[str | None]] = {}

    @property
    def control_texts(self) -> Iterable[str]:
        """The literal text of every control token."""
        return self._controls

    def encode(self, text: str, *, parse_special: bool = False, mark: str = "") -> list[int]:
        """Ids of `text`, without BOS.

        parse_special: control tokens in `text` become control ids; otherwise everything is plain text.
        mark: a character that is taken out after control tokens were found: it breaks those that a user typed.
        """
        pattern = self._full_pattern if parse_special else self._plain_pattern
        ids: list[int] = []
        position = 0
        for match in pattern.finditer(text) if pattern else ():
            if match.start() < position:  # swallowed by the token before
                continue
            found = match.group()
            token = self._controls.get(found) or self._literals[found]
            before = text[position : match.start()]
            ids += self._plain(_without(before.rstrip() if token.lstrip else before, mark), first=position == 0)
            ids.append(token.id)
            position = match.end()
            if token.rstrip:
                position = len(text) - len(text[position:].lstrip())
        ids += self._plain(_without(text[position:], mark), first=position == 0)
        return ids

    def _plain(self, text: str, *, first: bool) -> list[int]:
        if not text:
            return []
        encoder = self._parts.first if first else self._parts.inner
        if len(text) < THREAD_TEXT_CHARS:
            ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
            return ids
        # encode_batch releases the interpreter lock, encode does not.
        ids = encoder.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

    def with_bos(self, ids: list[int], add_bos: bool | None = None) -> list[int]:
        """`ids` behind one BOS, if the model (or `add_bos`) wants one and none is there yet."""
        wanted = self.add_bos if add_bos is None else add_bos
        if wanted and self.bos_id is not None and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def one_bos(self, ids: list[int]) -> list[int]:
        """`ids` with a doubled BOS at the beginning made single."""
        start = 0
        while self.bos_id is not None and ids[start : start + 2] == [self.bos_id, self.bos_id]:
            start += 1
        return ids[start:]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of `ids`; invalid UTF-8 becomes U+FFFD. IndexError on an id out of range."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        text = b"".join(self.token_bytes[i] for i in ids if i not in skipped).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._parts.strips_leading_space else text

    def texts(self, *, skip_special_tokens: bool) -> list[str | None]:
        """By id, the text of each token that is some whole characters, as far as its readers have put it there; None: not known."""
        known = self._texts.get(skip_special_tokens)
        if known is None:
            known = self._texts[skip_special_tokens] = [None] * self.vocab_size
        return known

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of each id. IndexError on an id out of range."""
        return [self._parts.pieces[i] for i in ids]

    def text_of(self, token_id: int | None) -> str:
        """A token's own text, as a template's `bos_token`; empty for None."""
        return "" if token_id is None else self.token_bytes[token_id].decode("utf-8", "replace")


def _alternatives(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Leftmost, then longest, as the library's own matcher."""
    by_length = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, by_length))) if by_length else None


def _without(text: str, mark: str) -> str:
    return text.replace(mark, "") if mark else text
