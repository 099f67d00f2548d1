"""silu_mul and gelu_mul: the gated activations of a SwiGLU or GeGLU feed-forward (Shazeer, arXiv 2002.05202)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def silu_mul_torch(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 * ffn] (gate first) -> silu(gate) * up, [T, ffn]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def gelu_mul_torch(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 * ffn] (gate first) -> gelu(gate) * up with the tanh approximation, [T, ffn]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)
