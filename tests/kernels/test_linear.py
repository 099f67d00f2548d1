from __future__ import annotations

import pytest
import torch
from octavo_gpuworker.kernels.linear import linear_torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 3, 5), (17, 64, 33), (0, 8, 4)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(dtype, shape, with_bias, check) -> None:
    tokens, width, rows = shape
    x, weight = torch.randn(tokens, width).to(dtype), torch.randn(rows, width).to(dtype)
    bias = torch.randn(rows).to(dtype) if with_bias else None
    expected = x.double() @ weight.double().T
    check(linear_torch(x, weight, bias), expected if bias is None else expected + bias.double())
