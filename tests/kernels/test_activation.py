from __future__ import annotations

import math

import pytest
import torch
from octavo_gpuworker.kernels.activation import gelu_mul_torch, silu_mul_torch


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + (-x).exp())


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 2), (3, 30), (7, 192), (0, 8)])
@pytest.mark.parametrize(("kernel", "formula"), [(silu_mul_torch, silu), (gelu_mul_torch, gelu_tanh)])
def test_gate_comes_first(kernel, formula, dtype, shape, check) -> None:
    gate_up = (torch.randn(shape) * 3).to(dtype)
    before = gate_up.clone()
    gate, up = gate_up.double().chunk(2, dim=-1)
    check(kernel(gate_up), formula(gate) * up)
    assert gate_up.equal(before), "the input is not an output"
