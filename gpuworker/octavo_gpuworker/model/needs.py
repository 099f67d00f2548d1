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
    weight_dtype: torch.dtype | None = None,
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
        experts=0 if config.experts is None else config.experts.count,
        expert_ffn=0 if config.experts is None else config.experts.ffn,
        latent=0 if config.latent is None else config.latent.rank,
        latent_rope=64 if config.latent is None else config.latent.rope,
        weight_dtype=weight_dtype,
        soft_cap=config.attention_soft_cap,
        capability=capability_of(device),
    )
