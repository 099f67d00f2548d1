"""store_kv against rotation by complex numbers, and the pool's other slots against a sentinel."""

from __future__ import annotations

import pytest
import torch
from octavo_gpuworker.kernels.store_kv import KvWrite, store_kv_torch
from torch import Tensor

Q, KV, SIZE, BLOCKS, LAYERS = 6, 2, 8, 9, 3
SENTINEL = 123.0


def write_of(positions: Tensor, slots: Tensor, dim: int) -> KvWrite:
    frequencies = 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim)
    angles = positions[:, None].float() * frequencies
    sin = angles.sin()
    return KvWrite(
        angles.cos()[:, None, None, :], torch.stack((-sin, sin), dim=1)[:, None], slots // SIZE, slots % SIZE, Q, KV, dim, 1e-6
    )  # fmt: skip


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """x [T, H, D] float64, element i paired with i + D / 2, turned by position * frequency."""
    dim = x.shape[-1]
    frequencies = 1.0 / 10000 ** (torch.arange(0, dim, 2).double() / dim)
    turn = torch.polar(torch.ones(len(positions), dim // 2).double(), positions[:, None].double() * frequencies)
    turned = torch.complex(x[..., : dim // 2], x[..., dim // 2 :]) * turn[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [0, 1, 13])
@pytest.mark.parametrize("dim", [16, 24])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_queries_keys_values_and_nothing_else(dtype, tokens, dim, qk_norm, check) -> None:
    qkv = torch.randn(tokens, (Q + 2 * KV) * dim).to(dtype)
    positions = torch.randint(0, 100, (tokens,))
    slots = torch.randperm((BLOCKS - 1) * SIZE)[:tokens] + SIZE
    pool = torch.full((BLOCKS, LAYERS, 2, KV, SIZE, dim), SENTINEL, dtype=dtype)
    norms = (torch.rand(dim).to(dtype) + 0.5, torch.rand(dim).to(dtype) + 0.5) if qk_norm else (None, None)
    queries = store_kv_torch(qkv, write_of(positions, slots, dim), *norms, pool[:, 1])

    split = qkv.double().view(tokens, Q + 2 * KV, dim)
    expected_q, expected_k, values = split[:, :Q], split[:, Q : Q + KV], split[:, Q + KV :]
    if norms[0] is not None:
        expected_q, expected_k = normed(expected_q, norms[0]), normed(expected_k, norms[1])
    check(queries, rotated(expected_q, positions))
    stored = pool[slots // SIZE, 1, :, :, slots % SIZE]  # [T, 2, KV, D]
    check(stored[:, 0], rotated(expected_k, positions))
    assert stored[:, 1].double().equal(values)
    pool[slots // SIZE, 1, :, :, slots % SIZE] = SENTINEL
    assert (pool == SENTINEL).all(), "a slot that was not asked for was written"


def test_kv_of_another_dtype(check) -> None:
    qkv, slots = torch.randn(3, (Q + 2 * KV) * 16), torch.tensor([9, 17, 8])
    pool = torch.zeros(BLOCKS, 1, 2, KV, SIZE, 16, dtype=torch.bfloat16)
    queries = store_kv_torch(qkv, write_of(torch.arange(3), slots, 16), None, None, pool[:, 0])
    assert queries.dtype == torch.float32
    values = qkv.view(3, -1, 16)[:, Q + KV :]
    assert pool[slots // SIZE, 0, 1, :, slots % SIZE].equal(values.bfloat16())
