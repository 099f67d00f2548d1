"""store_kv: splits the fused projection, normalises heads (Qwen3), rotates (RoPE, arXiv 2104.09864), writes K and V to their slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(slots=True)
class KvWrite:
    """What store_kv needs of a step, the same in every layer."""

    cos: Tensor
    """[T, 1, 1, head_dim / 2] float32."""
    sin: Tensor
    """[T, 1, 2, head_dim / 2] float32: -sin for the first half, +sin for the second."""
    blocks: Tensor
    """[T] int64: block of each new token's KV."""
    offsets: Tensor
    """[T] int64: position of the token inside the block."""
    q_heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, H, D] -> rotated [T, H, D] float32; halves are the pairs (GPT-NeoX order, as Hugging Face stores weights)."""
    halves = x.float().view(*x.shape[:-1], 2, cos.shape[-1])
    return torch.addcmul(halves * cos, halves.flip(-2), sin).flatten(-2)


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [..., D] float32 -> (values [..., D] int8 or float8_e4m3fn, scales [...] float32); x is about values * scale."""
    highest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    amax = x.abs().amax(-1)
    scales = torch.where(amax > 0, amax / highest, 1.0)
    values = x / scales[..., None]
    return (torch.floor(values + 0.5) if dtype == torch.int8 else values).to(dtype), scales


def store_kv_torch(
    qkv: Tensor,
    write: KvWrite,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    kv_layer: Tensor,
    scales_layer: Tensor | None = None,
) -> Tensor:
    """qkv [T, (q + 2 kv) * D] -> rotated queries [T, q_heads, D] in qkv's dtype.

    `kv_layer` is one layer of the pool, [num_blocks, 2, kv_heads, block_tokens, D] with any strides; written in place.
    `scales_layer` [num_blocks, 2, kv_heads, block_tokens] float32 is written beside an int8 or fp8 cache.
    """
    tokens, heads, kv_heads = qkv.shape[0], write.q_heads, write.kv_heads
    split = qkv.view(tokens, heads + 2 * kv_heads, write.head_dim)
    rotary = split[:, : heads + kv_heads]
    if q_norm is not None and k_norm is not None:
        queries = F.rms_norm(split[:, :heads], q_norm.shape, q_norm, write.norm_eps)
        keys = F.rms_norm(split[:, heads : heads + kv_heads], k_norm.shape, k_norm, write.norm_eps)
        rotary = torch.cat((queries, keys), dim=1)
    rotated = rotate(rotary, write.cos, write.sin)
    # One indexed write for both halves: [T, 2, kv_heads, D] into slots [block, offset].
    if scales_layer is None:
        keys, values = rotated[:, heads:].to(kv_layer.dtype), split[:, heads + kv_heads :].to(kv_layer.dtype)
        pair = torch.stack((keys, values), dim=1)
    else:
        both = torch.stack((rotated[:, heads:], split[:, heads + kv_heads :].float()), dim=1)
        pair, scales = quantize(both, kv_layer.dtype)
        scales_layer.permute(0, 3, 1, 2).index_put_((write.blocks, write.offsets), scales)
    kv_layer.permute(0, 3, 1, 2, 4).index_put_((write.blocks, write.offsets), pair)
    return rotated[:, :heads].to(qkv.dtype)
