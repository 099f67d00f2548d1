"""quant_linear: y = x W^T + b with W in int8, int4 or fp8, and the packing of weights into the layout its kernels read.

Weight-only: w = scale * q + offset per group of 32, 64 or 128 along the inner axis (or per row), the activations as they are.
Both sides quantized: x and W in int8 (SmoothQuant, arXiv 2211.10438) or fp8 e4m3, one scale per token and one per output row.

int4 layout, GGUF's: byte j of 16 holds element j of a block of 32 in its low half and element j + 16 in its high half, so
repacking Q4_0 and Q4_1 moves scales only, and a kernel multiplies two contiguous slices of x without shuffling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from octavo_gpuworker.kernels.store_kv import quantize

GROUPS: Final = (32, 64, 128)
BLOCK: Final = 32
"""Elements whose halves share 16 bytes in the int4 layout; GGUF's block."""
MIDDLE: Final = 8
"""What a symmetric int4 weight subtracts."""


@dataclass(frozen=True, slots=True)
class QuantWeight:
    """A quantized matrix [out, in]."""

    data: Tensor
    """[out, in] int8 or float8_e4m3fn, or [out, in / 2] uint8 of int4 pairs."""
    scales: Tensor
    """[out, groups]: float16 beside floating activations, float32 beside quantized ones (there groups = 1)."""
    offsets: Tensor | None = None
    """[out, groups] float16: added after scaling (a zero point z is the offset -z * scale); None: symmetric."""
    activations: torch.dtype | None = None
    """int8 or float8_e4m3fn: the dtype x is quantized to, per token; None: x stays floating."""

    @property
    def four_bit(self) -> bool:
        return self.data.dtype == torch.uint8

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return self.data.shape[0], self.data.shape[1] * (2 if self.four_bit else 1)

    @property
    def group(self) -> int:
        """Elements of the inner axis per scale."""
        return self.shape[1] // self.scales.shape[1]

    def rows(self, first: int, end: int) -> QuantWeight:
        """Output rows [first, end), over the same memory."""
        offsets = None if self.offsets is None else self.offsets[first:end]
        return QuantWeight(self.data[first:end], self.scales[first:end], offsets, self.activations)


def quantize_weight(weight: Tensor, bits: int, group: int | None = None, zero_point: bool = False) -> QuantWeight:
    """weight [out, in] floating -> int8 or int4 by rounding to nearest; `group` None: one scale per row (int8 only).

    ValueError: bits other than 4 and 8, a group that is not 32, 64 or 128 or does not divide the inner axis.
    """
    rows, depth = weight.shape
    if bits not in (4, 8):
        raise ValueError(f"bits is {bits}; expected 4 or 8")
    if (group is None and bits == 4) or (group is not None and group not in GROUPS):
        raise ValueError(f"group is {group}; expected one of {', '.join(map(str, GROUPS))}")
    if depth % (group or 1) or (bits == 4 and depth % BLOCK):
        raise ValueError(f"the inner axis has {depth} elements, no multiple of the group of {group}")
    grouped = weight.float().view(rows, -1, group or depth)
    least, most = (0, 2**bits - 1) if zero_point and bits == 4 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if zero_point:
        low, high = grouped.amin(-1), grouped.amax(-1)
        scales = _scale((high - low) / (most - least))
        offsets = (low - least * scales.float()).half()
        codes = (grouped - offsets.float()[..., None]) / scales.float()[..., None]
    else:
        offsets = None
        scales = _scale(grouped.abs().amax(-1) / most)
        codes = grouped / scales.float()[..., None]
    codes = codes.round().clamp(least, most).view(rows, depth)
    if bits == 4:
        return QuantWeight(pack_int4((codes + (0 if zero_point else MIDDLE)).to(torch.uint8)), scales, offsets)
    return QuantWeight(codes.to(torch.int8), scales, offsets)


def _scale(step: Tensor) -> Tensor:
    """float16 steps; a group of zeros, or one below float16, divides by the least normal number."""
    return step.clamp(min=torch.finfo(torch.float16).tiny).half()


def quantize_both(weight: Tensor, dtype: torch.dtype, smooth: Tensor | None = None) -> QuantWeight:
    """weight [out, in] -> int8 or float8_e4m3fn with a float32 scale per row, for activations of the same dtype.

    `smooth` [in]: SmoothQuant's factors; W is multiplied by them, and who produces x divides by them.
    """
    data, scales = quantize(weight.float() if smooth is None else weight.float() * smooth, dtype)
    return QuantWeight(data, scales[:, None], None, dtype)


def smoothing(x_amax: Tensor, weight: Tensor, alpha: float = 0.5) -> Tensor:
    """[in] factors amax(x)^alpha / amax(W)^(1 - alpha) that move outliers of x into W (SmoothQuant, equation 4)."""
    tiny = torch.finfo(torch.float32).tiny
    factors: Tensor = x_amax.float().clamp(min=1e-5) ** alpha / weight.float().abs().amax(0).clamp(min=1e-5) ** (
        1 - alpha
    )
    return factors.clamp(min=tiny)


def pack_int4(codes: Tensor) -> Tensor:
    """codes [out, in] uint8 in 0..15 -> [out, in / 2] uint8 in the layout above; in is a multiple of 32."""
    blocks = codes.view(codes.shape[0], -1, 2, BLOCK // 2)
    return (blocks[:, :, 0] | blocks[:, :, 1] << 4).flatten(1)


def unpack_int4(data: Tensor) -> Tensor:
    """The inverse of `pack_int4`."""
    blocks = data.view(data.shape[0], -1, 1, BLOCK // 2)
    return torch.cat((blocks & 15, blocks >> 4), dim=2).flatten(1)


def repack_gguf(raw: NDArray[np.uint8], kind: str, shape: tuple[int, int]) -> QuantWeight:
    """Blocks of a GGUF matrix [out, in] of type Q4_0, Q4_1 or Q8_0 as they lie in the file -> QuantWeight, without loss.

    A block of 32 is d (float16), for Q4_1 m (float16), then 16 bytes of pairs or 32 of int8: w = d q + m, Q4_0: d (q - 8).
    ValueError: another type, or a length that does not fit the shape.
    """
    heads = {"Q4_0": 2, "Q4_1": 4, "Q8_0": 2}
    if kind not in heads:
        raise ValueError(f"type is {kind}; {', '.join(heads)} can be repacked")
    head, body = heads[kind], BLOCK if kind == "Q8_0" else BLOCK // 2
    rows, depth = shape
    if depth % BLOCK or raw.size != rows * (depth // BLOCK) * (head + body):
        raise ValueError(f"{raw.size} bytes are no {kind} matrix of {rows} x {depth}")
    blocks = torch.from_numpy(np.ascontiguousarray(raw).reshape(rows, depth // BLOCK, head + body).copy())
    values = blocks[..., :head].contiguous().view(torch.float16)
    data = blocks[..., head:].reshape(rows, -1).contiguous()
    offsets = values[..., 1].contiguous() if kind == "Q4_1" else None
    return QuantWeight(data.view(torch.int8) if kind == "Q8_0" else data, values[..., 0].contiguous(), offsets)


def dequantize(weight: QuantWeight) -> Tensor:
    """[out, in] float32."""
    rows, depth = weight.shape
    codes = unpack_int4(weight.data).float() if weight.four_bit else weight.data.float()
    if weight.four_bit and weight.offsets is None:
        codes -= MIDDLE
    grouped = codes.view(rows, weight.scales.shape[1], -1) * weight.scales.float()[..., None]
    if weight.offsets is not None:
        grouped += weight.offsets.float()[..., None]
    return grouped.view(rows, depth)


def quantize_rows_torch(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [T, in] floating -> (int8 or float8_e4m3fn [T, in], scales [T] float32), one scale per token."""
    return quantize(x.float(), dtype)


def quant_linear_torch(x: Tensor, weight: QuantWeight, bias: Tensor | None) -> Tensor:
    """x [T, in] floating -> [T, out] in x's dtype; weight-only products see W rounded to x's dtype, as the kernels do."""
    if weight.activations is None:
        return F.linear(x, dequantize(weight).to(x.dtype), bias)
    codes, scales = quantize_rows_torch(x, weight.activations)
    # float32 holds products of int8 exactly up to 2^24: sum in float64.
    product = (codes.double() @ weight.data.double().T) * scales.double()[:, None] * weight.scales[:, 0].double()
    return (product if bias is None else product + bias.double()).to(x.dtype)
