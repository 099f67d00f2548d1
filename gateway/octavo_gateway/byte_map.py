"""The bytes of each token, from how a vocabulary spells them: byte-level (GPT-2) or SentencePiece with byte fallback."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_PIECE: Final = "\u2581"


def byte_level_alphabet() -> Mapping[str, int]:
    """GPT-2's map from a printable character to the byte it stands for (`bytes_to_unicode`, openai/gpt-2 encoder.py)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


def byte_level_bytes(piece: str, alphabet: Mapping[str, int]) -> bytes:
    """Bytes of a byte-level piece; a piece with a character outside the alphabet is literal text."""
    try:
        return bytes([alphabet[char] for char in piece])
    except KeyError:
        return piece.encode("utf-8", "replace")


def sentencepiece_bytes(piece: str) -> bytes:
    """Bytes of a SentencePiece piece: `<0xNN>` is one byte, U+2581 is a space."""
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace(SPACE_PIECE, " ").encode("utf-8", "replace")
