"""Norms, gated activations, soft cap and block moves in the interpreter against their twins."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_gpuworker.kernels.activation import gelu_mul_torch, silu_mul_torch, soft_cap_torch
from octavo_gpuworker.kernels.block_moves import copy_blocks_torch, gather_blocks_torch, scatter_blocks_torch
from octavo_gpuworker.kernels.linear import linear_torch
from octavo_gpuworker.kernels.rms_norm import add_rms_norm_torch, rms_norm_torch
from octavo_gpuworker.kernels.triton.activation import gelu_mul_triton, silu_mul_triton, soft_cap_triton
from octavo_gpuworker.kernels.triton.block_moves import (
    as_words,
    copy_blocks_triton,
    gather_blocks_triton,
    scatter_blocks_triton,
)
from octavo_gpuworker.kernels.triton.linear import linear_triton
from octavo_gpuworker.kernels.triton.rms_norm import add_rms_norm_triton, rms_norm_triton

# exp of a large argument is inf and the quotient 0, on a GPU without a word.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
EXAMPLES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
DTYPES = st.sampled_from([torch.float32, torch.float16])
TOKENS = st.sampled_from([0, 1, 3, 17])


@EXAMPLES
@given(tokens=TOKENS, width=st.sampled_from([1, 15, 64, 576, 1000]), dtype=DTYPES, gap=st.sampled_from([0, 5]))
def test_rms_norm(tokens, width, dtype, gap, check) -> None:
    x = (torch.randn(tokens, width + gap) * 5).to(dtype)[:, :width]
    weight = torch.randn(width).to(dtype)
    check(rms_norm_triton(x, weight, 1e-5), rms_norm_torch(x.double(), weight.double(), 1e-5))


@EXAMPLES
@given(tokens=TOKENS, width=st.sampled_from([1, 25, 576]), dtype=DTYPES, wide=st.booleans())
def test_add_rms_norm_overwrites_the_residual(tokens, width, dtype, wide, check) -> None:
    """The residual stream is float32 beside half-precision activations, or of their dtype."""
    x, weight = torch.randn(tokens, width).to(dtype), torch.randn(width).to(dtype)
    residual = torch.randn(tokens + 1, width).to(torch.float32 if wide else dtype)
    before = residual.clone()
    normed, kept = add_rms_norm_triton(x, residual[:tokens], weight, 1e-5)
    twin_normed, twin_kept = add_rms_norm_torch(x, before[:tokens].clone(), weight, 1e-5)
    assert normed.dtype == dtype
    assert not tokens or kept.data_ptr() == residual.data_ptr()
    check(kept, twin_kept.double())
    check(normed, twin_normed.double())
    assert residual[tokens].equal(before[tokens]), "the row behind the batch was written"


@EXAMPLES
@given(tokens=TOKENS, width=st.sampled_from([1, 15, 1023, 1025]), dtype=DTYPES, gelu=st.booleans())
def test_gated_activations(tokens, width, dtype, gelu, check) -> None:
    gate_up = (torch.randn(tokens, 2 * width + 3) * 3).to(dtype)[:, : 2 * width]
    kernel, twin = (gelu_mul_triton, gelu_mul_torch) if gelu else (silu_mul_triton, silu_mul_torch)
    check(kernel(gate_up), twin(gate_up.contiguous().double()))


@EXAMPLES
@given(shape=st.sampled_from([(0,), (1,), (3, 1025), (2, 3, 5)]), dtype=DTYPES, cap=st.sampled_from([0.5, 30.0]))
def test_soft_cap_stays_below_its_cap(shape, dtype, cap, check) -> None:
    x = (torch.randn(shape) * 40).to(dtype)
    capped = soft_cap_triton(x, cap)
    check(capped, torch.tanh(x.double() / cap) * cap)
    check(soft_cap_torch(x, cap), torch.tanh(x.double() / cap) * cap)
    assert (capped.abs() <= cap).all()


@EXAMPLES
@given(
    rows=st.sampled_from([0, 1, 16, 17, 70]),
    columns=st.sampled_from([1, 33, 65]),
    depth=st.sampled_from([16, 48, 80]),
    dtype=DTYPES,
    biased=st.booleans(),
)
def test_linear(rows, columns, depth, dtype, biased, check) -> None:
    x, weight = torch.randn(rows, depth + 8).to(dtype)[:, :depth], torch.randn(columns, depth).to(dtype)
    bias = torch.randn(columns).to(dtype) if biased else None
    expected = linear_torch(x.double(), weight.double(), None if bias is None else bias.double())
    check(linear_triton(x, weight, bias), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_blocks_move_bit_for_bit(dtype, count) -> None:
    """Words are moved, so bfloat16 and any NaN pass through; blocks that were not named keep their bits."""
    pool = torch.randint(-(2**62), 2**62, (9, 3, 2, 3, 8, 32 * dtype.itemsize // 8)).view(dtype)
    before, bits = pool.clone(), torch.int8
    ids = torch.randperm(8)[:count] + 1
    staging, twin = (torch.zeros((count + 1, *pool.shape[1:]), dtype=dtype) for _ in range(2))
    gather_blocks_triton(pool, ids, staging)
    gather_blocks_torch(pool, ids, twin)
    assert staging.view(bits).equal(twin.view(bits))
    targets = torch.randperm(8)[:count] + 1
    moved, expected = before.clone(), before.clone()
    scatter_blocks_triton(staging, targets, moved)
    scatter_blocks_torch(twin, targets, expected)
    assert moved.view(bits).equal(expected.view(bits))
    order = torch.randperm(9)
    sources, places = order[: min(count, 4)], order[4 : 4 + min(count, 4)]
    copied, wanted = before.clone(), before.clone()
    copy_blocks_triton(copied, sources, places)
    copy_blocks_torch(wanted, sources, places)
    assert copied.view(bits).equal(wanted.view(bits))


def test_blocks_that_cannot_move_as_words_are_refused() -> None:
    with pytest.raises(ValueError, match="a block has 12 bytes, expected a multiple of 16"):
        as_words(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="blocks must be contiguous"):
        as_words(torch.zeros(4, 8).t())
