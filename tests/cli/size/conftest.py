"""A Llama-like shape as the worker's reader gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from octavo_cli.size.shape import ModelShape, shape_from


def content(
    kv_heads: int = 8, q_heads: int = 32, layers: int = 32, head_dim: int = 128, **changes: Any
) -> dict[str, Any]:
    d_model, ffn, vocab = q_heads * head_dim, 14336, 128256
    rows = (q_heads + 2 * kv_heads) * head_dim
    return {
        "name": "test", "architecture": "llama", "layers": layers, "d_model": d_model, "q_heads": q_heads,
        "kv_heads": kv_heads, "head_dim": head_dim, "ffn": ffn, "vocab": vocab, "max_position": 8192, "tied": False,
        "latent": False, "experts": 0, "cache": {"halves": 2, "heads": kv_heads, "width": head_dim},
        "matrices": [
            {"name": "embedding", "rows": vocab, "depth": d_model, "count": 1, "kind": "embedding"},
            {"name": "qkv", "rows": rows, "depth": d_model, "count": layers, "kind": "matrix"},
            {"name": "o", "rows": d_model, "depth": d_model, "count": layers, "kind": "matrix"},
            {"name": "gate_up", "rows": 2 * ffn, "depth": d_model, "count": layers, "kind": "matrix"},
            {"name": "down", "rows": d_model, "depth": ffn, "count": layers, "kind": "matrix"},
            {"name": "head", "rows": vocab, "depth": d_model, "count": 1, "kind": "head"},
        ],
        "vectors": (2 * layers + 1) * d_model, "file_bytes": 0,
    } | changes  # fmt: skip


@pytest.fixture
def make_shape() -> Callable[..., ModelShape]:
    return lambda **changes: shape_from(content(**changes))
