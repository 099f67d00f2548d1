"""Random numbers of the sampler: reproducible, independent, and inside the open interval."""

from __future__ import annotations

import numpy as np
import pytest
from octavo_gpuworker import philox
from octavo_gpuworker.philox import gumbel, uniforms

LARGEST = 410
"""With seed 7 this position's draws hold the generator's largest value, 1 - 2**-24, at token 46724 (found by search)."""
VOCAB = 49152


def test_no_uniform_is_one_although_float32_rounds_the_largest_up() -> None:
    raw = np.random.Generator(
        np.random.Philox(key=np.array([7, 0], dtype=np.uint64), counter=np.array([0, LARGEST, 0, 0], dtype=np.uint64))
    ).random(VOCAB, dtype=np.float32)
    assert raw.max() == np.float32(1 - 2.0**-24)  # the case is really there
    drawn = uniforms(7, LARGEST, VOCAB)
    assert drawn.min() > 0 and drawn.max() < 1
    assert np.isfinite(gumbel([7], [LARGEST], VOCAB)).all()


def test_no_uniform_is_zero_although_the_generator_draws_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros:
        def random(self, count: int, dtype: type[np.float32]) -> np.ndarray:
            return np.zeros(count, dtype=dtype)

    monkeypatch.setattr(philox.np.random, "Generator", lambda bits: Zeros())
    assert np.isfinite(gumbel([1], [1], 8)).all()


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_a_row_depends_on_its_own_seed_and_position_alone(seed: int) -> None:
    alone = gumbel([seed], [5], 64)[0]
    batch = gumbel([3, seed, 9], [5, 5, 6], 64)
    assert np.array_equal(batch[1], alone)
    assert not np.array_equal(uniforms(seed, 5, 64), uniforms(seed, 6, 64))
    assert not np.array_equal(uniforms(seed, 5, 64), uniforms(seed, 5, 64, purpose=1))


def test_neighbouring_positions_do_not_overlap() -> None:
    """Position p's counters never reach those of p + 1, so no draw repeats one token later."""
    first, second = uniforms(11, 100, VOCAB), uniforms(11, 101, VOCAB)
    assert np.isin(second, first).mean() < 0.02  # 0.3% by chance, 100% if one row were the other shifted


def test_the_distribution_is_uniform() -> None:
    """Chi-square over 64 cells of 200,000 draws; the 0.999 quantile at 63 degrees of freedom is 103.4."""
    drawn = uniforms(5, 0, 200_000)
    counts, _ = np.histogram(drawn, bins=64, range=(0, 1))
    expected = len(drawn) / 64
    assert ((counts - expected) ** 2 / expected).sum() < 103.4
