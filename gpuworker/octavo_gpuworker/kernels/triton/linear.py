"""linear in Triton: y = x W^T + b, tiled. cuBLAS is the choice on a GPU until a measurement says otherwise (see the table)."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_gpuworker.kernels.triton.launch import Launch, ceil_div

SWIZZLE: Final = 8
"""Row tiles that walk the columns together, so that a tile of W is read from L2 by its neighbours."""


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    out,
    x,
    weight,
    bias,
    rows,
    columns,
    depth,
    stride_x,
    stride_weight,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    SWIZZLE: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out [rows, columns] = x [rows, depth] times weight [columns, depth] transposed, plus bias. Grid: (tiles,)."""
    pid = tl.program_id(0)
    row_tiles = tl.cdiv(rows, TILE_M)
    column_tiles = tl.cdiv(columns, TILE_N)
    band = pid // (SWIZZLE * column_tiles)
    first = band * SWIZZLE
    height = tl.minimum(row_tiles - first, SWIZZLE)
    inside_band = pid % (SWIZZLE * column_tiles)
    row = (first + inside_band % height) * TILE_M + tl.arange(0, TILE_M)
    column = (inside_band // height) * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    x_rows = x + row.to(tl.int64) * stride_x
    weight_rows = weight + column.to(tl.int64) * stride_weight
    acc = tl.zeros([TILE_M, TILE_N], dtype=tl.float32)
    for base in range(0, depth, TILE_K):
        deep = base + k < depth
        a = tl.load(x_rows[:, None] + (base + k)[None, :], mask=(row < rows)[:, None] & deep[None, :], other=0.0)
        b = tl.load(
            weight_rows[None, :] + (base + k)[:, None], mask=(column < columns)[None, :] & deep[:, None], other=0.0
        )
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    where = (row < rows)[:, None] & (column < columns)[None, :]
    target = out + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=where)


def linear_launch(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Launch:
    """x [T, in] and weight [out, in] with rows of any stride, out [T, out] contiguous."""
    rows, depth = x.shape
    columns = weight.shape[0]
    if x.dtype == torch.float32:
        tile_m, tile_n, tile_k, warps, stages = 16 if rows <= 16 else 32, 32, 32, 4, 1
    elif rows <= 16:
        tile_m, tile_n, tile_k, warps, stages = 16, 64, 64, 4, 5
    elif rows <= 64:
        tile_m, tile_n, tile_k, warps, stages = 64, 64, 64, 4, 4
    else:
        tile_m, tile_n, tile_k, warps, stages = 128, 128, 64, 8, 3
    return Launch(
        linear_kernel,
        (ceil_div(rows, tile_m) * ceil_div(columns, tile_n),),
        {
            "out": out,
            "x": x,
            "weight": weight,
            "bias": bias,
            "rows": rows,
            "columns": columns,
            "depth": depth,
            "stride_x": x.stride(0),
            "stride_weight": weight.stride(0),
        },
        {
            "TILE_M": tile_m,
            "TILE_N": tile_n,
            "TILE_K": tile_k,
            "SWIZZLE": SWIZZLE,
            "BIAS": bias is not None,
            "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        },
        warps=warps,
        stages=stages,
    )


def linear_triton(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As `linear_torch`; the last axes of x and weight have stride 1."""
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    linear_launch(out, x, weight, bias).run()
    return out
