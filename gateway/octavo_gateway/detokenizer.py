"""Incremental detokenization: token ids in, text out, never half a character and never one lost.

Works on bytes, not on pieces: each token has exact bytes, and UTF-8 itself says where characters end. So emoji joined by
ZWJ, flags, or a character split over four tokens need no special case, and text never has to be decoded twice.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence, Set
from typing import Final

_MAX_CHAR_BYTES: Final = 4
_NEW_DECODER: Final = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One choice's stream. `token_bytes` as in `Tokenizer`; ids in `skipped` have no text.

    The concatenation of all `feed` results and of `flush` equals the bytes of all ids decoded at once, invalid UTF-8
    replaced by U+FFFD (maximal subparts, as the Unicode standard recommends).
    """

    __slots__ = ("_decoder", "_skipped", "_token_bytes")

    def __init__(
        self, token_bytes: Sequence[bytes], skipped: Set[int] = frozenset(), prompt_ids: Sequence[int] = ()
    ) -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = _NEW_DECODER("replace")
        # A prompt may end inside a character, whose rest is then the output's beginning.
        self._decoder.decode(unfinished_tail(self._bytes_of_tail(prompt_ids)))

    def _bytes_of_tail(self, ids: Sequence[int]) -> bytes:
        tail = b""
        for token_id in reversed(ids):
            if len(tail) >= _MAX_CHAR_BYTES:
                break
            tail = (b"" if token_id in self._skipped else self._token_bytes[token_id]) + tail
        return tail

    def feed(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is unfinished. IndexError on an id out of range."""
        return "" if token_id in self._skipped else self._decoder.decode(self._token_bytes[token_id])

    @property
    def clean(self) -> bool:
        """No character is unfinished: what comes next is text by itself."""
        return not self._decoder.getstate()[0]

    def whole(self, token_id: int) -> str | None:
        """Its text, where that is some whole characters whatever comes before and after. IndexError on an id out of range."""
        if token_id in self._skipped:
            return None
        try:
            return self._token_bytes[token_id].decode() or None
        except UnicodeDecodeError:
            return None

    def flush(self) -> str:
        """What an unfinished character at the end becomes: U+FFFD, or nothing. Ends the stream."""
        return self._decoder.decode(b"", True)


def unfinished_tail(data: bytes) -> bytes:
    """The last bytes of `data` that begin a UTF-8 character and do not end it; empty when there are none."""
    decoder = _NEW_DECODER("replace")
    decoder.decode(data)
    pending: bytes = decoder.getstate()[0]
    return pending
