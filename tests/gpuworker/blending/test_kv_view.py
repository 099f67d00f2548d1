"""Token ranges of a table as float32: what is written is read, in every kind of pool, and neighbours are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from octavo_gpuworker.blending.kv_view import KvView
from octavo_gpuworker.model.pool import KvPool

from tests.gpuworker.blending.test_blend import decoder  # noqa: F401

SIZE = 8
STEP = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.int8: 0.5 / 127}
"""The largest error of rounding once, in parts of a head's largest value."""


@pytest.fixture(params=STEP, ids=["float32", "bfloat16", "int8"])
def pool(request: pytest.FixtureRequest, decoder: Any) -> KvPool:  # noqa: F811
    return KvPool(decoder.config, 12, SIZE, request.param)


def drawn(pool: KvPool, tokens: int, seed: int = 0) -> np.ndarray:
    shape = pool.block_shape
    return (
        np.random.default_rng(seed).normal(size=(shape.layers, 2, shape.heads, tokens, shape.width)).astype(np.float32)
    )


def test_what_is_written_is_read_and_the_rest_stays(pool: KvPool) -> None:
    view, table = KvView(pool), [3, 1, 2]
    before = drawn(pool, 24)
    view.write(table, 0, before)
    kept = view.read(table, 0, 24)
    assert (np.abs(kept - before) <= STEP[pool.dtype] * np.abs(before).max(-1, keepdims=True)).all()
    values = drawn(pool, 9, 1)[1:3]
    view.write(table, 5, values, slice(1, 3))
    found = view.read(table, 0, 24)
    assert (found[0] == kept[0]).all() and (found[3:] == kept[3:]).all()
    assert (found[:, :, :, :5] == kept[:, :, :, :5]).all() and (found[:, :, :, 14:] == kept[:, :, :, 14:]).all()
    error = np.abs(found[1:3, :, :, 5:14] - values)
    assert (error <= STEP[pool.dtype] * np.abs(values).max(-1, keepdims=True)).all()
    view.write(table, 0, np.zeros_like(before[:, :, :, :9]))
    assert not view.read(table, 0, 9).any()


def test_a_copy_is_bit_for_bit_at_any_offset(pool: KvPool) -> None:
    view = KvView(pool)
    view.write([1, 2, 3], 0, drawn(pool, 24))
    view.copy([1, 2, 3], 3, [5, 6, 7], 6, 17)
    assert (view.read([5, 6, 7], 6, 17) == view.read([1, 2, 3], 3, 17)).all()
    assert not view.read([5, 6, 7], 0, 6).any() and not view.read([5, 6, 7], 23, 1).any()


def test_a_device_s_blocks_go_through_payloads(pool: KvPool, monkeypatch: pytest.MonkeyPatch) -> None:
    values = drawn(pool, 12)
    KvView(pool).write([1, 2], 0, values)
    want = KvView(pool).read([1, 2], 0, 12)
    monkeypatch.setattr(KvPool, "host_array", lambda self, block: None)
    view = KvView(pool)
    view.write([4, 5], 2, values)
    assert (view.read([4, 5], 2, 12) == want).all()
