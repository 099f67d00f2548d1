"""paged_attention against attention written out in float64 per sequence and head; unused pool entries are poison."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_gpuworker.kernels.attention_plan import QUERY_TILE, PoolShape, plan_attention
from octavo_gpuworker.kernels.paged_attention import paged_attention_torch
from torch import Tensor

LAYERS = 2
POISON = 1e4
"""What an unused slot holds: large enough that one read shows, finite as the pool promises."""


class Case:
    """A batch of (new, context) sequences over scattered blocks, with its float64 answer."""

    def __init__(
        self, work, *, q_heads=6, kv_heads=2, dim=16, size=16, window=None, dtype=torch.float32, layer=1
    ) -> None:
        self.work, self.window, self.layer = work, window, layer
        blocks = [-(-context // size) for _, context in work]
        order = (torch.randperm(sum(blocks)) + 1).tolist()
        self.pool = torch.full((sum(blocks) + 1, LAYERS, 2, kv_heads, size, dim), POISON, dtype=dtype)
        self.pool[0] = 0
        tables = torch.full((len(work), max(blocks)), 2**30, dtype=torch.int32)
        self.kv: list[Tensor] = []
        for index, ((_, context), count) in enumerate(zip(work, blocks, strict=True)):
            mine, order = order[:count], order[count:]
            tables[index, :count] = torch.tensor(mine)
            kv = torch.randn(2, kv_heads, context, dim).to(dtype)
            for position in range(context):
                self.pool[mine[position // size], layer, :, :, position % size] = kv[:, :, position]
            self.kv.append(kv)
        starts = [0, *itertools.accumulate(new for new, _ in work)]
        self.q = torch.randn(starts[-1], q_heads, dim).to(dtype)
        shape = PoolShape(LAYERS, q_heads, kv_heads, dim, size, window, dtype)
        contexts = torch.tensor([context for _, context in work], dtype=torch.int32)
        self.plan = plan_attention(torch.tensor(starts, dtype=torch.int32), contexts, tables, shape)
        self.starts = starts

    def run(self) -> Tensor:
        return paged_attention_torch(self.q, self.pool, self.layer, self.plan)

    def reference(self) -> Tensor:
        rows = []
        for (new, context), kv, start in zip(self.work, self.kv, self.starts[:-1], strict=True):
            queries = self.q[start : start + new].double()
            keys, values = kv.double().repeat_interleave(queries.shape[1] // kv.shape[1], dim=1)
            scores = torch.einsum("thd,hcd->thc", queries, keys) / queries.shape[-1] ** 0.5
            at = torch.arange(context - new, context)[:, None]
            seen = torch.arange(context) <= at
            if self.window is not None:
                seen &= torch.arange(context) > at - self.window
            weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
            rows.append(torch.einsum("thc,hcd->thd", weights, values).flatten(1))
        return torch.cat(rows)


WORK = {
    "one decode": [(1, 33)],
    "first token": [(1, 1)],
    "decodes of unlike length": [(1, 5), (1, 700), (1, 1), (1, 64), (1, 255), (1, 256), (1, 257)],
    "full blocks only": [(1, 32), (1, 32)],
    "one prompt": [(45, 45)],
    "chunk over a context": [(20, 90)],
    "more than one tile": [(QUERY_TILE + 9, 2 * QUERY_TILE + 30)],
    "exactly one tile": [(QUERY_TILE, QUERY_TILE)],
    "mixed": [(1, 40), (30, 30), (1, 300), (2, 17), (1, 9), (140, 200)],
    "prefill between decodes": [(3, 3), (1, 12), (5, 90), (1, 7)],
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("window", [None, 1, 13, 64, 10_000])
@pytest.mark.parametrize("size", [8, 16, 32])
def test_batches(work, window, size, check) -> None:
    case = Case(work, window=window, size=size)
    check(case.run(), case.reference())


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_head_groups_and_dtypes(heads, dtype, check) -> None:
    case = Case(WORK["mixed"], q_heads=heads[0], kv_heads=heads[1], dim=24, dtype=dtype)
    check(case.run(), case.reference())


@pytest.mark.parametrize("work", [WORK["decodes of unlike length"], [(1, 64)] * 20, WORK["more than one tile"]])
@pytest.mark.parametrize("window", [None, 40])
def test_bfloat16_batches(work, window, check) -> None:
    case = Case(work, q_heads=9, kv_heads=3, dim=24, window=window, dtype=torch.bfloat16)
    check(case.run(), case.reference())


@settings(max_examples=40, deadline=None)
@given(
    work=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=6),
    window=st.one_of(st.none(), st.integers(1, 50)),
    size=st.sampled_from([8, 16]),
)
def test_any_batch(work, window, size) -> None:
    case = Case([(new, new + before) for new, before in work], window=window, size=size)
    assert (case.run().double() - case.reference()).abs().max() < 1e-5


def test_large_scores_do_not_overflow(check) -> None:
    case = Case([(1, 100), (20, 50)])
    case.q *= 200
    check(case.run(), case.reference())


def test_window_reads_no_block_before_it() -> None:
    """Blocks wholly before the window may already belong to somebody else: their ids must not even be read."""
    torch.manual_seed(1)
    case = Case([(1, 200), (4, 160)], window=20, size=16)
    expected = case.run()
    shape = PoolShape(LAYERS, 6, 2, 16, 16, 20, torch.float32)
    tables = torch.full((2, 13), 2**30, dtype=torch.int32)
    torch.manual_seed(1)
    order = (torch.randperm(13 + 10) + 1).tolist()
    tables[0, 11:13] = torch.tensor(order[11:13])
    tables[1, 8:10] = torch.tensor(order[13 + 8 : 13 + 10])
    plan = plan_attention(torch.tensor([0, 1, 5]), torch.tensor([200, 160]), tables, shape)
    assert paged_attention_torch(case.q, case.pool, 1, plan).equal(expected)


def test_decodes_of_like_context_attend_together() -> None:
    case = Case([(1, 100 + i) for i in range(16)])
    assert len(case.plan.decodes) == 1
    assert not case.plan.prefills
    mixed = Case([(1, 20), (1, 30), (1, 3000)])
    assert [group.count for group in mixed.plan.decodes] == [2, 1], "a long context does not pad the short ones"


@pytest.mark.parametrize("work", [WORK["decodes of unlike length"], WORK["mixed"], [(1, 33)]])
@pytest.mark.parametrize("window", [None, 13])
@pytest.mark.parametrize("soft_cap", [0.0, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_an_earlier_owner_left_behind_never_reaches_an_answer(work, window, soft_cap, dtype, check) -> None:
    """A sequence that failed leaves NaN and infinities in its blocks, and padding leaves them in the null block."""
    case = Case(work, window=window, dtype=dtype)
    case.plan.shape = dataclasses.replace(case.plan.shape, soft_cap=soft_cap)
    clean = case.run()
    case.pool[case.pool == POISON] = float("nan")
    case.pool[0] = float("-inf")
    dirty = case.run()
    assert torch.isfinite(dirty).all()
    assert torch.equal(dirty, clean)


def test_the_scales_of_an_earlier_owner_neither() -> None:
    case = Case([(1, 33), (1, 5)])
    pool = case.pool.clamp(-100, 100).round().to(torch.int8)
    scales = torch.ones(pool.shape[:-1])
    scales[case.pool[..., 0] == POISON] = float("nan")
    scales[0] = float("nan")
    assert torch.isfinite(paged_attention_torch(case.q, pool, 1, case.plan, scales)).all()
