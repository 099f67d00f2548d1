from __future__ import annotations

import pytest
import torch
from octavo_gpuworker.kernels.linear import linear_onednn, linear_torch, onednn_unavailable, pack_onednn
from octavo_gpuworker.kernels.needs import KernelNeeds


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 3, 5), (17, 64, 33), (0, 8, 4)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(dtype, shape, with_bias, check) -> None:
    tokens, width, rows = shape
    x, weight = torch.randn(tokens, width).to(dtype), torch.randn(rows, width).to(dtype)
    bias = torch.randn(rows).to(dtype) if with_bias else None
    expected = x.double() @ weight.double().T
    expected = expected if bias is None else expected + bias.double()
    check(linear_torch(x, weight, bias), expected)
    if not onednn_unavailable(KernelNeeds(x.device, dtype)):
        check(linear_onednn(x, pack_onednn(weight), bias), expected)


def test_onednn_says_why_not() -> None:
    assert onednn_unavailable(KernelNeeds(torch.device("cuda"), torch.bfloat16)) == "runs on a CPU only"
    assert onednn_unavailable(KernelNeeds(torch.device("cpu"), torch.float16)) == "not for torch.float16"
