"""Fused q/k norm, rotation and paged KV write: one read of the projection, one write of each result (RoPE, arXiv 2104.09864).

For an int8 or fp8 cache every (token, KV head) has a float32 scale of its own, amax / 127 or amax / 448 (fp8 is e4m3).
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_gpuworker.kernels.store_kv import KvWrite
from octavo_gpuworker.kernels.triton.launch import Launch, ceil_div

TOKENS_PER_PROGRAM: Final = 8
"""Tokens of one head per program once there are enough of them to fill the device; decode batches take one."""

NOT_SPECIALIZED: Final = (
    "tokens",
    "q_heads",
    "kv_heads",
    "stride_scale_block",
    "stride_scale_half",
    "stride_scale_head",
)
"""Integers whose value (1, or a multiple of 16) must not make another binary."""


@triton.jit
def _write_half(first, second, row, scale_slot, where, HALF: tl.constexpr, QUANTIZED: tl.constexpr):
    """Stores one head's two halves [M, HALF] at row [M] (pointers), quantized per token where the cache is."""
    dims = tl.arange(0, HALF)
    element = row.dtype.element_ty
    if QUANTIZED:
        highest: tl.constexpr = 127.0 if element == tl.int8 else 448.0
        amax = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        scale = tl.where(amax > 0.0, amax / highest, 1.0)
        tl.store(scale_slot, scale, mask=where)
        first = first / scale[:, None]
        second = second / scale[:, None]
        if element == tl.int8:
            first = tl.floor(first + 0.5)
            second = tl.floor(second + 0.5)
    tl.store(row[:, None] + dims[None, :], first.to(element), mask=where[:, None])
    tl.store(row[:, None] + (HALF + dims)[None, :], second.to(element), mask=where[:, None])


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def store_kv_kernel(
    queries,
    qkv,
    kv,
    scales,
    q_norm,
    k_norm,
    cos,
    sin,
    blocks,
    offsets,
    tokens,
    q_heads,
    kv_heads,
    stride_qkv,
    stride_block,
    stride_half,
    stride_head,
    stride_token,
    stride_scale_block,
    stride_scale_half,
    stride_scale_head,
    eps,
    TILE_M: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    QUANTIZED: tl.constexpr,
):
    """Head h of TILE_M tokens: a query is normalised, rotated and stored to queries [T, q_heads, D]; a key likewise to its slot;
    a value goes to its slot as it is. Grid: (ceil(T / TILE_M), q_heads + 2 kv_heads)."""
    token = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    head = tl.program_id(1)
    where = token < tokens
    dims = tl.arange(0, HALF)
    source = qkv + token.to(tl.int64) * stride_qkv + head * (2 * HALF)
    first = tl.load(source[:, None] + dims[None, :], mask=where[:, None], other=0.0).to(tl.float32)
    second = tl.load(source[:, None] + (HALF + dims)[None, :], mask=where[:, None], other=0.0).to(tl.float32)
    if head < q_heads + kv_heads:
        if NORM:
            # Weights of query and key heads lie apart; both addresses are valid, one is read.
            weight = tl.where(head < q_heads, q_norm, k_norm)
            square = tl.sum(first * first, 1) + tl.sum(second * second, 1)
            inverse = 1.0 / tl.sqrt(square / (2 * HALF) + eps)
            first = first * inverse[:, None] * tl.load(weight + dims).to(tl.float32)[None, :]
            second = second * inverse[:, None] * tl.load(weight + HALF + dims).to(tl.float32)[None, :]
            first = first.to(qkv.dtype.element_ty).to(tl.float32)
            second = second.to(qkv.dtype.element_ty).to(tl.float32)
        angle = token[:, None] * HALF + dims[None, :]
        c = tl.load(cos + angle, mask=where[:, None], other=0.0)
        # sin is [T, 2, HALF]: -sin, then +sin.
        s = tl.load(sin + token[:, None] * (2 * HALF) + (HALF + dims)[None, :], mask=where[:, None], other=0.0)
        rotated = first * c - second * s
        second = second * c + first * s
        first = rotated
    if head < q_heads:
        target = queries + (token.to(tl.int64) * q_heads + head) * (2 * HALF)
        _write_half(first, second, target, target, where, HALF, False)
    else:
        block = tl.load(blocks + token, mask=where, other=0)
        offset = tl.load(offsets + token, mask=where, other=0)
        kv_head = (head - q_heads) % kv_heads
        half = (head - q_heads) // kv_heads
        row = kv + block * stride_block + half * stride_half + kv_head * stride_head + offset * stride_token
        if QUANTIZED:
            slot = scales + block * stride_scale_block + half * stride_scale_half + kv_head * stride_scale_head + offset
            _write_half(first, second, row, slot, where, HALF, True)
        else:
            _write_half(first, second, row, row, where, HALF, False)


def store_kv_launch(
    queries: Tensor,
    qkv: Tensor,
    write: KvWrite,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    kv_layer: Tensor,
    scales_layer: Tensor | None,
) -> Launch:
    """The launch that fills queries [T, q_heads, D] and the slots of one layer; arguments as `store_kv_torch`."""
    tokens, heads = qkv.shape[0], write.q_heads + 2 * write.kv_heads
    tile = TOKENS_PER_PROGRAM if tokens * heads >= 16 * 1024 else 1
    scale_strides = (0, 0, 0) if scales_layer is None else scales_layer.stride()[:3]
    normed = q_norm is not None and k_norm is not None
    return Launch(
        store_kv_kernel,
        (ceil_div(tokens, tile), heads),
        {
            "queries": queries,
            "qkv": qkv,
            "kv": kv_layer,
            "scales": scales_layer,
            "q_norm": q_norm if normed else None,
            "k_norm": k_norm if normed else None,
            "cos": write.cos,
            "sin": write.sin,
            "blocks": write.blocks,
            "offsets": write.offsets,
            "tokens": tokens,
            "q_heads": write.q_heads,
            "kv_heads": write.kv_heads,
            "stride_qkv": qkv.stride(0),
            "stride_block": kv_layer.stride(0),
            "stride_half": kv_layer.stride(1),
            "stride_head": kv_layer.stride(2),
            "stride_token": kv_layer.stride(3),
            "stride_scale_block": scale_strides[0],
            "stride_scale_half": scale_strides[1],
            "stride_scale_head": scale_strides[2],
            "eps": write.norm_eps,
        },
        {
            "TILE_M": tile,
            "HALF": write.head_dim // 2,
            "NORM": normed,
            "QUANTIZED": scales_layer is not None,
        },
        warps=1 if tile == 1 else 4,
    )


def store_kv_triton(
    qkv: Tensor,
    write: KvWrite,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    kv_layer: Tensor,
    scales_layer: Tensor | None = None,
) -> Tensor:
    """As `store_kv_torch`: rotated queries [T, q_heads, D] in qkv's dtype; keys and values are in their slots."""
    queries = torch.empty(qkv.shape[0], write.q_heads, write.head_dim, dtype=qkv.dtype, device=qkv.device)
    store_kv_launch(queries, qkv, write, q_norm, k_norm, kv_layer, scales_layer).run()
    return queries
