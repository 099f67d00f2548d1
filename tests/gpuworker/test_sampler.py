"""The sampler at the edges of its parameters."""

from __future__ import annotations

import pytest
import torch
from octavo_gpuworker.orders import Sampling
from octavo_gpuworker.sampler import sample
from octavo_gpuworker.sequence import Sequence

VOCAB = 49152


def row(sampling: Sampling, position: int = 3, seed: int = 7) -> Sequence:
    return Sequence(1, 0, [1] * position, position, 0, [], sampling, seed, 99_999, 0, position)


@pytest.mark.parametrize("temperature", [1e-44, 1e-38, 1e-6, 1e-4])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_temperature_near_zero_is_greedy(temperature: float, top_p: float) -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(1)) * 30
    rows = [row(Sampling(temperature=temperature, top_p=top_p), seed=seed) for seed in range(4)]
    assert sample(logits.clone(), rows).tokens == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("sampling", [Sampling(top_k=1), Sampling(top_p=0.5), Sampling(min_p=0.5)])
def test_the_generators_largest_draw_does_not_win_over_a_token_that_was_cut(sampling: Sampling) -> None:
    """Seed 7 draws 1 - 2**-24 for token 46724 at position 410: once its noise was infinite."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = 50.0
    assert sample(logits, [row(sampling, position=410)]).tokens == [5]
