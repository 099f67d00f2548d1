"""Rotary frequencies of a config: plain, linear, llama3, or divided by a GGUF's own factors. Without torch: both CPU paths share it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.model.config import ModelConfig, RopeScaling


def frequencies(config: ModelConfig) -> NDArray[np.float32]:
    """[rotary_dim / 2]: theta^(-2i / rotary_dim), stretched as rope_scaling says (RoPE, arXiv 2104.09864)."""
    exponents = np.arange(0, config.rotary_dim, 2).astype(np.float32) / np.float32(config.rotary_dim)
    plain: NDArray[np.float32] = (np.float32(1) / np.power(np.float32(config.rope_theta), exponents)).astype(np.float32)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return (plain / np.float32(scaling.factor)).astype(np.float32)
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    if scaling.kind == "yarn":
        return _yarn(plain, config.rope_theta, scaling)
    return (plain / np.array(scaling.factors, np.float32)).astype(np.float32)


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


def _yarn(plain: NDArray[np.float32], theta: float, scaling: RopeScaling) -> NDArray[np.float32]:
    """YaRN (arXiv 2309.00071): by how often a wave turns within the trained context, kept, slowed, or between the two."""
    pairs = len(plain)

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(scaling.original_max_position / (times * 2 * math.pi)) / math.log(theta)

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), 2 * pairs - 1)
    slowed = np.clip((np.arange(pairs, dtype=np.float32) - low) / np.float32(max(high - low, 0.001)), 0, 1)
    result: NDArray[np.float32] = plain * (1 - slowed) + plain / np.float32(scaling.factor) * slowed
    return result.astype(np.float32)
