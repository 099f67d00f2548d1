"""BlockShape: what the bytes of one block of the pool are."""

from __future__ import annotations

from typing import NamedTuple


class BlockShape(NamedTuple):
    """What a block's bytes are: [layers, halves, heads, tokens, width] values of `dtype`; of int8 and fp8 with scales behind them."""

    layers: int
    halves: int
    """2: keys and values; 1: one latent vector."""
    heads: int
    tokens: int
    width: int
    dtype: str
    """bfloat16, float16, float32, int8, fp8."""
