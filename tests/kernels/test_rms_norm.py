from __future__ import annotations

import pytest
import torch
from octavo_gpuworker.kernels.rms_norm import add_rms_norm_torch, rms_norm_torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3), (3, 15), (17, 576), (0, 25)])
def test_rms_norm(dtype, shape, check) -> None:
    x, weight = torch.randn(shape).to(dtype) * 5, torch.randn(shape[-1]).to(dtype)
    check(rms_norm_torch(x, weight, 1e-5), reference(x, weight, 1e-5))


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_eps_counts_where_x_is_small(eps, check) -> None:
    x, weight = torch.randn(4, 33) * 1e-3, torch.ones(33)
    check(rms_norm_torch(x, weight, eps), reference(x, weight, eps))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3), (5, 25), (0, 8)])
def test_add_rms_norm_returns_and_keeps_the_sum(dtype, shape, check) -> None:
    x, residual, weight = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    total = (x.double() + residual.double()).to(dtype)
    normed, kept = add_rms_norm_torch(x, residual, weight, 1e-5)
    assert kept is residual
    assert kept.equal(total)
    check(normed, reference(total, weight, 1e-5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_float32_residual_is_not_rounded_to_the_activations(dtype, check) -> None:
    x, residual, weight = torch.randn(5, 25).to(dtype), torch.randn(5, 25), torch.randn(25).to(dtype)
    total = x.float() + residual
    normed, kept = add_rms_norm_torch(x, residual, weight, 1e-5)
    assert normed.dtype == dtype
    assert kept.equal(total)
    check(normed, reference(total, weight, 1e-5))
