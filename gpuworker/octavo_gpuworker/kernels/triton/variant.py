"""Variant: one launch that needs a binary of its own, and what families need to list theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from octavo_gpuworker.kernels.triton.launch import Launch

META: Final = torch.device("meta")
SHORT: Final = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int8: "int8",
    torch.float8_e4m3fn: "fp8",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One launch of a kernel that needs a binary of its own."""

    name: str
    """What sets it apart from the kernel's other variants."""
    launch: Launch
    mma: bool
    """Its inner product must use tensor cores (float32 does not)."""

    @property
    def path(self) -> str:
        """KERNEL/VARIANT, as in the rows of the compile JSON."""
        return f"{self.launch.name}/{self.name}"

    @property
    def fp8(self) -> bool:
        """Needs compute capability 8.9."""
        return any(isinstance(a, Tensor) and a.dtype == torch.float8_e4m3fn for a in self.launch.arguments.values())
