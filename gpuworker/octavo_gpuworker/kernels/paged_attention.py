"""paged_attention: queries over the KV of their block tables (PagedAttention, arXiv 2309.06180), prefill and decode in one call.

Grouped-query attention without copying keys: the queries that share a KV head are rows of one matrix product.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo_gpuworker.kernels.attention_plan import AttentionPlan, DecodeGroup, PrefillGroup


def paged_attention_torch(q: Tensor, pool: Tensor, layer: int, plan: AttentionPlan) -> Tensor:
    """q [T, q_heads, D] -> [T, q_heads * D] in q's dtype; softmax in float32.

    `pool` is KvPool.tensor, already holding this step's keys and values of `layer`.
    """
    rows = pool.view(-1, pool.shape[-2] * pool.shape[-1])
    if len(plan.decodes) == 1 and not plan.prefills and isinstance(plan.decodes[0].rows, slice):
        return _decode(q, rows, layer, plan, plan.decodes[0]).reshape(plan.tokens, -1)
    out = torch.empty_like(q)
    for group in plan.decodes:
        out[group.rows] = _decode(q[group.rows], rows, layer, plan, group)
    for prefill in plan.prefills:
        _prefill(q, rows, layer, plan, prefill, out)
    return out.view(plan.tokens, -1)


def _gathered(rows: Tensor, gather: Tensor, layer: int, plan: AttentionPlan, count: int, dtype: torch.dtype) -> Tensor:
    """Keys and values [2, count, kv_heads, L, D] in `dtype`."""
    kv = rows.index_select(0, gather + layer * plan.layer_stride)
    return kv.view(2, count, plan.kv_heads, -1, plan.head_dim).to(dtype)


def _decode(q: Tensor, rows: Tensor, layer: int, plan: AttentionPlan, group: DecodeGroup) -> Tensor:
    kv = _gathered(rows, group.gather, layer, plan, group.count, q.dtype)
    queries = q.view(group.count, plan.kv_heads, -1, plan.head_dim)
    return _attend(queries, kv[0], kv[1], group.mask, plan.scale).view(group.count, plan.q_heads, plan.head_dim)


def _prefill(q: Tensor, rows: Tensor, layer: int, plan: AttentionPlan, group: PrefillGroup, out: Tensor) -> None:
    kv = _gathered(rows, group.gather, layer, plan, 1, q.dtype)
    for tile in group.tiles:
        count = tile.end - tile.start
        by_head = q[tile.start : tile.end].transpose(0, 1)  # [q_heads, count, D]
        queries = by_head.reshape(1, plan.kv_heads, -1, plan.head_dim)
        keys, values = kv[:, :, :, tile.first : tile.last]
        attended = _attend(queries, keys, values, tile.mask, plan.scale)
        out[tile.start : tile.end] = attended.view(plan.q_heads, count, plan.head_dim).transpose(0, 1)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """queries [S, kv_heads, R, D], keys and values [S, kv_heads, L, D] -> [S, kv_heads, R, D]."""
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
