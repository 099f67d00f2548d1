"""Entropy-coded forms: values quantized with one step per layer, half and head, the difference to the token before, zstd.

Neighbouring tokens have similar keys and values, and an entropy coder takes the spread of channels that a scale per
channel would have to spend bytes on (Liu et al., CacheGen, SIGCOMM 2024). Layout: bfloat16 steps [layers, halves,
heads], then one zstd frame of int8 differences [layers, halves, heads, tokens, width], modulo 256.

The exact form loses nothing: low bytes of all values, then the next bytes, one zstd frame.
"""

from __future__ import annotations

import math

import numpy as np
import zstandard

from octavo_kvstore.codecs.shape import ELEMENT_BYTES, PayloadShape
from octavo_kvstore.codecs.values import bfloat16_to_float32, from_float32, round_scales_up, to_float32


def encode_delta(payload: bytes, shape: PayloadShape, bits: int, zstd_level: int) -> bytes | None:
    """The coded bytes, or None when a value is not finite. `bits` 4..8: values lie in +-(2^(bits-1) - 1) steps."""
    values = to_float32(payload, shape)
    largest = np.maximum(values.max(axis=(3, 4), keepdims=True), -values.min(axis=(3, 4), keepdims=True))
    if not np.isfinite(largest).all():
        return None
    most = np.float32(2 ** (bits - 1) - 1)
    scale_bits, steps = round_scales_up(np.maximum(largest / most, np.float32(1e-30)))
    values /= steps
    np.rint(values, out=values)
    codes = values.astype(np.int8).view(np.uint8)
    changes = np.empty_like(codes)
    changes[..., 0, :] = codes[..., 0, :]
    np.subtract(codes[..., 1:, :], codes[..., :-1, :], out=changes[..., 1:, :])
    return scale_bits.tobytes() + zstandard.ZstdCompressor(level=zstd_level).compress(changes.data)


def decode_delta(coded: bytes, shape: PayloadShape) -> bytes:
    """The payload. Raises ValueError when the bytes are not a coded payload of this shape."""
    layers, halves, heads, _tokens, _width = shape.dims
    groups = layers * halves * heads
    if len(coded) < 2 * groups:
        raise ValueError(f"coded: {len(coded)} bytes, its steps alone have {2 * groups}")
    steps = bfloat16_to_float32(np.frombuffer(coded, "<u2", groups)).reshape(layers, halves, heads, 1, 1)
    changes = _decompress(memoryview(coded)[2 * groups :], math.prod(shape.dims))
    codes = np.frombuffer(changes, np.uint8).reshape(shape.dims)
    values = np.cumsum(codes, axis=3, dtype=np.uint8).view(np.int8).astype(np.float32)
    values *= steps
    return from_float32(values, shape)


def encode_exact(payload: bytes, shape: PayloadShape, zstd_level: int) -> bytes:
    """The coded bytes; any payload of whole elements."""
    planes = np.frombuffer(payload, np.uint8).reshape(-1, ELEMENT_BYTES[shape.dtype]).T
    return zstandard.ZstdCompressor(level=zstd_level).compress(np.ascontiguousarray(planes).data)


def decode_exact(coded: bytes, shape: PayloadShape) -> bytes:
    """The payload, bit by bit. Raises ValueError when the bytes are not a coded payload of this shape."""
    planes = np.frombuffer(_decompress(coded, shape.payload_bytes), np.uint8)
    return np.ascontiguousarray(planes.reshape(ELEMENT_BYTES[shape.dtype], -1).T).tobytes()


def _decompress(frame: bytes | memoryview, size: int) -> bytes:
    """Exactly `size` bytes; a frame that claims another size is refused before it is unpacked."""
    try:
        if zstandard.frame_content_size(frame) != size:
            raise ValueError("coded: the frame holds another number of bytes")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(f"coded: {error}") from error
