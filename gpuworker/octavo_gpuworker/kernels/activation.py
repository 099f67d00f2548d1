"""silu_mul and gelu_mul: the gated activations of a SwiGLU or GeGLU feed-forward (Shazeer, arXiv 2002.05202)."""

from __future__ import annotations

import torch
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


def soft_cap_torch(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), any shape, in x's dtype (Gemma 2, arXiv 2408.00118)."""
    return (torch.tanh(x.float() / cap) * cap).to(x.dtype)
