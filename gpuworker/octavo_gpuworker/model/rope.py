"""Rotary frequencies of a config: plain, linear, llama3, or divided by a GGUF's own factors. Without torch: both CPU paths share it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.model.config import ModelConfig, RopeScaling


def frequencies(config: ModelConfig) -> NDArray[np.float32]:
    """[head_dim / 2]: theta^(-2i / head_dim), stretched as rope_scaling says (RoPE, arXiv 2104.09864)."""
    exponents = np.arange(0, config.head_dim, 2).astype(np.float32) / np.float32(config.head_dim)
    plain: NDArray[np.float32] = (np.float32(1) / np.power(np.float32(config.rope_theta), exponents)).astype(np.float32)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / np.float32(scaling.factor)
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    return plain / np.array(scaling.factors, np.float32)


def _llama3(plain: NDArray[np.float32], scaling: RopeScaling) -> NDArray[np.float32]:
    """Llama 3.1: long waves are slowed by `factor`, short ones kept, and between the two a linear blend."""
    wavelengths = np.float32(2 * math.pi) / plain
    low = scaling.original_max_position / scaling.low_freq_factor
    high = scaling.original_max_position / scaling.high_freq_factor
    slowed = plain / np.float32(scaling.factor)
    blend = (
        np.float32(scaling.original_max_position) / wavelengths - np.float32(scaling.low_freq_factor)
    ) / np.float32(scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - blend) * slowed + blend * plain
    result = np.where(wavelengths > low, slowed, blended)
    return np.where(wavelengths < high, plain, result).astype(np.float32)
