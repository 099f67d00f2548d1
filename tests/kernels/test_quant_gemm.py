"""Packing: GGUF's blocks come over without loss, rounding stays within half a step, SmoothQuant leaves the product alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize
from octavo_gpuworker.kernels.quant_gemm import (
    GROUPS,
    dequantize,
    pack_int4,
    quant_linear_torch,
    quantize_both,
    quantize_weight,
    repack_gguf,
    smoothing,
    unpack_int4,
)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf_blocks_without_loss(kind) -> None:
    weight = np.random.default_rng(3).standard_normal((5, 96), dtype=np.float32)
    raw = gguf_quantize(weight, GGMLQuantizationType[kind])
    packed = repack_gguf(raw.reshape(-1), kind, (5, 96))
    assert packed.group == 32
    expected = torch.from_numpy(gguf_dequantize(raw, GGMLQuantizationType[kind]))
    assert torch.allclose(dequantize(packed), expected, rtol=0, atol=1e-6)


def test_gguf_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="type is Q6_K; Q4_0, Q4_1, Q8_0 can be repacked"):
        repack_gguf(np.zeros(18, dtype=np.uint8), "Q6_K", (1, 32))
    with pytest.raises(ValueError, match="17 bytes are no Q4_0 matrix of 1 x 32"):
        repack_gguf(np.zeros(17, dtype=np.uint8), "Q4_0", (1, 32))


def test_pairs_come_apart_again() -> None:
    codes = torch.randint(0, 16, (3, 64), dtype=torch.uint8)
    assert unpack_int4(pack_int4(codes)).equal(codes)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("zero_point", [False, True])
def test_rounding_stays_within_half_a_step(bits, group, zero_point) -> None:
    weight = torch.randn(7, 256) + (3.0 if zero_point else 0.0)
    packed = quantize_weight(weight, bits, group, zero_point)
    assert packed.shape == (7, 256)
    assert packed.group == group
    step = packed.scales.float().repeat_interleave(group, 1)
    # float16 scales and offsets take a little more at the ends of a group's range.
    assert ((dequantize(packed) - weight).abs() <= 0.51 * step + 2**-9 * weight.abs().amax()).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 32), "bits is 3; expected 4 or 8"),
        ((4, None), "group is None; expected one of 32, 64, 128"),
        ((8, 48), "group is 48; expected one of 32, 64, 128"),
        ((4, 128), "the inner axis has 96 elements, no multiple of the group of 128"),
    ],
)
def test_forms_that_do_not_exist_are_refused(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        quantize_weight(torch.zeros(2, 96), *arguments)


def test_smoothing_moves_outliers_into_the_weight() -> None:
    x, weight = torch.randn(50, 64), torch.randn(16, 64)
    x[:, 5] *= 100
    factors = smoothing(x.abs().amax(0), weight)
    exact = x.double() @ weight.double().T
    plain = quant_linear_torch(x, quantize_both(weight, torch.int8), None)
    smooth = quant_linear_torch(x / factors, quantize_both(weight, torch.int8, factors), None)
    assert (smooth - exact).pow(2).mean() < 0.5 * (plain - exact).pow(2).mean()


def test_a_group_of_zeros() -> None:
    assert not dequantize(quantize_weight(torch.zeros(1, 32), 4, 32)).any()
    assert not dequantize(quantize_weight(torch.zeros(1, 32), 4, 32, zero_point=True)).any()
