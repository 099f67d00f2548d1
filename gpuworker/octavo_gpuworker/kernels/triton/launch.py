"""Launch: one kernel launch as data, so the same code that runs a kernel also lists what must compile ahead of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_GRID_YZ = 65535
"""CUDA's bound of the second and third grid dimension."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, its grid and its arguments. `arguments` are runtime values, `constants` are compiled in."""

    kernel: Any
    """A function under @triton.jit."""
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    """Tensors, ints, floats, or None for a pointer that this form of the kernel does not read."""
    constants: Mapping[str, Any]
    warps: int = 4
    stages: int = 2

    @property
    def name(self) -> str:
        """The kernel's name in tables, without the suffix of its function."""
        return str(self.kernel.__name__).removesuffix("_kernel")

    def run(self) -> None:
        """Launches on the current stream; an empty grid is no launch."""
        if 0 in self.grid:
            return
        self.kernel[self.grid](**self.arguments, **self.constants, num_warps=self.warps, num_stages=self.stages)


def run_all(launches: Sequence[Launch]) -> None:
    """Runs launches in order on the current stream."""
    for launch in launches:
        launch.run()


def power_of_two_at_least(n: int) -> int:
    """The smallest power of two that is >= n; n >= 1."""
    return 1 << (n - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)
