"""Rotary frequencies of a config: plain, linear, llama3, or divided by a GGUF's own factors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo_gpuworker.model.config import ModelConfig, RopeScaling


def inverse_frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """[head_dim / 2] float32: theta^(-2i / head_dim), stretched as rope_scaling says (RoPE, arXiv 2104.09864)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is not None:
        if scaling.kind == "linear":
            frequencies = frequencies / scaling.factor
        elif scaling.kind == "llama3":
            frequencies = _llama3(frequencies, scaling)
        else:
            frequencies = frequencies / torch.tensor(scaling.factors)
    return frequencies.to(device)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: long waves are slowed by `factor`, short ones kept, and between the two a linear blend."""
    wavelengths = 2 * math.pi / frequencies
    low = scaling.original_max_position / scaling.low_freq_factor
    high = scaling.original_max_position / scaling.high_freq_factor
    slowed = frequencies / scaling.factor
    blend = (scaling.original_max_position / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - blend) * slowed + blend * frequencies
    result = torch.where(wavelengths > low, slowed, blended)
    return torch.where(wavelengths < high, frequencies, result)
