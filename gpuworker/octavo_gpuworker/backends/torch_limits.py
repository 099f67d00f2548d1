"""The limits of a torch step, measured through torch with its own threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

import torch

from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.pool import KvPool

PEAK_SIDE: Final = 1024
REPEATS: Final = 5
MOST_STREAMED: Final = 2**30
"""A large model beside its pool leaves no room for a second of its size."""


class HasConfig(Protocol):
    """A decoder, as far as this needs one."""

    config: ModelConfig
    device: torch.device


def torch_limits(decoder: HasConfig, pool: KvPool) -> Limits:
    """Sizes from the config, since the weights' dtype is the pool's or wider; speeds are measured when they are asked for."""
    config, device = decoder.config, decoder.device
    dtype = getattr(decoder, "dtype", torch.float32)
    token_macs = config.layers * config.d_model * (config.qkv_rows + config.q_heads * config.head_dim + 3 * config.ffn)
    head_macs = config.d_model * config.vocab_size
    weight_bytes = (token_macs + head_macs) * dtype.itemsize
    return Limits(
        weight_bytes=weight_bytes,
        kv_token_bytes=pool.block_bytes // pool.block_tokens,
        token_macs=token_macs,
        head_macs=head_macs,
        pair_macs=2 * config.layers * config.q_heads * config.head_dim,
        threads=torch.get_num_threads(),
        stream_bytes_per_s=lambda: _stream_bytes_per_s(min(weight_bytes, MOST_STREAMED), device),
        peak_macs_per_s=lambda: _peak_macs_per_s(dtype, device),
    )


def _stream_bytes_per_s(size: int, device: torch.device) -> float:
    data = torch.ones(size // 8, dtype=torch.float64, device=device)
    return size / _best_s(lambda: data.sum(), device)


def _peak_macs_per_s(dtype: torch.dtype, device: torch.device) -> float:
    a = torch.ones(PEAK_SIDE, PEAK_SIDE, dtype=dtype, device=device)
    macs: float = PEAK_SIDE**3
    return macs / _best_s(lambda: a @ a, device)


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best
