"""PayloadShape: what the bytes of a block mean, as far as a codec must know it."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "fp8": 1}
"""Element type of a pool -> bytes per value; int8 and fp8 pools carry a float32 scale per token and head behind the values."""
_SCALE_BYTES = 4
_FIELDS = struct.Struct("<HHHHHBx")
_DTYPES = tuple(ELEMENT_BYTES)
PACKED_BYTES = _FIELDS.size


@dataclass(frozen=True, slots=True)
class PayloadShape:
    """A payload is [layers, halves (key, value), heads, tokens, width], contiguous, little-endian."""

    layers: int
    halves: int
    """2: keys and values; 1: one latent vector."""
    heads: int
    tokens: int
    width: int
    """Values per head and token."""
    dtype: str
    """A key of ELEMENT_BYTES."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the field that cannot be."""
        if self.dtype not in ELEMENT_BYTES:
            raise ValueError(f"shape.dtype: {self.dtype!r} is unknown; use {', '.join(ELEMENT_BYTES)}")
        for name in ("layers", "halves", "heads", "tokens", "width"):
            value = getattr(self, name)
            if not 1 <= value <= 0xFFFF:
                raise ValueError(f"shape.{name}: {value} must lie in 1..65535")

    @property
    def dims(self) -> tuple[int, int, int, int, int]:
        """[layers, halves, heads, tokens, width]."""
        return self.layers, self.halves, self.heads, self.tokens, self.width

    @property
    def payload_bytes(self) -> int:
        """What a block of this shape weighs."""
        rows = math.prod(self.dims[:-1])
        scales = _SCALE_BYTES if self.is_quantized else 0
        return rows * (self.width * ELEMENT_BYTES[self.dtype] + scales)

    @property
    def is_quantized(self) -> bool:
        """Whether the pool itself holds one byte per value."""
        return ELEMENT_BYTES[self.dtype] == 1

    def pack(self) -> bytes:
        """PACKED_BYTES bytes, for the head of a coded payload."""
        return _FIELDS.pack(*self.dims, _DTYPES.index(self.dtype))


def unpack_shape(packed: bytes) -> PayloadShape:
    """The reverse of `pack`. Raises ValueError when it is none."""
    if len(packed) != PACKED_BYTES:
        raise ValueError(f"shape: {len(packed)} bytes, must be {PACKED_BYTES}")
    layers, halves, heads, tokens, width, dtype = _FIELDS.unpack(packed)
    if dtype >= len(_DTYPES):
        raise ValueError(f"shape.dtype: number {dtype} is unknown")
    return PayloadShape(layers, halves, heads, tokens, width, _DTYPES[dtype])
