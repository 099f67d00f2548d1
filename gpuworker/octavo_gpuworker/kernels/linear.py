"""linear: y = x W^T + b, plainly, or through torch's oneDNN with weights packed once at load.

Packing, measured on 2 Zen 5 cores with SmolLM2's shapes: bf16 1.3 to 1.8 times at 1 row and 1.4 at 16, float32 2.5 times at
16 and 512 rows (torch's own float32 path is MKL, which is slow on that machine).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo_gpuworker.kernels.needs import KernelNeeds

PACK_ROWS: Final = 16
"""Rows of x that the packing is tuned for: among 1, 16, 512 and none the best or within noise at every row count tried."""


def linear_torch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, in], weight [out, in], bias [out] or None -> [T, out], all of one dtype."""
    return F.linear(x, weight, bias)


def onednn_unavailable(needs: KernelNeeds) -> str:
    """Why torch's oneDNN cannot run here, or an empty string."""
    device, dtype = needs.device, needs.dtype
    if device.type != "cpu":
        return "runs on a CPU only"
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return "this torch was built without oneDNN"
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "bfloat16 needs avx512"
    if dtype not in (torch.bfloat16, torch.float32):
        return f"not for {dtype}"
    return ""


def pack_onednn(weight: Tensor) -> Tensor:
    """weight [out, in] as an opaque oneDNN tensor in the blocked layout that its matrix product wants."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
    return packed


def linear_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As linear_torch, with a weight from `pack_onednn`."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result
