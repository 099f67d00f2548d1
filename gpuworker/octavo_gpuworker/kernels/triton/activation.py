"""silu_mul, gelu_mul (Shazeer, arXiv 2002.05202) and the logits' soft cap (Gemma 2, arXiv 2408.00118): read once, write once."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_gpuworker.kernels.triton.launch import Launch, ceil_div

COLUMNS: Final = 1024
"""Elements per program."""


@triton.jit
def gated_mul_kernel(out, gate_up, width, stride_in, COLUMNS: tl.constexpr, GELU: tl.constexpr):
    """out[t] = act(gate[t]) * up[t] with gate, up the halves of gate_up[t]. Grid: (T, ceil(width / COLUMNS))."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    source = gate_up + row * stride_in + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # 0.5 (1 + tanh(z)) = sigmoid(2z), z = sqrt(2 / pi) (x + 0.044715 x^3).
        activated = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        activated = gate * tl.sigmoid(gate)
    activated = activated.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + columns, (activated * up).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count", "cap"])
def soft_cap_kernel(out, x, count, cap, COLUMNS: tl.constexpr):
    """out = cap * tanh(x / cap) of `count` elements. Grid: (ceil(count / COLUMNS),)."""
    index = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = index < count
    values = tl.load(x + index, mask=inside, other=0.0).to(tl.float32)
    capped = cap * (1.0 - 2.0 / (tl.exp(values * (2.0 / cap)) + 1.0))
    tl.store(out + index, capped.to(out.dtype.element_ty), mask=inside)


def gated_mul_launch(out: Tensor, gate_up: Tensor, gelu: bool) -> Launch:
    """gate_up [T, 2 * ffn] with rows of any stride -> out [T, ffn] contiguous."""
    width = gate_up.shape[1] // 2
    return Launch(
        gated_mul_kernel,
        (gate_up.shape[0], ceil_div(width, COLUMNS)),
        {"out": out, "gate_up": gate_up, "width": width, "stride_in": gate_up.stride(0)},
        {"COLUMNS": COLUMNS, "GELU": gelu},
    )


def soft_cap_launch(out: Tensor, x: Tensor, cap: float) -> Launch:
    """x, out contiguous, of any shape."""
    return Launch(
        soft_cap_kernel,
        (ceil_div(x.numel(), COLUMNS),),
        {"out": out, "x": x, "count": x.numel(), "cap": cap},
        {"COLUMNS": COLUMNS},
    )


def _gated_mul(gate_up: Tensor, gelu: bool) -> Tensor:
    out = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2, dtype=gate_up.dtype, device=gate_up.device)
    gated_mul_launch(out, gate_up, gelu).run()
    return out


def silu_mul_triton(gate_up: Tensor) -> Tensor:
    """As `silu_mul_torch`."""
    return _gated_mul(gate_up, gelu=False)


def gelu_mul_triton(gate_up: Tensor) -> Tensor:
    """As `gelu_mul_torch`."""
    return _gated_mul(gate_up, gelu=True)


def soft_cap_triton(x: Tensor, cap: float) -> Tensor:
    """As `soft_cap_torch`; x must be contiguous."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    soft_cap_launch(out, x, cap).run()
    return out
