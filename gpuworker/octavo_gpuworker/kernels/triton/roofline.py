"""What each kernel must move and multiply at least, and the time that takes on one H200; formulas as in docs/kernels.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

H200_COPY_BYTES_PER_S: Final = 4.3e12
"""Device-to-device copy, read plus write, measured on such a card."""
H200_BF16_FLOPS_PER_S: Final = 790e12
"""bf16 8192^3 product on random data, measured on such a card."""


@dataclass(frozen=True, slots=True)
class Work:
    """Least traffic with device memory and arithmetic of one call."""

    bytes: int
    flops: int = 0

    @property
    def floor_us(self) -> float:
        """The longer of the two on an H200, microseconds."""
        return 1e6 * max(self.bytes / H200_COPY_BYTES_PER_S, self.flops / H200_BF16_FLOPS_PER_S)

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention shape; sizes of elements in bytes. `kv_scale_bytes` is 4 for an int8 or fp8 cache, else 0."""

    q_heads: int
    kv_heads: int
    head_dim: int
    element_bytes: int = 2
    kv_element_bytes: int = 2
    kv_scale_bytes: int = 0

    @property
    def kv_token_bytes(self) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.kv_heads * (self.head_dim * self.kv_element_bytes + self.kv_scale_bytes)


def paged_attention(heads: Heads, work: Iterable[tuple[int, int]], window: int | None = None) -> Work:
    """`work` = (new tokens n, context c) per sequence. Every visible key is read once, every query and result moved once."""
    total_bytes = flops = 0
    for new, context in work:
        first = 0 if window is None else max(0, context - new - window + 1)
        seen = range(context - new + 1, context + 1)
        pairs = sum(position if window is None else min(position, window) for position in seen)
        total_bytes += (
            context - first
        ) * heads.kv_token_bytes + 2 * new * heads.q_heads * heads.head_dim * heads.element_bytes
        flops += 4 * pairs * heads.q_heads * heads.head_dim
    return Work(total_bytes, flops)


def store_kv(heads: Heads, tokens: int) -> Work:
    """The projection and the rotation's cosines and sines are read, queries, keys and values written."""
    read = (heads.q_heads + 2 * heads.kv_heads) * heads.head_dim * heads.element_bytes + 3 * heads.head_dim // 2 * 4
    return Work(tokens * (read + heads.q_heads * heads.head_dim * heads.element_bytes + heads.kv_token_bytes))


def rms_norm(tokens: int, width: int, element_bytes: int = 2, residual_bytes: int = 0) -> Work:
    """x read, result written; a residual (`residual_bytes` per element) read and written."""
    return Work(tokens * width * (2 * element_bytes + 2 * residual_bytes) + width * element_bytes)


def gated_mul(tokens: int, ffn: int, element_bytes: int = 2) -> Work:
    """Gate and up read, product written."""
    return Work(3 * tokens * ffn * element_bytes)


def soft_cap(count: int, element_bytes: int = 2) -> Work:
    """Read and written once."""
    return Work(2 * count * element_bytes)


def move_blocks(count: int, block_bytes: int) -> Work:
    """Read and written once."""
    return Work(2 * count * block_bytes)


def linear(rows: int, depth: int, columns: int, element_bytes: int = 2) -> Work:
    """Weight and x read, result written."""
    return Work((columns * depth + rows * (depth + columns)) * element_bytes, 2 * rows * depth * columns)


def sample(rows: int, vocab_size: int) -> Work:
    """float32 logits read once; what else a draw needs is short."""
    return Work(4 * rows * vocab_size)


def quant_linear(
    rows: int, depth: int, columns: int, bits: int, group: int, element_bytes: int = 2, scale_bytes: int = 2
) -> Work:
    """Weight, its scales and x read, result written."""
    weight = columns * depth * bits // 8 + columns * (depth // group) * scale_bytes
    return Work(weight + rows * (depth + columns) * element_bytes, 2 * rows * depth * columns)


def moe(tokens: int, experts: int, top_k: int, width: int, ffn: int, element_bytes: int = 2) -> Work:
    """Matrices of the experts that tokens can reach are read once, x read, result written; what lies between stays in caches."""
    reached = min(experts, tokens * top_k)
    matrices = 3 * reached * width * ffn * element_bytes
    return Work(matrices + 2 * tokens * width * element_bytes, 6 * tokens * top_k * width * ffn)


def mla_decode(contexts: Iterable[int], heads: int, latent: int = 512, rope: int = 64, element_bytes: int = 2) -> Work:
    """Each latent read once for all heads; queries read, results written, per sequence of one new token."""
    total_bytes = flops = 0
    for context in contexts:
        total_bytes += (context * (latent + rope) + heads * (2 * latent + rope)) * element_bytes
        flops += 2 * context * heads * (2 * latent + rope)
    return Work(total_bytes, flops)
