"""A blend in a paged pool against the dense one: the same tokens are chosen, and what follows has the same logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.batch import StepBatch
from octavo_gpuworker.blending.blend import Blender
from octavo_gpuworker.blending.paged import PagedBlend
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import BlendPart
from octavo_gpuworker.slots import SlotTable

from tests.gpuworker.blending.test_blend import blender, decoder, passages  # noqa: F401

SIZE = 8


def run(backend: Any, ids: list[int], table: list[int], start: int = 0) -> np.ndarray:
    """Logits of the last token after computing ids[start:] into the table's blocks."""
    nobody = np.zeros(0, np.int32)
    batch = StepBatch(
        np.array(ids[start:], np.int32), np.array([0, len(ids) - start], np.int32), np.array([len(ids)], np.int32),
        np.array([table], np.int32), np.array([len(ids) - start - 1], np.int32), [], nobody, nobody, SlotTable(SIZE),
    )  # fmt: skip
    return backend.logits(batch)[0]


def blended(backend: Any, parts: list[list[int]], share: float, budget: int = 1000) -> tuple[Any, list[int], list[int]]:
    """The chunks' KV computed apart in blocks of their own, then put together; (blend, prompt, its table)."""
    prompt, places, at = [token for part in parts for token in part], [], 1
    for part in parts:
        own = list(range(at, at + -(-len(part) // SIZE)))
        run(backend, part, own)
        whole = len(part) // SIZE * SIZE
        places.append((own[: whole // SIZE], whole))
        at += len(own)
    table = list(range(at, at + -(-(len(prompt) + 16) // SIZE)))
    found, start = [], 0
    for (own, whole), part in zip(places, parts, strict=True):
        found.append(BlendPart(start, whole, 0, own))
        start += len(part)
    beginning = backend.beginning(2, len(table) + 1)
    blend = PagedBlend(backend, beginning, prompt, table, found, len(prompt), share)
    blend.budget = budget
    worth = sum(blend.steps())
    assert 0 < worth <= 2 * len(prompt)
    return blend, prompt, table


@pytest.fixture
def backend(decoder: Any) -> TorchBackend:  # noqa: F811
    return TorchBackend(decoder, KvPool(decoder.config, 64, SIZE, torch.float32))


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_a_paged_blend_is_the_dense_one(backend: TorchBackend, blender: Blender, share: float) -> None:  # noqa: F811
    parts, fresh = passages(3, 24), [5, 6, 7]
    blend, prompt, table = blended(backend, parts, share)
    dense = blender.blend([blender.chunk(part) for part in parts], fresh, share, 1)
    assert tuple(blend.chosen.tolist()) == dense.chosen
    found = run(backend, prompt + fresh, table, start=len(prompt))
    assert np.allclose(found, dense.logits[0].numpy(), atol=2e-3)
    full = blender.full(prompt + fresh, 1)[0].numpy()
    assert np.allclose(found, full, atol=2e-3) == (share == 1.0)


def test_steps_of_any_size_give_the_same_blend(backend: TorchBackend) -> None:
    parts, fresh = passages(3, 24), [5, 6, 7]
    results = []
    for budget in (7, 1000):
        _blend, prompt, table = blended(backend, parts, 0.3, budget)
        results.append(run(backend, prompt + fresh, table, start=len(prompt)))
    assert np.allclose(*results, atol=1e-4)


def test_what_no_whole_block_covers_is_computed(backend: TorchBackend, blender: Blender) -> None:  # noqa: F811
    """Chunks that end within a block: with everything chosen again the blend is the full prefill."""
    parts, fresh = passages(3, 21), [9]
    blend, prompt, table = blended(backend, parts, 1.0)
    assert len(blend.chosen) == 2 * 16
    found = run(backend, prompt + fresh, table, start=len(prompt))
    assert np.allclose(found, blender.full(prompt + fresh, 1)[0].numpy(), atol=2e-3)


def test_a_chunk_at_the_front_is_copied_as_it_is(backend: TorchBackend) -> None:
    blend, _prompt, _table = blended(backend, passages(2, 24), 1.0)
    assert blend.chosen.tolist() == list(range(24, 48))


def test_an_int8_pool_blends_as_close_as_it_prefills(decoder: Any, blender: Blender) -> None:  # noqa: F811
    """Keys that are turned are rounded a second time: no more than a rounding more than the full prefill in that pool has."""
    backend = TorchBackend(decoder, KvPool(decoder.config, 64, SIZE, torch.int8))
    parts, fresh = passages(3, 24), [5, 6, 7]
    prompt = [token for part in parts for token in part] + fresh
    own = run(backend, prompt, list(range(40, 40 + -(-len(prompt) // SIZE))))
    exact = blender.full(prompt, 1)[0].numpy()
    rounding = np.abs(own - exact).max()
    assert rounding > 0
    for share in (0.3, 1.0):
        _blend, ids, table = blended(backend, parts, share)
        found = run(backend, ids + fresh, table, start=len(ids))
        dense = blender.blend([blender.chunk(part) for part in parts], fresh, share, 1).logits[0].numpy()
        assert np.abs(found - dense).max() <= 4 * rounding


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    from octavo_gpuworker.blending.kv_view import _to_bf16

    values = np.array([1.0, 1.00390625, 1.01171875, -3.14159, 0.0, 65504.5], np.float32)
    want = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert (_to_bf16(values) == want).all()
