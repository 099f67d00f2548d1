"""Packed little-endian u32 and 32-byte keys: how ids travel in `bytes` fields (no per-element protobuf work)."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence

KEY_BYTES = 32
_SWAP = sys.byteorder != "little"


def pack_u32(values: Iterable[int]) -> bytes:
    """Little-endian u32 bytes of `values`; raises OverflowError on a value outside [0, 2**32)."""
    packed = array("I", values)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def unpack_u32(data: bytes) -> list[int]:
    """The values of `pack_u32`; raises ValueError when the length is no multiple of 4."""
    unpacked = array("I", data)
    if _SWAP:
        unpacked.byteswap()
    return unpacked.tolist()


class RepeatingColumn:
    """A column of a stream's messages that mostly says what it said in the last one: then nothing is packed or unpacked again.

    What it gives and is given belongs to all messages: nobody may change it.
    """

    __slots__ = ("_data", "_packed", "_unpacked")

    def __init__(self) -> None:
        self._data = b""
        self._packed: Sequence[int] = ()
        self._unpacked: list[int] = []

    def pack(self, values: Sequence[int]) -> bytes:
        """As `pack_u32`; of one column always the same kind of sequence."""
        if values != self._packed:
            self._data, self._packed = pack_u32(values), values
        return self._data

    def unpack(self, data: bytes) -> list[int]:
        """As `unpack_u32`. A column is packed or unpacked, not both."""
        if data != self._data:
            self._unpacked, self._data = unpack_u32(data), data
        return self._unpacked


def pack_keys(keys: Sequence[bytes]) -> bytes:
    """Concatenates 32-byte block keys."""
    return b"".join(keys)


def unpack_keys(data: bytes) -> list[bytes]:
    """Splits concatenated 32-byte keys; raises ValueError when the length is no multiple of 32."""
    if len(data) % KEY_BYTES:
        raise ValueError(f"packed keys: {len(data)} bytes is no multiple of {KEY_BYTES}")
    return [data[i : i + KEY_BYTES] for i in range(0, len(data), KEY_BYTES)]


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A protobuf varint at `at`, and where it ends. Raises IndexError when it is cut off, ValueError when it has more than ten bytes."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")
