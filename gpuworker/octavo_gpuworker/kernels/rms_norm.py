"""rms_norm, and rms_norm of a residual sum (Zhang and Sennrich, arXiv 1910.07467)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def rms_norm_torch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., d], weight [d] -> x / sqrt(mean(x^2) + eps) * weight in x's dtype; the mean is taken in float32."""
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm_torch(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, d] -> (rms_norm(x + residual) in x's dtype, x + residual). `residual` is overwritten with the sum.

    A float32 residual beside bfloat16 activations takes a third off the error of the logits (SmolLM2-135M: 0.078 to 0.052).
    """
    residual.add_(x)
    return F.rms_norm(residual, weight.shape, weight.to(residual.dtype), eps).to(x.dtype), residual
