"""Which models blending takes, and the layer at which it chooses. No torch."""

from __future__ import annotations

from typing import Final

from octavo_gpuworker.block_shape import BlockShape
from octavo_gpuworker.model.config import ModelConfig

SELECTED_AT: Final = 1
"""The layer in which tokens are chosen: the first one whose KV depends on the context."""
KV_DTYPES: Final = ("bfloat16", "float32", "int8")


def model_refusal(config: ModelConfig) -> str:
    """Why keys of this model cannot be moved, or an empty string."""
    odd = config.latent or config.experts or config.sliding_window or config.attention_soft_cap or config.post_norms
    if odd or config.rotary_dim != config.head_dim:
        return f"blending takes Llama-like models; {config.architecture} has layers of another kind"
    if config.layers <= SELECTED_AT + 1:
        return f"blending takes models of more than {SELECTED_AT + 1} layers; this one has {config.layers}"
    return ""


def pool_refusal(shape: BlockShape | None) -> str:
    """Why blocks of this shape cannot be moved, or an empty string. fp8 keeps 3 bits of a key: turned ones would be rounded to those again."""
    dtype = "unknown" if shape is None else shape.dtype
    return "" if dtype in KV_DTYPES else f"blending takes KV of {' or '.join(KV_DTYPES)}; the pool's is {dtype}"
