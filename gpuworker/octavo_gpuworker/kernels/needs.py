"""KernelNeeds: what a decoder asks of its kernels; implementations answer with a reason where they cannot give it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KernelNeeds:
    """Device, dtypes and shapes of one decoder. The defaults are what every implementation takes."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    """Weights and activations."""
    kv_dtype: torch.dtype = torch.float32
    """The cache; int8 and float8_e4m3fn stand for a cache with float32 scales per token and head."""
    head_dim: int = 64
    q_heads: int = 8
    kv_heads: int = 8
    block_tokens: int = 16
    d_model: int = 512
    ffn: int = 2048
    vocab_size: int = 0
    """0: any."""
    experts: int = 0
    """Of a mixture of experts; 0: a dense model."""
    expert_ffn: int = 0
    """Inner size of one expert."""
    latent: int = 0
    """Width of a latent cache (MLA); 0: keys and values per head."""
    latent_rope: int = 64
    """Width of its rotated part."""
    weight_dtype: torch.dtype | None = None
    """int8, uint8 (int4 pairs) or float8_e4m3fn of quantized weights; None: as the activations."""
    soft_cap: float = 0.0
    """Of attention scores; 0: none."""
    capability: int = 90
    """Compute capability of a CUDA device, 90 for 9.0."""
    explicit: bool = False
    """Triton was asked for by name, so its interpreter and rows that give way to others count too."""

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q_heads // self.kv_heads

    @property
    def quantized(self) -> bool:
        """The cache has scales."""
        return self.kv_dtype.itemsize == 1


def capability_of(device: torch.device) -> int:
    """Compute capability of a CUDA device, 90 for 9.0; what the kernels were sized for where there is none."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
