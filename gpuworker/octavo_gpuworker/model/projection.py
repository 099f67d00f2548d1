"""project: y = x W^T + b whatever form the matrix has, through the table."""

from __future__ import annotations

from torch import Tensor

from octavo_gpuworker.kernels import KernelTable
from octavo_gpuworker.kernels.quant_gemm import QuantWeight
from octavo_gpuworker.model.weights import Matrix


def project(kernels: KernelTable, x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """x [T, in], weight [out, in] floating, prepared or quantized -> [T, out] in x's dtype."""
    operation = kernels.quant_linear if isinstance(weight, QuantWeight) else kernels.linear
    return operation(x, weight, bias)
