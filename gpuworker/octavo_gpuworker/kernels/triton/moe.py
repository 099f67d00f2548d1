"""moe in Triton. Tokens are sorted by expert with a counting sort; a grouped product then walks the experts' runs of rows.

No run is padded and no count is read back: the grid has room for every possible split of the rows into tiles, and a program
finds its expert from the run starts (surplus programs leave at once).
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_gpuworker.kernels.moe import MoeWeights
from octavo_gpuworker.kernels.triton.activation import gated_mul_launch
from octavo_gpuworker.kernels.triton.launch import Launch, ceil_div, run_all
from octavo_gpuworker.kernels.triton.requirements import MAX_EXPERTS, MAX_TOP_K

SORT_CHUNK: Final = 1024
COLUMNS: Final = 1024
"""Columns of one combining program."""


@triton.jit(do_not_specialize=["num_experts", "stride_logits", "top_k", "renormalize"])
def moe_route_kernel(
    shares, experts, logits, num_experts, stride_logits,
    top_k, renormalize, RANKS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """The top_k largest softmax probabilities of one token, best first. Grid: (T,)."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, EXPERTS)
    inside = index < num_experts
    x = tl.load(logits + row * stride_logits + index, mask=inside, other=float("-inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    left = tl.where(inside, e / tl.sum(e, 0), -1.0)
    rank = tl.arange(0, RANKS)
    share = tl.zeros([RANKS], dtype=tl.float32)
    chosen = tl.zeros([RANKS], dtype=tl.int32)
    for k in range(0, top_k):
        best = tl.max(left, 0)
        expert = tl.min(tl.where(left == best, index, EXPERTS), 0)
        share = tl.where(rank == k, best, share)
        chosen = tl.where(rank == k, expert, chosen)
        left = tl.where(index == expert, -1.0, left)
    share = share / tl.where(renormalize != 0, tl.sum(share, 0), 1.0)
    tl.store(shares + row * top_k + rank, share, mask=rank < top_k)
    tl.store(experts + row * top_k + rank, chosen, mask=rank < top_k)


@triton.jit(do_not_specialize=["count"])
def moe_sort_kernel(order, position, starts, experts, count, CHUNK: tl.constexpr):
    """One expert per program, the last program only closes `starts`: counts the assignments of lower experts, then places
    its own one after the other. Grid: (E + 1,)."""
    mine = tl.program_id(0)
    index = tl.arange(0, CHUNK)
    start = tl.full([], 0, tl.int32)
    for base in range(0, count, CHUNK):
        expert = tl.load(experts + base + index, mask=base + index < count, other=2147483647)
        start += tl.sum((expert < mine).to(tl.int32), 0)
    tl.store(starts + mine, start)
    for base in range(0, count, CHUNK):
        expert = tl.load(experts + base + index, mask=base + index < count, other=2147483647)
        is_mine = expert == mine
        flags = is_mine.to(tl.int32)
        place = start + tl.cumsum(flags, 0) - flags
        tl.store(order + place, base + index, mask=is_mine)
        tl.store(position + base + index, place, mask=is_mine)
        start += tl.sum(flags, 0)


@triton.jit(do_not_specialize=["num_experts", "top_k"])
def moe_grouped_gemm_kernel(
    out,
    x,
    weight,
    order,
    starts,
    num_experts,
    top_k,
    columns,
    depth,
    stride_x,
    stride_expert,
    stride_weight,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    EXPERTS: tl.constexpr,
    GATHER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[i] = x[order[i] // top_k] times the transposed weight of row i's expert; without GATHER x[i]: rows already sorted.

    Grid: (rows / TILE_M + E, column tiles).
    """
    tile = tl.program_id(0)
    index = tl.arange(0, EXPERTS)
    inside = index < num_experts
    first = tl.load(starts + index, mask=inside, other=0)
    end = tl.load(starts + index + 1, mask=inside, other=0)
    tiles = (end - first + TILE_M - 1) // TILE_M
    through = tl.cumsum(tiles, 0)
    if tile < tl.sum(tiles, 0):
        expert = tl.sum((inside & (through <= tile)).to(tl.int32), 0)
        chosen = index == expert
        inside_run = tile - tl.sum(tl.where(chosen, through - tiles, 0), 0)
        row = tl.sum(tl.where(chosen, first, 0), 0) + inside_run * TILE_M + tl.arange(0, TILE_M)
        alive = row < tl.sum(tl.where(chosen, end, 0), 0)
        if GATHER:  # noqa: SIM108, a constexpr branch
            source = tl.load(order + row, mask=alive, other=0) // top_k
        else:
            source = row
        column = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
        k = tl.arange(0, TILE_K)
        x_rows = x + source.to(tl.int64)[:, None] * stride_x
        weight_rows = weight + expert.to(tl.int64) * stride_expert + column.to(tl.int64)[None, :] * stride_weight
        acc = tl.zeros([TILE_M, TILE_N], dtype=tl.float32)
        for base in range(0, depth, TILE_K):
            deep = base + k < depth
            a = tl.load(x_rows + (base + k)[None, :], mask=alive[:, None] & deep[None, :], other=0.0)
            b = tl.load(weight_rows + (base + k)[:, None], mask=(column < columns)[None, :] & deep[:, None], other=0.0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        where = alive[:, None] & (column < columns)[None, :]
        target = out + row.to(tl.int64)[:, None] * columns + column[None, :]
        tl.store(target, acc.to(out.dtype.element_ty), mask=where)


@triton.jit(do_not_specialize=["top_k"])
def moe_combine_kernel(out, rows, shares, position, width, top_k, COLUMNS: tl.constexpr):
    """out[t] = sum over k of shares[t, k] * rows[position[t, k]], in order of k. Grid: (T, ceil(width / COLUMNS))."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    acc = tl.zeros([COLUMNS], dtype=tl.float32)
    for k in range(0, top_k):
        row = tl.load(position + token * top_k + k).to(tl.int64)
        share = tl.load(shares + token * top_k + k)
        acc += share * tl.load(rows + row * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, acc.to(out.dtype.element_ty), mask=inside)


def route_launch(shares: Tensor, experts: Tensor, logits: Tensor, renormalize: bool) -> Launch:
    """logits [T, E] with rows of any stride -> shares [T, K] float32, experts [T, K] int32."""
    tokens, num_experts = logits.shape
    return Launch(
        moe_route_kernel,
        (tokens,),
        {
            "shares": shares,
            "experts": experts,
            "logits": logits,
            "num_experts": num_experts,
            "stride_logits": logits.stride(0),
            "top_k": shares.shape[1],
            "renormalize": int(renormalize),
        },
        {"RANKS": MAX_TOP_K, "EXPERTS": MAX_EXPERTS},
        warps=1,
    )


def sort_launch(order: Tensor, position: Tensor, starts: Tensor, experts: Tensor) -> Launch:
    """experts [T, K] -> order, position [T * K], starts [E + 1]; all int32."""
    return Launch(
        moe_sort_kernel,
        (starts.shape[0],),
        {"order": order, "position": position, "starts": starts, "experts": experts, "count": experts.numel()},
        {"CHUNK": SORT_CHUNK},
    )


def grouped_gemm_launch(
    out: Tensor, x: Tensor, weight: Tensor, order: Tensor | None, starts: Tensor, top_k: int
) -> Launch:
    """out [T * K, columns] in sorted order; x [T, depth] with `order`, or [T * K, depth] already sorted; weight [E, columns, depth]."""
    rows, num_experts = out.shape[0], weight.shape[0]
    per_expert = ceil_div(rows, num_experts)
    if x.dtype == torch.float32:
        tile_m, tile_n, tile_k, warps, stages = 16, 32, 32, 4, 1
    elif per_expert <= 32:
        tile_m, tile_n, tile_k, warps, stages = 16, 64, 64, 4, 5
    else:
        tile_m, tile_n, tile_k, warps, stages = 64, 128, 64, 4, 3
    return Launch(
        moe_grouped_gemm_kernel,
        (rows // tile_m + min(num_experts, rows), ceil_div(weight.shape[1], tile_n)),
        {
            "out": out,
            "x": x,
            "weight": weight,
            "order": order,
            "starts": starts,
            "num_experts": num_experts,
            "top_k": top_k,
            "columns": weight.shape[1],
            "depth": weight.shape[2],
            "stride_x": x.stride(0),
            "stride_expert": weight.stride(0),
            "stride_weight": weight.stride(1),
        },
        {
            "TILE_M": tile_m,
            "TILE_N": tile_n,
            "TILE_K": tile_k,
            "EXPERTS": MAX_EXPERTS,
            "GATHER": order is not None,
            "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        },
        warps=warps,
        stages=stages,
    )


def combine_launch(out: Tensor, rows: Tensor, shares: Tensor, position: Tensor) -> Launch:
    """rows [T * K, d] sorted by expert -> out [T, d]."""
    tokens, width = out.shape
    return Launch(
        moe_combine_kernel,
        (tokens, ceil_div(width, COLUMNS)),
        {"out": out, "rows": rows, "shares": shares, "position": position, "width": width, "top_k": shares.shape[1]},
        {"COLUMNS": COLUMNS},
    )


def moe_launches(out: Tensor, x: Tensor, router_logits: Tensor, weights: MoeWeights) -> list[Launch]:
    """The six launches that fill out [T, d] from x [T, d]."""
    tokens, top_k, num_experts = x.shape[0], weights.top_k, weights.gate_up.shape[0]
    count, ffn = tokens * top_k, weights.down.shape[2]

    def ints(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=x.device)

    def like(width: int) -> Tensor:
        return torch.empty(count, width, dtype=x.dtype, device=x.device)

    shares, experts = torch.empty(tokens, top_k, device=x.device), ints(tokens, top_k)
    order, position, starts = ints(count), ints(count), ints(num_experts + 1)
    gate_up, hidden, rows = like(2 * ffn), like(ffn), like(x.shape[1])
    return [
        route_launch(shares, experts, router_logits, weights.renormalize),
        sort_launch(order, position, starts, experts),
        grouped_gemm_launch(gate_up, x, weights.gate_up, order, starts, top_k),
        gated_mul_launch(hidden, gate_up, False),
        grouped_gemm_launch(rows, hidden, weights.down, None, starts, top_k),
        combine_launch(out, rows, shares, position),
    ]


def moe_triton(x: Tensor, router_logits: Tensor, weights: MoeWeights) -> Tensor:
    """As `moe_torch`; the last axes of x, the logits and the weights have stride 1. ValueError: more than
    256 experts, or than 16 per token."""
    num_experts = weights.gate_up.shape[0]
    if num_experts > MAX_EXPERTS:
        raise ValueError(f"{num_experts} experts are more than {MAX_EXPERTS}; use the torch row")
    if weights.top_k > MAX_TOP_K:
        raise ValueError(f"{weights.top_k} experts per token are more than {MAX_TOP_K}; use the torch row")
    out = torch.empty_like(x)
    if len(x):
        run_all(moe_launches(out, x, router_logits, weights))
    return out
