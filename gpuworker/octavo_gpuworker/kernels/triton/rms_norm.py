"""rms_norm, and rms_norm of a residual sum, one row per program (Zhang and Sennrich, arXiv 1910.07467)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_gpuworker.kernels.triton.launch import Launch, power_of_two_at_least


@triton.jit(do_not_specialize=["eps"])
def rms_norm_kernel(out, x, residual, weight, width, stride_x, eps, WIDTH: tl.constexpr, ADD: tl.constexpr):
    """Row t: ADD: residual[t] += x[t], rounded to its dtype; out[t] = rms_norm(residual[t]). Otherwise of x[t]. Grid: (T,)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    values = tl.load(x + row * stride_x + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        held = residual + row * width + columns
        values += tl.load(held, mask=inside, other=0.0).to(tl.float32)
        rounded = values.to(residual.dtype.element_ty)
        tl.store(held, rounded, mask=inside)
        values = rounded.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(values * values, 0) / width + eps)
    scaled = values * inverse * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, scaled.to(out.dtype.element_ty), mask=inside)


def rms_norm_launch(out: Tensor, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Launch:
    """x [T, d] with rows of any stride, residual [T, d] contiguous or None, out [T, d] contiguous."""
    width = x.shape[-1]
    block = max(512, power_of_two_at_least(width))
    return Launch(
        rms_norm_kernel,
        (out.shape[0],),
        {
            "out": out,
            "x": x,
            "residual": residual,
            "weight": weight,
            "width": width,
            "stride_x": x.stride(0),
            "eps": eps,
        },
        {"WIDTH": block, "ADD": residual is not None},
        warps=min(16, max(1, block // 512)),
    )


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `rms_norm_torch`."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    rms_norm_launch(out, rows, None, weight, eps).run()
    return out.view(x.shape)


def add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `add_rms_norm_torch`: `residual` (contiguous) is overwritten with the sum."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_launch(out, x, residual, weight, eps).run()
    return out, residual
