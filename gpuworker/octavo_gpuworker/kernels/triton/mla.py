"""mla_decode in Triton: each latent is read once and serves as key and as value; long contexts are split as in decode attention."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_gpuworker.kernels.attention_plan import AttentionPlan
from octavo_gpuworker.kernels.mla import MlaProjection, absorb_query, chunks_of, expand_output
from octavo_gpuworker.kernels.paged_batch import VERIFY_QUERIES, PagedBatch, choose_splits
from octavo_gpuworker.kernels.triton.decode_attention import paged_decode_reduce_kernel
from octavo_gpuworker.kernels.triton.launch import Launch, ceil_div, power_of_two_at_least, run_all

LOG2_E: Final = 1.4426950408889634
MAX_HEADS: Final = 32
"""Heads of one tile: its float32 sums over 512 dims fill 64 registers of each of 256 threads."""
REDUCE_CHUNK: Final = 16
NOT_SPECIALIZED: Final = ("heads", "head_tiles", "max_query", "splits", "stride_table", "block_shift")


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def mla_decode_kernel(
    out,
    partial,
    partial_lse,
    q_latent,
    q_rope,
    cache,
    query_start,
    context_len,
    block_tables,
    heads,
    head_tiles,
    stride_latent_token,
    stride_latent_head,
    stride_rope_token,
    stride_rope_head,
    stride_block,
    stride_token,
    stride_table,
    qk_scale,
    max_query,
    splits,
    block_shift,
    TILE_H: tl.constexpr,
    TILE_N: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """TILE_H heads of one new token over one range of keys. Grid: (S, max_query * head_tiles, splits).

    SPLIT: partial [T, heads, splits, LATENT] and partial_lse [T, heads, splits] as in paged_decode; else out [T, heads, LATENT].
    """
    seq = tl.program_id(0)
    which = tl.program_id(1) // head_tiles
    split = tl.program_id(2)
    begin = tl.load(query_start + seq)
    count = tl.load(query_start + seq + 1) - begin
    if (which >= count) | (count > max_query):
        return
    token = (begin + which).to(tl.int64)
    head = (tl.program_id(1) % head_tiles) * TILE_H + tl.arange(0, TILE_H)
    valid = head < heads
    dims = tl.arange(0, LATENT)
    turns = tl.arange(0, ROPE)
    latent_rows = q_latent + token * stride_latent_token + head[:, None] * stride_latent_head
    rope_rows = q_rope + token * stride_rope_token + head[:, None] * stride_rope_head
    query = tl.load(latent_rows + dims[None, :], mask=valid[:, None], other=0.0)
    query_rope = tl.load(rope_rows + turns[None, :], mask=valid[:, None], other=0.0)

    start = 0
    end = tl.load(context_len + seq) - count + which + 1
    if SPLIT:
        tiles_per_split = tl.cdiv(tl.cdiv(end, TILE_N), splits)
        start = split * tiles_per_split * TILE_N
        end = tl.minimum(start + tiles_per_split * TILE_N, end)
    acc = tl.zeros([TILE_H, LATENT], dtype=tl.float32)
    row_max = tl.full([TILE_H], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([TILE_H], dtype=tl.float32)
    table = block_tables + seq.to(tl.int64) * stride_table
    block_mask = (1 << block_shift) - 1
    for base in range(start, end, TILE_N):
        keys = base + tl.arange(0, TILE_N)
        inside = keys < end
        block = tl.load(table + (keys >> block_shift), mask=inside, other=0).to(tl.int64)
        slot = cache + block * stride_block + (keys & block_mask).to(tl.int64) * stride_token
        latent = tl.load(slot[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        rope = tl.load(slot[:, None] + (LATENT + turns)[None, :], mask=inside[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(latent), input_precision=PRECISION)
        scores = tl.dot(query_rope, tl.trans(rope), scores, input_precision=PRECISION) * qk_scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        # Every tile that is read holds a key, so the maximum is finite from the first one on.
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        decay = tl.exp2(row_max - new_max)
        row_sum = row_sum * decay + tl.sum(weights, 1)
        row_max = new_max
        acc = tl.dot(weights.to(latent.dtype), latent, acc * decay[:, None], input_precision=PRECISION)
    result = acc / tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]
    if SPLIT:
        place = (token * heads + head) * splits + split
        seen = row_sum > 0.0
        lse = tl.where(seen, row_max + tl.log2(tl.where(seen, row_sum, 1.0)), float("-inf"))
        tl.store(partial_lse + place, lse, mask=valid)
        tl.store(partial + place[:, None] * LATENT + dims[None, :], result, mask=(valid & seen)[:, None])
    else:
        rows = out + (token * heads + head[:, None]) * LATENT
        tl.store(rows + dims[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])


def mla_launches(out: Tensor, q_latent: Tensor, q_rope: Tensor, cache: Tensor, batch: PagedBatch) -> list[Launch]:
    """The launches that fill out [T, H, latent] (contiguous); arguments as `mla_decode_torch`, last axes of stride 1."""
    tokens, heads, latent = q_latent.shape
    sequences, float32 = batch.context_len.shape[0], q_latent.dtype == torch.float32
    tile_h = min(MAX_HEADS, max(16, power_of_two_at_least(heads)))
    head_tiles = ceil_div(heads, tile_h)
    widest = min(batch.decode_query, VERIFY_QUERIES)
    splits = batch.splits or choose_splits(sequences, head_tiles, batch.max_context, batch.processors)
    partial = lse = None
    if splits > 1:
        partial = torch.empty(tokens, heads, splits, latent, dtype=torch.float32, device=out.device)
        lse = torch.empty(tokens, heads, splits, dtype=torch.float32, device=out.device)
    attend = Launch(
        mla_decode_kernel,
        (sequences, widest * head_tiles, splits),
        {
            "out": out,
            "partial": partial,
            "partial_lse": lse,
            "q_latent": q_latent,
            "q_rope": q_rope,
            "cache": cache,
            "query_start": batch.query_start,
            "context_len": batch.context_len,
            "block_tables": batch.block_tables,
            "heads": heads,
            "head_tiles": head_tiles,
            "stride_latent_token": q_latent.stride(0),
            "stride_latent_head": q_latent.stride(1),
            "stride_rope_token": q_rope.stride(0),
            "stride_rope_head": q_rope.stride(1),
            "stride_block": cache.stride(0),
            "stride_token": cache.stride(1),
            "stride_table": batch.block_tables.stride(0),
            "qk_scale": batch.scale * LOG2_E,
            "max_query": widest,
            "splits": splits,
            "block_shift": batch.block_tokens.bit_length() - 1,
        },
        {
            "TILE_H": tile_h,
            # 16 heads over 32 keys spilled on sm_80.
            "TILE_N": 16 if float32 or tile_h == 16 else 32,
            "LATENT": latent,
            "ROPE": q_rope.shape[2],
            "SPLIT": splits > 1,
            "PRECISION": "ieee" if float32 else "tf32",
        },
        warps=8,
        stages=1 if float32 else 3 if tile_h == 16 else 2,
    )
    if splits == 1:
        return [attend]
    reduce = Launch(
        paged_decode_reduce_kernel,
        (sequences, heads, widest),
        {
            "out": out,
            "partial": partial,
            "partial_lse": lse,
            "query_start": batch.query_start,
            "q_heads": heads,
            "stride_out_token": heads * latent,
            "max_query": widest,
            "splits": splits,
        },
        {"HEAD_DIM": latent, "CHUNK": REDUCE_CHUNK},
        4,
        1,
    )
    return [attend, reduce]


def mla_decode_triton(q_latent: Tensor, q_rope: Tensor, cache: Tensor, batch: PagedBatch) -> Tensor:
    """As `mla_decode_torch`; rows of longer sequences are zero where the batch has some."""
    # not *_like: an absorbed query comes out of einsum with heads outermost, and `out` would take its strides
    make = torch.zeros if batch.prefills else torch.empty
    out = make(q_latent.shape, dtype=q_latent.dtype, device=q_latent.device)
    if out.numel():
        run_all(mla_launches(out, q_latent, q_rope, cache, batch))
    return out


def mla_prefill_triton(
    q_nope: Tensor, q_rope: Tensor, projection: MlaProjection, cache: Tensor, plan: AttentionPlan, out: Tensor
) -> None:
    """As `mla_prefill_torch`, in latent space: a chunk is cut into sequences of up to VERIFY_QUERIES new tokens for mla_decode."""
    rows: list[int] = []
    sequences: list[int] = []
    new_tokens: list[int] = []
    contexts: list[int] = []
    for seq, row, new in chunks_of(plan):
        before = plan.contexts[seq] - new
        for start in range(0, new, VERIFY_QUERIES):
            part = min(VERIFY_QUERIES, new - start)
            rows += range(row + start, row + start + part)
            sequences.append(seq)
            new_tokens.append(part)
            contexts.append(before + start + part)
    if not rows:
        return
    starts = [0, *accumulate(new_tokens)]

    def ints(values: list[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(out.device, non_blocking=True)

    of_chunks = ints(rows, torch.int64)
    batch = replace(
        plan.batch,
        query_start=ints(starts, torch.int32),
        context_len=ints(contexts, torch.int32),
        block_tables=plan.batch.block_tables[ints(sequences, torch.int64)],
        tokens=len(rows),
        decode_query=max(new_tokens),
        prefills=False,
        max_context=max(contexts),
    )
    attended = mla_decode_triton(absorb_query(q_nope[of_chunks], projection), q_rope[of_chunks], cache, batch)
    out[of_chunks] = expand_output(attended, projection)
