"""quant_linear in Triton: a matrix-vector form for few rows, a tiled form above, and int8 x int8 / fp8 x fp8.

Weight-only kernels read W once, as bytes, turn it into floats in registers and multiply there (the matrix-vector form in
float32, without rounding W to x's dtype); see `quant_gemm.py` for the layout. The low and the high halves of int4 pairs meet two slices of x that are 16 elements apart: two products, no shuffle.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_gpuworker.kernels.quant_gemm import QuantWeight
from octavo_gpuworker.kernels.triton.launch import Launch, ceil_div

VECTOR_ROWS: Final = 8
"""Most rows of x that the matrix-vector form takes."""
VECTOR_FORMS: Final = (1, 4, VECTOR_ROWS)
VECTOR_BYTES: Final = 2048
"""Weight bytes of one step of a matrix-vector program: 16 per thread, one load each."""


@triton.jit
def _codes(data, column, inside, at, width, stride_data, INT4: tl.constexpr, OFFSET: tl.constexpr):
    """Bytes at `at` [1, G, 16] of each column's row -> (low, high) float32 [columns, G, 16]; for int8 both are the same."""
    where = inside[:, None, None] & (at < width)
    raw = tl.load(data + column[:, None, None] * stride_data + at, mask=where, other=0)
    if INT4:
        low = (raw & 15).to(tl.float32)
        high = (raw >> 4).to(tl.float32)
        if not OFFSET:
            low = low - 8.0
            high = high - 8.0
        return low, high
    else:
        codes = raw.to(tl.float32)
        return codes, codes


@triton.jit
def _of_group(values, column, inside, granule, width, group, stride_scales, INT4: tl.constexpr):
    """Scales or offsets [columns, G] of granules of 16 bytes that begin at `granule` [G]: one load for 16 or 32 weights."""
    element = granule * 2 if INT4 else granule
    place = column[:, None] * stride_scales + (element // group)[None, :]
    return tl.load(values + place, mask=inside[:, None] & (granule < width)[None, :], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "biased", "group", "stride_scales"])
def quant_gemv_kernel(
    out,
    x,
    data,
    scales,
    offsets,
    bias,
    biased,
    rows,
    columns,
    width,
    group,
    stride_x,
    stride_data,
    stride_scales,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BYTES: tl.constexpr,
    INT4: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """out [rows, columns] for up to ROWS rows; `width`: bytes of a row of W. float32 sums, no tensor cores. Grid: (columns / COLUMNS,)."""
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    row = tl.arange(0, ROWS)
    # A granule is 16 bytes: its sum is scaled once, and added up with the others' at the end only.
    granules = tl.arange(0, BYTES // 16) * 16
    at = granules[None, :, None] + tl.arange(0, 16)[None, None, :]
    acc = tl.zeros([ROWS, COLUMNS, BYTES // 16], dtype=tl.float32)
    for base in range(0, width, BYTES):
        low, high = _codes(data, column, inside, base + at, width, stride_data, INT4, OFFSET)
        scale = _of_group(scales, column, inside, base + granules, width, group, stride_scales, INT4)
        if OFFSET:
            offset = _of_group(offsets, column, inside, base + granules, width, group, stride_scales, INT4)
        place = (base + granules[None, :, None]) * 2 + tl.arange(0, 16)[None, None, :] if INT4 else base + at
        for r in tl.static_range(ROWS):
            alive = (base + at < width) & (r < rows)
            source = x + r * stride_x.to(tl.int64) + place
            value = tl.load(source, mask=alive, other=0.0).to(tl.float32)
            part = tl.sum(low * value, 2)
            total = tl.sum(value, 2)
            if INT4:
                value = tl.load(source + 16, mask=alive, other=0.0).to(tl.float32)
                part += tl.sum(high * value, 2)
                total += tl.sum(value, 2)
            part = part * scale
            if OFFSET:
                part += offset * total
            acc += tl.where((row == r)[:, None, None], part[None, :, :], 0.0)
    result = tl.sum(acc, 2)
    if biased:
        result += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    target = out + row[:, None].to(tl.int64) * columns + column[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=(row < rows)[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["rows", "biased", "group", "stride_scales"])
def quant_gemm_kernel(
    out,
    x,
    data,
    scales,
    offsets,
    bias,
    biased,
    rows,
    columns,
    width,
    group,
    stride_x,
    stride_data,
    stride_scales,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BYTES: tl.constexpr,
    INT4: tl.constexpr,
    OFFSET: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out [rows, columns] by tiles on tensor cores, W turned into x's dtype on the way. Grid: (row tiles, column tiles)."""
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    column = tl.program_id(1).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    inside = column < columns
    x_rows = x + row.to(tl.int64)[:, None] * stride_x
    acc = tl.zeros([TILE_M, TILE_N], dtype=tl.float32)
    granules = tl.arange(0, BYTES // 16) * 16
    at = granules[None, :, None] + tl.arange(0, 16)[None, None, :]
    flat = tl.arange(0, BYTES)
    for base in range(0, width, BYTES):
        low, high = _codes(data, column, inside, base + at, width, stride_data, INT4, OFFSET)
        scale = _of_group(scales, column, inside, base + granules, width, group, stride_scales, INT4)[:, :, None]
        low = low * scale
        high = high * scale
        if OFFSET:
            offset = _of_group(offsets, column, inside, base + granules, width, group, stride_scales, INT4)[:, :, None]
            low = low + offset
            high = high + offset
        place = (base + flat // 16 * 16) * 2 + flat % 16 if INT4 else base + flat
        alive = (row < rows)[:, None] & (base + flat < width)[None, :]
        a = tl.load(x_rows + place[None, :], mask=alive, other=0.0)
        b = tl.reshape(low.to(a.dtype), [TILE_N, BYTES])
        acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
        if INT4:
            a = tl.load(x_rows + (place + 16)[None, :], mask=alive, other=0.0)
            b = tl.reshape(high.to(a.dtype), [TILE_N, BYTES])
            acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
    if biased:
        acc += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    target = out + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(target, acc.to(out.dtype.element_ty), mask=(row < rows)[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["rows", "biased"])
def scaled_gemm_kernel(
    out,
    codes,
    code_scales,
    data,
    scales,
    bias,
    biased,
    rows,
    columns,
    depth,
    stride_codes,
    stride_data,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    INTEGER: tl.constexpr,
):
    """out = (codes data^T) * code_scales[row] * scales[column]: int8 sums in int32, fp8 in float32. Grid: (row tiles, column tiles)."""
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    column = tl.program_id(1).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    a_rows = codes + row.to(tl.int64)[:, None] * stride_codes
    b_rows = data + column[None, :] * stride_data
    NOTHING: tl.constexpr = 0 if INTEGER else 0.0
    acc = tl.zeros([TILE_M, TILE_N], dtype=tl.int32 if INTEGER else tl.float32)
    for base in range(0, depth, TILE_K):
        deep = base + k < depth
        a = tl.load(a_rows + (base + k)[None, :], mask=(row < rows)[:, None] & deep[None, :], other=NOTHING)
        b = tl.load(b_rows + (base + k)[:, None], mask=(column < columns)[None, :] & deep[:, None], other=NOTHING)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32 if INTEGER else tl.float32)
    left = tl.load(code_scales + row, mask=row < rows, other=0.0)
    right = tl.load(scales + column, mask=column < columns, other=0.0)
    result = acc.to(tl.float32) * left[:, None] * right[None, :]
    if biased:
        result += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    where = (row < rows)[:, None] & (column < columns)[None, :]
    target = out + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=where)


@triton.jit
def quantize_rows_kernel(codes, scales, x, depth, stride_x, TILE: tl.constexpr, INTEGER: tl.constexpr):
    """One token per program: codes = x / scale with scale = amax / the dtype's largest. Grid: (T,)."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, TILE)
    amax = tl.zeros([TILE], dtype=tl.float32)
    for base in range(0, depth, TILE):
        part = tl.load(x + row * stride_x + base + index, mask=base + index < depth, other=0.0).to(tl.float32)
        amax = tl.maximum(amax, tl.abs(part))
    highest: tl.constexpr = 127.0 if INTEGER else 448.0
    most = tl.max(amax, 0)
    scale = tl.where(most > 0, tl.div_rn(most, highest), 1.0)
    for base in range(0, depth, TILE):
        inside = base + index < depth
        part = tl.load(x + row * stride_x + base + index, mask=inside, other=0.0).to(tl.float32)
        part = tl.div_rn(part, tl.zeros([TILE], dtype=tl.float32) + scale)
        if INTEGER:
            part = tl.floor(part + 0.5)
        # The quotient of the largest may round to just above what the dtype holds.
        part = tl.minimum(tl.maximum(part, -highest), highest)
        tl.store(codes + row * depth + base + index, part.to(codes.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


def weight_only_launch(out: Tensor, x: Tensor, weight: QuantWeight, bias: Tensor | None) -> Launch:
    """The form for x's rows: matrix-vector up to VECTOR_ROWS, tiles above; out [T, out] contiguous."""
    rows = x.shape[0]
    arguments = {
        "out": out,
        "x": x,
        "data": weight.data,
        "scales": weight.scales,
        "offsets": weight.offsets,
        "bias": out if bias is None else bias,
        "biased": int(bias is not None),
        "rows": rows,
        "columns": weight.shape[0],
        "width": weight.data.shape[1],
        "group": weight.group,
        "stride_x": x.stride(0),
        "stride_data": weight.data.stride(0),
        "stride_scales": weight.scales.stride(0),
    }
    form = {"INT4": weight.four_bit, "OFFSET": weight.offsets is not None}
    if rows <= VECTOR_ROWS:
        tall = next(n for n in VECTOR_FORMS if n >= rows)
        tile_bytes = 256
        tile = {"ROWS": tall, "COLUMNS": VECTOR_BYTES // tile_bytes // (2 if tall > 4 else 1), "BYTES": tile_bytes}
        grid = (ceil_div(weight.shape[0], tile["COLUMNS"]) if rows else 0,)
        return Launch(quant_gemv_kernel, grid, arguments, {**tile, **form}, warps=4, stages=3)
    tile_m, tile_n, tile_bytes, warps, stages = _tile(rows, x.dtype, weight.four_bit)
    return Launch(
        quant_gemm_kernel,
        (ceil_div(rows, tile_m), ceil_div(weight.shape[0], tile_n)),
        arguments,
        {
            "TILE_M": tile_m,
            "TILE_N": tile_n,
            "BYTES": tile_bytes,
            **form,
            "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        },
        warps=warps,
        stages=stages,
    )


def _tile(rows: int, dtype: torch.dtype, four_bit: bool) -> tuple[int, int, int, int, int]:
    """(rows, columns, bytes, warps, stages) of the tiled form."""
    if dtype == torch.float32:
        return 16, 32, 32, 4, 1
    if rows <= 64:
        return (16, 64, 64, 4, 3) if rows <= 16 else (64, 64, 64, 8, 3)
    return 128, 128, 32 if four_bit else 64, 8, 3


def scaled_launch(out: Tensor, codes: Tensor, code_scales: Tensor, weight: QuantWeight, bias: Tensor | None) -> Launch:
    """Both sides quantized: codes [T, in] of weight.data's dtype, code_scales [T] float32."""
    rows, depth = codes.shape
    tile_m, tile_n, tile_k, warps = (128, 128, 128, 8) if rows > 64 else (64 if rows > 16 else 16, 64, 128, 4)
    return Launch(
        scaled_gemm_kernel,
        (ceil_div(rows, tile_m), ceil_div(weight.shape[0], tile_n)),
        {
            "out": out,
            "codes": codes,
            "code_scales": code_scales,
            "data": weight.data,
            "scales": weight.scales,
            "bias": out if bias is None else bias,
            "biased": int(bias is not None),
            "rows": rows,
            "columns": weight.shape[0],
            "depth": depth,
            "stride_codes": codes.stride(0),
            "stride_data": weight.data.stride(0),
        },
        {
            "TILE_M": tile_m,
            "TILE_N": tile_n,
            "TILE_K": tile_k,
            "INTEGER": codes.dtype == torch.int8,
        },
        warps=warps,
        stages=3,
    )


def quantize_rows_launch(codes: Tensor, scales: Tensor, x: Tensor) -> Launch:
    """x [T, in] with rows of any stride -> codes [T, in] contiguous, scales [T] float32."""
    return Launch(
        quantize_rows_kernel,
        (x.shape[0],),
        {"codes": codes, "scales": scales, "x": x, "depth": x.shape[1], "stride_x": x.stride(0)},
        {"TILE": 1024, "INTEGER": codes.dtype == torch.int8},
    )


def quantize_rows_triton(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As `quantize_rows_torch`."""
    codes = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty(x.shape[0], device=x.device)
    quantize_rows_launch(codes, scales, x).run()
    return codes, scales


def quant_linear_triton(x: Tensor, weight: QuantWeight, bias: Tensor | None) -> Tensor:
    """As `quant_linear_torch`; the last axis of x has stride 1."""
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    if weight.activations is None:
        weight_only_launch(out, x, weight, bias).run()
    else:
        codes, scales = quantize_rows_triton(x, weight.activations)
        scaled_launch(out, codes, scales, weight, bias).run()
    return out
