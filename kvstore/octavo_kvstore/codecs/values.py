"""Payload bytes as float32 values and back, for the element types that codecs compress."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from octavo_kvstore.codecs.shape import PayloadShape

Floats = NDArray[np.float32]
FP8_MAX = 448.0
"""Largest finite e4m3 value."""


def to_float32(payload: bytes, shape: PayloadShape) -> Floats:
    """[layers, halves, heads, tokens, width] float32, a fresh array. The payload has shape.payload_bytes bytes."""
    if shape.dtype == "bfloat16":
        return bfloat16_to_float32(np.frombuffer(payload, "<u2")).reshape(shape.dims)
    if shape.dtype == "float16":
        return np.frombuffer(payload, "<f2").astype(np.float32).reshape(shape.dims)
    return np.frombuffer(payload, "<f4").astype(np.float32).reshape(shape.dims)


def from_float32(values: Floats, shape: PayloadShape) -> bytes:
    """The payload that these values round to. `values` may be overwritten."""
    if shape.dtype == "bfloat16":
        return float32_to_bfloat16(values).tobytes()
    if shape.dtype == "float16":
        return np.clip(values, -65504, 65504).astype("<f2").tobytes()
    return values.astype("<f4", copy=False).tobytes()


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> Floats:
    """The values of bfloat16 bit patterns."""
    wide = np.empty(bits.shape, np.uint32)
    np.left_shift(bits, 16, out=wide, dtype=np.uint32)
    return wide.view(np.float32)


def float32_to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Bit patterns, rounded to nearest, ties to even; finite values only. Overwrites `values`."""
    bits = values.view(np.uint32)
    bits += 0x7FFF + ((bits >> 16) & 1)
    return (bits >> 16).astype(np.uint16)


def round_scales_up(scales: Floats) -> tuple[NDArray[np.uint16], Floats]:
    """(bfloat16 bits, their values) of positive scales, never below the given ones, so that nothing has to be clipped."""
    bits = ((scales.view(np.uint32) + 0xFFFF) >> 16).astype(np.uint16)
    return bits, bfloat16_to_float32(bits)


@cache
def fp8_values() -> Floats:
    """[256] float32: what each e4m3fn byte means (Micikevicius et al., FP8 formats, 2022); the two NaNs as 0."""
    codes = np.arange(256)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3) & 0xF, codes & 0x7
    normal = (1 + mantissa / 8) * np.exp2(exponent - 7.0)
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal) * sign
    return np.where((codes & 0x7F) == 0x7F, 0.0, values).astype(np.float32)


@cache
def fp8_codes() -> NDArray[np.uint8]:
    """[65536] uint8: the e4m3fn byte nearest to each float16 bit pattern, ties to even, saturating; NaN as 0."""
    finite = fp8_values()[:0x7F].astype(np.float64)  # 0 .. 448, ascending
    positive = np.arange(0x8000, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (finite[1:] + finite[:-1]) / 2
    nearest = np.searchsorted(middles, positive, side="left")
    ties = np.isin(positive, middles) & (nearest % 2 == 1)
    nearest = np.where(np.isnan(positive), 0, nearest + ties).astype(np.uint8)
    return np.concatenate([nearest, nearest | 0x80])


def float32_to_fp8(values: Floats) -> NDArray[np.uint8]:
    """e4m3fn bytes of values within +-FP8_MAX."""
    codes: NDArray[np.uint8] = fp8_codes()[values.astype(np.float16).view(np.uint16)]
    return codes
