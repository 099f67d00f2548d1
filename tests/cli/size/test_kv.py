"""KV bytes against worked examples, and against the pools that workers really make."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from octavo_cli.size.kv import kv_size
from octavo_cli.size.shape import BadSize, ModelShape

Make = Callable[..., ModelShape]


@pytest.mark.parametrize(("heads", "token_bytes"), [(32, 524_288), (8, 131_072), (1, 16_384)])
def test_bytes_per_token_of_mha_gqa_and_mqa(make_shape: Make, heads: int, token_bytes: int) -> None:
    assert kv_size(make_shape(kv_heads=heads)).token_bytes == token_bytes


def test_8192_tokens_at_8_heads_are_a_gib(make_shape: Make) -> None:
    assert kv_size(make_shape(kv_heads=8)).context_bytes(8192) == 2**30


@pytest.mark.parametrize(("heads", "mib"), [(32, 500.0), (8, 125.0), (1, 15.625)])
def test_1000_tokens_in_mib_and_ten_sequences_ten_times_that(make_shape: Make, heads: int, mib: float) -> None:
    size = kv_size(make_shape(kv_heads=heads), block_tokens=8)  # 1,000 is a multiple of 8: nothing is rounded
    assert size.context_bytes(1000) == mib * 2**20
    assert size.pool_bytes(1000, 10) - size.block_bytes == 10 * size.context_bytes(1000)


def test_the_last_block_is_whole(make_shape: Make) -> None:
    size = kv_size(make_shape(), block_tokens=16)
    assert size.context_bytes(1) == size.context_bytes(16) == size.block_bytes
    assert size.context_bytes(17) == 2 * size.block_bytes
    assert size.context_bytes(1000) - 1000 * size.token_bytes == 8 * size.token_bytes


def test_a_latent_is_one_head_that_every_rank_holds(make_shape: Make) -> None:
    shape = make_shape(latent=True, cache={"halves": 1, "heads": 1, "width": 576}, layers=27, q_heads=16)
    whole, split = kv_size(shape), kv_size(shape, tp=4)
    assert whole.token_bytes == split.token_bytes == 27 * 576 * 2
    assert (split.whole_token_bytes, split.replicated) == (4 * whole.token_bytes, 4)


def test_heads_are_dealt_out_over_ranks_and_copied_when_there_are_fewer(make_shape: Make) -> None:
    whole = kv_size(make_shape(kv_heads=8))
    half, thin = kv_size(make_shape(kv_heads=8), tp=2), kv_size(make_shape(kv_heads=8), tp=16)
    assert (half.token_bytes, half.whole_token_bytes, half.replicated) == (whole.token_bytes // 2, whole.token_bytes, 1)
    assert (thin.token_bytes, thin.rank_heads, thin.replicated) == (whole.token_bytes // 8, 1, 2)


@pytest.mark.parametrize(("tp", "word"), [(3, "32 query heads"), (0, "32 query heads")])
def test_ranks_that_do_not_divide_the_heads_are_refused(make_shape: Make, tp: int, word: str) -> None:
    with pytest.raises(BadSize, match=word):
        kv_size(make_shape(kv_heads=8), tp=tp)


def test_kv_heads_that_cannot_be_dealt_out_are_refused(make_shape: Make) -> None:
    with pytest.raises(BadSize, match="12 KV heads"):
        kv_size(make_shape(kv_heads=12, q_heads=24), tp=8)


def test_an_unknown_dtype_is_refused_with_the_known_ones(make_shape: Make) -> None:
    with pytest.raises(BadSize, match=r"int4.*bfloat16.*int8"):
        kv_size(make_shape(), "int4")


def test_what_fits_leaves_the_null_block_out_of_the_pool_alone(make_shape: Make) -> None:
    size = kv_size(make_shape())
    assert size.concurrency(10 * size.block_bytes, 16 * 3) == 3  # 9 usable blocks
    assert size.concurrency(9 * size.block_bytes, 16 * 3) == 2
    assert size.concurrency(9 * size.block_bytes, 16 * 3, null_block=False) == 3
    assert size.concurrency(0, 16) == size.tokens(0) == 0
    assert size.concurrency(size.pool_bytes(100, 7), 100) == 7


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float32", "int8", "fp8"])
@pytest.mark.parametrize("latent", [False, True])
def test_it_is_what_a_pool_takes(make_shape: Make, kv_dtype: str, latent: bool) -> None:
    torch = pytest.importorskip("torch")
    from octavo_gpuworker.model.config import LatentConfig, ModelConfig
    from octavo_gpuworker.model.pool import KvPool

    config = ModelConfig(
        "llama", 3, 96, 6, 2, 16, 64, 100, 512, 1e-5, 1e4,
        latent=LatentConfig(32, 12, 4, 16) if latent else None,
    )  # fmt: skip
    halves, heads, width = config.cache_shape
    shape = make_shape(
        q_heads=6, kv_heads=2, layers=3, latent=latent, cache={"halves": halves, "heads": heads, "width": width}
    )
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[
        kv_dtype
    ]
    pool = KvPool(config, 5, 16, dtype)
    assert kv_size(shape, kv_dtype).block_bytes == pool.block_bytes
    assert kv_size(shape, kv_dtype).block_bytes * 5 == pool.buffer.numel()
