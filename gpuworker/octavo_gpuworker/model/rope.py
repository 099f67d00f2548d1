"""Rotary frequencies of a config: plain, linear, llama3, or divided by a GGUF's own factors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo_gpuworker.model.config import ModelConfig, RopeScaling


def inverse_frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """[rotary_dim / 2] float32: theta^(-2i / rotary_dim), stretched as rope_scaling says (RoPE, arXiv 2104.09864)."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.int64).float() / config.rotary_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is not None:
        if scaling.kind == "linear":
            frequencies = frequencies / scaling.factor
        elif scaling.kind == "llama3":
            frequencies = _llama3(frequencies, scaling)
        elif scaling.kind == "yarn":
            frequencies = _yarn(frequencies, config.rope_theta, scaling)
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


def _yarn(frequencies: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """YaRN (arXiv 2309.00071): by how often a wave turns within the trained context, kept, slowed, or between the two."""
    pairs = len(frequencies)

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(scaling.original_max_position / (times * 2 * math.pi)) / math.log(theta)

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), 2 * pairs - 1)
    slowed = ((torch.arange(pairs).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies * (1 - slowed) + frequencies / scaling.factor * slowed
