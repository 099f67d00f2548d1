"""Paged attention kernels in the interpreter against float64, over ragged batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_gpuworker.kernels.paged_batch import MAX_SPLITS, choose_splits
from octavo_gpuworker.kernels.triton.attention import attend_triton, attention_launches

SENTINEL = 77.0
EXAMPLES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def run(case) -> torch.Tensor:
    """The kernels' result, with a sentinel in rows behind the batch and in every row before the run."""
    tokens, width = case.q.shape[0], case.q.shape[1] * case.q.shape[2]
    room = torch.full((tokens + 3, width + 8), SENTINEL, dtype=case.q.dtype)
    pool = case.pool.clone()
    attend_triton(case.q, case.layer, case.layer_scales, case.batch, room[:tokens, :width])
    assert (room[tokens:] == SENTINEL).all(), "a row behind the batch was written"
    assert (room[:, width:] == SENTINEL).all(), "a column behind the row was written"
    assert case.pool.view(torch.uint8).equal(pool.view(torch.uint8)), "attention wrote to the cache"
    return room[:tokens, :width].clone()


EDGES = st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 64, 65])


NEWS = st.one_of(st.integers(1, 8), EDGES)
FEW = st.integers(1, 8)


@st.composite
def work(draw, news=NEWS) -> list[tuple[int, int]]:
    """1 to 4 sequences; cached lengths at block and tile edges."""
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        new = draw(news)
        rows.append((new, new + draw(st.one_of(st.just(0), EDGES))))
    return rows


@EXAMPLES
@given(
    work=work(),
    group=st.sampled_from([1, 3, 4, 8]),
    block=st.sampled_from([8, 16, 32]),
    window=st.sampled_from([None, None, 1, 5, 16, 40]),
    cap=st.sampled_from([0.0, 0.0, 2.0]),
    dim=st.sampled_from([32, 64]),
)
def test_ragged_mixed_batches(work, group, block, window, cap, dim, make_case, check) -> None:
    case = make_case(work, group=group, block=block, window=window, soft_cap=cap, dim=dim)
    check(run(case), case.reference())


@EXAMPLES
@given(
    work=work(news=FEW),
    splits=st.integers(2, 7),
    window=st.sampled_from([None, 3, 20]),
    group=st.sampled_from([1, 3, 8]),
)
def test_splits_with_and_without_keys(work, splits, window, group, make_case, check) -> None:
    """More splits than tiles leaves some empty; a window leaves the first ones empty."""
    case = make_case(work, group=group, splits=splits, window=window)
    check(run(case), case.reference())


@EXAMPLES
@given(
    work=work(),
    dtype=st.sampled_from([torch.float16, torch.float32]),
    kv=st.sampled_from([None, torch.int8, torch.float8_e4m3fn]),
    splits=st.sampled_from([None, 3]),
)
def test_dtypes_of_activations_and_cache(work, dtype, kv, splits, make_case, check) -> None:
    case = make_case(work, dtype=dtype, kv=kv, splits=splits)
    check(run(case), case.reference())


@pytest.mark.parametrize("dim", [32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("group", [1, 4, 16])
def test_head_dims(dim, dtype, group, make_case, check) -> None:
    case = make_case([(1, 70), (40, 40), (3, 35)], dim=dim, dtype=dtype, group=group)
    check(run(case), case.reference())


def test_only_prefills_of_one_token_context(make_case, check) -> None:
    case = make_case([(1, 1)] * 5)
    check(run(case), case.reference())


def test_a_window_of_one_returns_the_own_value(make_case, check) -> None:
    case = make_case([(20, 40), (1, 33)], window=1)
    check(run(case), case.reference())
    own = torch.cat(
        [kv[1, :, context - new : context] for (new, context), kv in zip(case.work, case.kv, strict=True)], 1
    )
    assert torch.allclose(run(case).view(21, 2, 3, 32).double(), own.transpose(0, 1)[:, :, None].expand(-1, -1, 3, -1))


def test_a_sequence_without_new_tokens_is_passed_over(make_case, check) -> None:
    """A captured step pads its batch so: no new token, context 0."""
    case = make_case([(1, 20), (2, 9)])
    padded = case.batch
    padded.query_start = torch.cat((padded.query_start, padded.query_start[-1:]))
    padded.context_len = torch.cat((padded.context_len, torch.zeros(1, dtype=torch.int32)))
    padded.block_tables = torch.cat((padded.block_tables, torch.full((1, padded.block_tables.shape[1]), 2**30)))
    padded.block_tables = padded.block_tables.int()
    for splits in (1, 3):
        padded.splits = splits
        check(run(case), case.reference())


def test_a_mixed_step_is_one_launch_sequence(make_case) -> None:
    def names(work, **shape) -> list[str]:
        case = make_case(work, dtype=torch.float16, **shape)
        out = torch.empty(case.q.shape[0], case.q.shape[1] * case.q.shape[2], dtype=case.q.dtype)
        return [launch.name for launch in attention_launches(out, case.q, case.layer, None, case.batch)]

    assert names([(1, 5), (1, 9)]) == ["paged_decode"]
    assert names([(1, 5), (8, 9)], splits=2) == ["paged_decode", "paged_decode_reduce"]
    assert names([(9, 9), (30, 40)]) == ["paged_prefill"]
    assert names([(1, 5), (9, 9)], splits=2) == ["paged_decode", "paged_decode_reduce", "paged_prefill"]


def test_the_grid_holds_every_tile_and_little_more(make_case) -> None:
    case = make_case([(50, 50), (1, 1), (9, 30)], group=4)
    out = torch.empty(60, 256)
    launch = attention_launches(out, case.q, case.layer, None, case.batch)[-1]
    per_tile = launch.constants["TILE_M"] // 4
    needed = sum(-(-new // per_tile) for new, _ in case.work)
    assert needed <= launch.grid[0] <= needed + len(case.work)


@pytest.mark.parametrize(
    ("sequences", "context", "splits"),
    [(1, 100, 1), (1, 511, 1), (1, 512, 2), (1, 8192, 32), (1, 100_000, MAX_SPLITS), (32, 4096, 2), (256, 4096, 1)],
)
def test_splits_fill_the_device_and_no_more(sequences, context, splits) -> None:
    """132 processors, 8 KV heads: two programs per processor, at least 256 keys in each."""
    assert choose_splits(sequences, 8 if sequences > 1 else 2, context, 132) == splits
