"""Latent decode in the interpreter against its twin, over scattered blocks whose unused slots hold NaN."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_gpuworker.kernels.mla import mla_decode_torch
from octavo_gpuworker.kernels.paged_batch import paged_batch
from octavo_gpuworker.kernels.triton.mla import mla_decode_triton, mla_launches

EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def work(draw) -> list[tuple[int, int]]:
    """(new, context): contexts at and around block and tile edges; up to 9 new tokens, of which 9 is a prefill."""
    sequences = draw(st.integers(1, 3))
    new = [draw(st.sampled_from([0, 1, 1, 2, 8, 9])) for _ in range(sequences)]
    return [(n, max(n, draw(st.sampled_from([1, 7, 8, 9, 31, 32, 33, 70])))) for n in new]


def make(work, heads: int, latent: int, rope: int, block: int, dtype: torch.dtype, splits: int | None):
    counts = [-(-context // block) for _, context in work]
    order = (torch.randperm(sum(counts)) + 1).int()
    tables = torch.full((len(work), max(counts) + 1), 2**30, dtype=torch.int32)
    cache = torch.full((sum(counts) + 1, 3, block, latent + rope), float("nan")).to(dtype)
    for row, (ids, (_, context)) in enumerate(zip(order.split(counts), work, strict=True)):
        tables[row, : len(ids)] = ids
        for position in range(context):
            cache[ids[position // block], 1, position % block] = torch.randn(latent + rope).to(dtype)
    new = [n for n, _ in work]
    contexts = [context for _, context in work]
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    batch = paged_batch(
        starts,
        torch.tensor(contexts, dtype=torch.int32),
        tables,
        new,
        contexts,
        block_tokens=block,
        scale=0.1,
        processors=4,
    )
    batch.splits = splits
    q = torch.randn(sum(new), heads, latent + rope + 8).to(dtype)
    return q[..., :latent], q[..., latent : latent + rope], cache[:, 1], batch


@EXAMPLES
@given(
    work=work(),
    heads=st.sampled_from([1, 5, 16, 40]),
    sizes=st.sampled_from([(32, 16), (64, 32)]),
    block=st.sampled_from([8, 16]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    splits=st.sampled_from([None, 1, 3]),
)
def test_decode(work, heads, sizes, block, dtype, splits, check) -> None:
    q_latent, q_rope, cache, batch = make(work, heads, *sizes, block, dtype, splits)
    # NaN in slots that no key fills must not reach the twin either: it cuts at the context.
    expected = mla_decode_torch(q_latent.float(), q_rope.float(), cache.float(), batch)
    if not batch.decode_query:
        return
    result = mla_decode_triton(q_latent, q_rope, cache, batch)
    assert result.isfinite().all()
    scale = expected.pow(2).mean().sqrt()
    assert (result.float() - expected).pow(2).mean().sqrt() <= (2e-6 if dtype == torch.float32 else 2e-3) * scale


def test_long_contexts_are_split_and_reduced() -> None:
    q_latent, q_rope, cache, batch = make([(1, 70)], 4, 32, 16, 8, torch.float32, None)
    out = torch.empty_like(q_latent)
    assert [launch.name for launch in mla_launches(out, q_latent, q_rope, cache, batch)] == ["mla_decode"]
    batch.max_context = 2048
    names = [launch.name for launch in mla_launches(out, q_latent, q_rope, cache, batch)]
    assert names == ["mla_decode", "paged_decode_reduce"]
