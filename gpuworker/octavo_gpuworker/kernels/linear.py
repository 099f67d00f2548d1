"""linear: y = x W^T + b. On a CPU with avx512_bf16 torch hands bf16 to oneDNN."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def linear_torch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, in], weight [out, in], bias [out] or None -> [T, out], all of one dtype."""
    return F.linear(x, weight, bias)
