"""Payloads that look like a cache's, for tests and for measuring codecs without a model."""

from __future__ import annotations

import numpy as np

from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.codecs.values import from_float32


def sample_payload(shape: PayloadShape, seed: int = 1, outlier: float = 20.0) -> bytes:
    """Neighbouring tokens are alike, and two channels of each head are `outlier` times larger than the others."""
    rng = np.random.default_rng(seed)
    layers, halves, heads, _tokens, width = shape.dims
    values = rng.standard_normal((layers, halves, heads, 1, width)) + 0.3 * rng.standard_normal(shape.dims)
    values[..., :2] *= outlier
    return from_float32(values.astype(np.float32), shape)
