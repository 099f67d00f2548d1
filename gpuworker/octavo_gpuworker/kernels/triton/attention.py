"""Launches of paged attention: which kernels a step runs, with which tiles. Pure functions of shapes; nothing is read back.

A mixed step is one launch sequence: decodes (and the reduce, where they are split), then prefill chunks, each kernel passing
over the other's sequences; no sequence is padded to another's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from octavo_gpuworker.kernels.attention_plan import AttentionPlan
from octavo_gpuworker.kernels.paged_batch import NO_WINDOW, VERIFY_QUERIES, PagedBatch, choose_splits
from octavo_gpuworker.kernels.triton.decode_attention import paged_decode_kernel, paged_decode_reduce_kernel
from octavo_gpuworker.kernels.triton.launch import Launch, power_of_two_at_least, run_all
from octavo_gpuworker.kernels.triton.prefill_attention import paged_prefill_kernel

LOG2_E: Final = 1.4426950408889634
REDUCE_CHUNK: Final = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and keys of one tile, and how the compiler should spread it.

    A key's address waits for its block table entry, and Triton's pipeliner counts both loads: 3 stages leave one buffer of K and
    V, so nothing overlaps; 5 leave two in decode and three in prefill (read off the ttgir, 3.6 and 3.9; not timed).
    """

    rows: int
    keys: int
    warps: int
    stages: int


def prefill_tile(head_dim: int, dtype: torch.dtype, quantized: bool, capability: int) -> Tile:
    """The largest tiles that spill nothing (budget table). float32 multiplies without tensor cores and keeps whole operand rows
    in registers; before compute capability 9.0 operands of tensor cores are registers too, dequantized ones twice.
    """
    if dtype == torch.float32:
        return Tile(16, 16, 8 if head_dim > 64 and capability < 90 else 4, 1)
    if capability < 90:
        return Tile(64 if quantized else 128, 32, 8, 5)
    if capability >= 100:
        return Tile(128, 32, 8, 5) if quantized else Tile(128, 64, 4 if head_dim == 64 else 8, 5)
    return Tile(128, 64, 8, 5)


def decode_tile(rows: int, head_dim: int, dtype: torch.dtype, quantized: bool, capability: int) -> Tile:
    """`rows` = group * new tokens, at most `decode_rows`; 16 is the least a tensor core takes."""
    height = max(16, power_of_two_at_least(rows))
    if dtype == torch.float32:
        return Tile(height, 16, 8 if head_dim > 64 and capability < 100 else 4, 1)
    tight = quantized and (capability < 90 or (capability >= 100 and head_dim == 32))
    wide = height * head_dim > 32 * 128 or (tight and height >= 32)
    return Tile(height, 32 if tight else 64, 8 if wide else 4, 5)


def decode_rows(dtype: torch.dtype) -> int:
    """Largest tile of rows (query heads of one KV head times new tokens) of the decode kernel."""
    return 16 if dtype == torch.float32 else 64


def attention_launches(
    out: Tensor, q: Tensor, kv_layer: Tensor, scales_layer: Tensor | None, batch: PagedBatch
) -> list[Launch]:
    """The launches that fill out [T, q_heads * D] from q [T, q_heads, D] and one layer of the pool.

    kv_layer [num_blocks, 2, kv_heads, block_tokens, D], the last axis of stride 1; scales_layer [num_blocks, 2, kv_heads,
    block_tokens] float32, the last axis of stride 1, for an int8 or fp8 cache, else None.
    """
    q_heads, kv_heads = q.shape[1], kv_layer.shape[2]
    group = q_heads // kv_heads
    # Decodes whose rows exceed the decode tile go with the prefills.
    widest = min(batch.decode_query, decode_rows(q.dtype) // group)
    spilled = batch.decode_query > widest
    launches: list[Launch] = []
    if widest:
        launches += _decode_launches(out, q, kv_layer, scales_layer, batch, widest)
    if batch.prefills or spilled:
        launches.append(_prefill_launch(out, q, kv_layer, scales_layer, batch, widest + 1))
    return launches


def _shared(q: Tensor, kv_layer: Tensor, scales_layer: Tensor | None, batch: PagedBatch) -> dict[str, object]:
    scale_strides = (0, 0, 0) if scales_layer is None else scales_layer.stride()[:3]
    return {
        "q": q,
        "kv": kv_layer,
        "scales": scales_layer,
        "query_start": batch.query_start,
        "context_len": batch.context_len,
        "block_tables": batch.block_tables,
        "group": q.shape[1] // kv_layer.shape[2],
        "stride_q_token": q.stride(0),
        "stride_q_head": q.stride(1),
        "stride_block": kv_layer.stride(0),
        "stride_half": kv_layer.stride(1),
        "stride_head": kv_layer.stride(2),
        "stride_token": kv_layer.stride(3),
        "stride_scale_block": scale_strides[0],
        "stride_scale_half": scale_strides[1],
        "stride_scale_head": scale_strides[2],
        "stride_table": batch.block_tables.stride(0),
        # A soft cap works on plain scores; without one the scale carries the change of base.
        "qk_scale": batch.scale * LOG2_E,
        "soft_cap": batch.soft_cap,
        "window": NO_WINDOW if batch.window is None else batch.window,
        "block_shift": batch.block_tokens.bit_length() - 1,
    }


def _constants(q: Tensor, scales_layer: Tensor | None, batch: PagedBatch, tile: Tile) -> dict[str, object]:
    return {
        "TILE_M": tile.rows,
        "TILE_N": tile.keys,
        "HEAD_DIM": q.shape[2],
        "QUANTIZED": scales_layer is not None,
        "SOFT_CAP": batch.soft_cap > 0,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
    }


def _prefill_launch(
    out: Tensor, q: Tensor, kv_layer: Tensor, scales_layer: Tensor | None, batch: PagedBatch, min_query: int
) -> Launch:
    tile = prefill_tile(q.shape[2], q.dtype, scales_layer is not None, batch.capability)
    sequences, kv_heads = batch.context_len.shape[0], kv_layer.shape[2]
    tokens_per_tile = tile.rows // (q.shape[1] // kv_heads)
    return Launch(
        paged_prefill_kernel,
        (batch.tokens // tokens_per_tile + sequences, kv_heads),
        {
            **_shared(q, kv_layer, scales_layer, batch),
            "out": out,
            "sequences": sequences,
            "stride_out_token": out.stride(0),
            "min_query": min_query,
        },
        {**_constants(q, scales_layer, batch, tile), "WINDOWED": batch.window is not None},
        tile.warps,
        tile.stages,
    )


def _decode_launches(
    out: Tensor, q: Tensor, kv_layer: Tensor, scales_layer: Tensor | None, batch: PagedBatch, widest: int
) -> list[Launch]:
    q_heads, kv_heads, head_dim = q.shape[1], kv_layer.shape[2], q.shape[2]
    sequences = batch.context_len.shape[0]
    visible = batch.max_context if batch.window is None else min(batch.max_context, batch.window + VERIFY_QUERIES)
    splits = batch.splits or choose_splits(sequences, kv_heads, visible, batch.processors)
    tile = decode_tile(q_heads // kv_heads * widest, head_dim, q.dtype, scales_layer is not None, batch.capability)
    partial = lse = None
    if splits > 1:
        partial = torch.empty(q.shape[0], q_heads, splits, head_dim, dtype=torch.float32, device=q.device)
        lse = torch.empty(q.shape[0], q_heads, splits, dtype=torch.float32, device=q.device)
    attend = Launch(
        paged_decode_kernel,
        (sequences, kv_heads, splits),
        {
            **_shared(q, kv_layer, scales_layer, batch),
            "out": out,
            "partial": partial,
            "partial_lse": lse,
            "q_heads": q_heads,
            "stride_out_token": out.stride(0),
            "max_query": widest,
            "splits": splits,
        },
        {**_constants(q, scales_layer, batch, tile), "SPLIT": splits > 1},
        tile.warps,
        tile.stages,
    )
    if splits == 1:
        return [attend]
    reduce = Launch(
        paged_decode_reduce_kernel,
        (sequences, q_heads, widest),
        {
            "out": out,
            "partial": partial,
            "partial_lse": lse,
            "query_start": batch.query_start,
            "q_heads": q_heads,
            "stride_out_token": out.stride(0),
            "max_query": widest,
            "splits": splits,
        },
        {"HEAD_DIM": head_dim, "CHUNK": REDUCE_CHUNK},
        1,
        1,
    )
    return [attend, reduce]


def attend_triton(
    q: Tensor, kv_layer: Tensor, scales_layer: Tensor | None, batch: PagedBatch, out: Tensor | None = None
) -> Tensor:
    """q [T, q_heads, D] -> [T, q_heads * D] in q's dtype; see `attention_launches` for the rest."""
    if out is None:
        out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
    run_all(attention_launches(out, q, kv_layer, scales_layer, batch))
    return out


def paged_attention_triton(
    q: Tensor, pool: Tensor, layer: int, plan: AttentionPlan, scales: Tensor | None = None
) -> Tensor:
    """As `paged_attention_torch`."""
    return attend_triton(q, pool[:, layer], None if scales is None else scales[:, layer], plan.batch)


__all__ = [
    "attend_triton",
    "attention_launches",
    "decode_rows",
    "decode_tile",
    "paged_attention_triton",
    "prefill_tile",
]
