"""Operations of the decoder, one per file with its torch twin (the oracle). Triton and native rows join the table here."""

from __future__ import annotations

from typing import Final

import torch

from octavo_gpuworker.kernels.activation import gelu_mul_torch, silu_mul_torch
from octavo_gpuworker.kernels.linear import linear_torch
from octavo_gpuworker.kernels.paged_attention import paged_attention_torch
from octavo_gpuworker.kernels.rms_norm import add_rms_norm_torch, rms_norm_torch
from octavo_gpuworker.kernels.store_kv import store_kv_torch
from octavo_gpuworker.kernels.table import Implementation, KernelTable, everywhere

__all__ = ["OPERATIONS", "KernelTable", "describe", "select_kernels"]

OPERATIONS: Final[dict[str, tuple[Implementation, ...]]] = {
    "linear": (Implementation("torch", linear_torch, everywhere),),
    "rms_norm": (Implementation("torch", rms_norm_torch, everywhere),),
    "add_rms_norm": (Implementation("torch", add_rms_norm_torch, everywhere),),
    "store_kv": (Implementation("torch", store_kv_torch, everywhere),),
    "paged_attention": (Implementation("torch", paged_attention_torch, everywhere),),
    "silu_mul": (Implementation("torch", silu_mul_torch, everywhere),),
    "gelu_mul": (Implementation("torch", gelu_mul_torch, everywhere),),
}


def select_kernels(device: str | torch.device = "cpu", prefer: str = "auto") -> KernelTable:
    """The operations for `device`; logs one line each. ValueError when `prefer` cannot be honoured (see `table.choose`)."""
    return KernelTable(OPERATIONS, torch.device(device), prefer)


def describe(device: str | torch.device = "cpu", prefer: str = "auto") -> list[str]:
    """What `select_kernels` would choose here and why, one line per operation: `octavo doctor --kernels`."""
    return select_kernels(device, prefer).describe()
