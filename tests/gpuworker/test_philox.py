"""Random numbers of the sampler: reproducible, independent, and inside the open interval."""

from __future__ import annotations

import numpy as np
import pytest
from octavo_gpuworker import philox
from octavo_gpuworker.philox import gumbel, gumbel_at, uniforms

LARGEST = 410
"""With seed 7 this position's draws hold the generator's largest value, 1 - 2**-24, at token 46724 (found by search)."""
VOCAB = 49152
ONES = 2**64 - 1
KNOWN = [  # kat_vectors of Random123, philox4x64 with 10 rounds: counter, key, answer
    ([0, 0, 0, 0], [0, 0], [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]),
    ([ONES] * 4, [ONES] * 2, [0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0]),
    (
        [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
        [0x452821E638D01377, 0xBE5466CF34E90C6C],
        [0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6],
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers_of_the_generator(counter: list[int], key: list[int], answer: list[int]) -> None:
    """numpy counts up before it draws, so the vector's counter is one more than what it is given."""
    before = (sum(word << (64 * i) for i, word in enumerate(counter)) - 1) % 2**256
    words = np.array([(before >> (64 * i)) & ONES for i in range(4)], dtype=np.uint64)
    bits = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=words)
    assert [int(word) for word in bits.random_raw(4)] == answer


def test_uniforms_are_the_generators_words() -> None:
    """Token t takes half t % 2 (low first) of 64-bit word t // 2, the upper 24 bits of it: pinned, since streams resume by it."""
    bits = np.random.Philox(key=np.array([77, 3], dtype=np.uint64), counter=np.array([0, 12, 0, 0], dtype=np.uint64))
    words = [int(word) for word in bits.random_raw(8)]
    halves = [half for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
    assert uniforms(77, 12, 16, purpose=3).tolist() == [(half >> 8) * 2.0**-24 for half in halves]


def test_noise_at_some_ids_is_the_noise_of_all() -> None:
    ids = np.array([[5, 0, 49151, 17], [3, 3, 2, 1]])
    whole = gumbel([7, 9], [1, 2], VOCAB)
    assert np.array_equal(gumbel_at([7, 9], [1, 2], ids, VOCAB), np.take_along_axis(whole, ids, axis=1))


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
