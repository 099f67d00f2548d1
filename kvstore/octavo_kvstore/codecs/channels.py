"""Per-channel forms: one scale per layer, half, head and channel over a block's tokens, one byte per value.

Keys have channels far larger than others at every token, so a scale per channel loses less than one per token
(Liu et al., KIVI, 2024; Hooper et al., KVQuant, 2024). Layout: bfloat16 scales [layers, halves, heads, width], then
the bytes [layers, halves, heads, tokens, width].
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.codecs.values import (
    FP8_MAX,
    Floats,
    bfloat16_to_float32,
    float32_to_fp8,
    fp8_values,
    from_float32,
    round_scales_up,
    to_float32,
)

INT8_MAX = 127.0


def encode_int8(payload: bytes, shape: PayloadShape) -> bytes | None:
    """The coded bytes, or None when a value is not finite."""
    scaled = _scaled(payload, shape, INT8_MAX)
    if scaled is None:
        return None
    bits, values = scaled
    np.rint(values, out=values)
    return bits.tobytes() + values.astype(np.int8).tobytes()


def decode_int8(coded: bytes, shape: PayloadShape) -> bytes:
    """The payload. Raises ValueError when the length is wrong."""
    scales, codes = _parts(coded, shape)
    return _unscaled(codes.view(np.int8).astype(np.float32), scales, shape)


def encode_fp8(payload: bytes, shape: PayloadShape) -> bytes | None:
    """The coded bytes, or None when a value is not finite."""
    scaled = _scaled(payload, shape, FP8_MAX)
    if scaled is None:
        return None
    bits, values = scaled
    return bits.tobytes() + float32_to_fp8(values).tobytes()


def decode_fp8(coded: bytes, shape: PayloadShape) -> bytes:
    """The payload. Raises ValueError when the length is wrong."""
    scales, codes = _parts(coded, shape)
    return _unscaled(fp8_values()[codes], scales, shape)


def _scaled(payload: bytes, shape: PayloadShape, most: float) -> tuple[NDArray[np.uint16], Floats] | None:
    values = to_float32(payload, shape)
    largest = np.maximum(values.max(axis=3, keepdims=True), -values.min(axis=3, keepdims=True))
    if not np.isfinite(largest).all():
        return None
    # far above the smallest normal number, so that the division never overflows
    bits, scales = round_scales_up(np.maximum(largest / np.float32(most), np.float32(1e-30)))
    values /= scales
    return bits, values


def _parts(coded: bytes, shape: PayloadShape) -> tuple[Floats, NDArray[np.uint8]]:
    layers, halves, heads, tokens, width = shape.dims
    channels = layers * halves * heads * width
    if len(coded) != channels * (2 + tokens):
        raise ValueError(f"coded: {len(coded)} bytes, must be {channels * (2 + tokens)}")
    scales = bfloat16_to_float32(np.frombuffer(coded, "<u2", channels)).reshape(layers, halves, heads, 1, width)
    return scales, np.frombuffer(coded, np.uint8, math.prod(shape.dims), 2 * channels).reshape(shape.dims)


def _unscaled(values: Floats, scales: Floats, shape: PayloadShape) -> bytes:
    values *= scales
    return from_float32(values, shape)
