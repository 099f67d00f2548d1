"""Kernels are compared with float64 references by relative error of the whole result, as triton_kernels' testing does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""Relative RMS error per dtype: about two units in the last place."""


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


@pytest.fixture
def check() -> Callable[[Tensor, Tensor], None]:
    """check(result, float64 reference): same shape, finite, within the result dtype's tolerance."""

    def run(result: Tensor, reference: Tensor) -> None:
        assert result.shape == reference.shape
        assert reference.dtype == torch.float64
        if not result.numel():
            return
        assert result.isfinite().all()
        error = (result.double() - reference).pow(2).mean().sqrt() / reference.pow(2).mean().sqrt()
        assert error < TOLERANCES[result.dtype], f"relative RMS error {error:.3g}"

    return run
