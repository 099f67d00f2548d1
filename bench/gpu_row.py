"""One row of the GPU benchmark: a kernel's call, its float32 answer, what torch offers for the same, and its floor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from octavo_gpuworker.kernels.triton.roofline import Work
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how large: full sizes on a GPU, tiny ones in the interpreter."""

    device: torch.device
    dtype: torch.dtype
    dry: bool

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.dry else full

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Random data: zeros are faster to multiply, so they lie."""
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype or self.dtype)


@dataclass(frozen=True, slots=True)
class Row:
    """`kernel` and `expected` return the same tensor, the second in float32 or better."""

    name: str
    kernel: Callable[[], Tensor]
    expected: Callable[[], Tensor]
    tolerance: float
    """Largest relative RMS error."""
    work: Work
    baselines: dict[str, Callable[[], object]] = field(default_factory=dict)
    """What torch offers, by name."""
    timed: Callable[[], object] | None = None
    """The kernel alone, where `kernel` also collects what it wrote; None: `kernel`."""


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over that of the answer; infinite for a NaN."""
    if result.shape != expected.shape or not bool(result.isfinite().all()):
        return math.inf
    difference = result.double() - expected.double()
    return float(difference.pow(2).mean().sqrt() / expected.double().pow(2).mean().sqrt().clamp_min(1e-30))


def median_us(call: Callable[[], object], runs: int = 30) -> list[float]:
    """Device time of each of `runs` calls, microseconds, with a cold L2 cache; the caller takes the median."""
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    for _ in range(3):
        call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for start, end in events:
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [1e3 * start.elapsed_time(end) for start, end in events]
