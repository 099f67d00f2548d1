"""needs_of: what a model asks of the kernels' table."""

from __future__ import annotations

import torch

from octavo_gpuworker.kernels.needs import KernelNeeds, capability_of
from octavo_gpuworker.model.config import ModelConfig


def needs_of(
    config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    block_tokens: int,
) -> KernelNeeds:
    """What a decoder of `config` asks for."""
    return KernelNeeds(
        device,
        dtype,
        kv_dtype,
        config.head_dim,
        config.q_heads,
        config.kv_heads,
        block_tokens,
        config.d_model,
        config.ffn,
        config.vocab_size,
        capability=capability_of(device),
    )
