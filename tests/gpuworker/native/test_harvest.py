"""What the head leaves for rows that draw from a nucleus: the same tokens as from the whole row of logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from octavo_gpuworker.masses import masses
from octavo_gpuworker.native.library import Library
from octavo_gpuworker.native.model import NativeModel
from octavo_gpuworker.native.packing import Packed
from octavo_gpuworker.orders import Sampling
from safetensors.torch import load_file, save_file

from .conftest import TINY, Checkpoint, MakeModel, Step, fill, make_checkpoint
from .test_sampler import assert_equal, sequence

ROWS = 24
STEP = Step([[(31 * i + s) % 2000 for i in range(1 + s % 7)] for s in range(ROWS)], [1] * ROWS, 8)


def tokens_of(model: NativeModel, temperature: float, top_p: float, *, harvested: bool) -> list[list[int]]:
    """Two steps' tokens of all rows; rows whose logits are asked for are sampled from them, as any other sampler does it."""
    arrays = model.arrays(want_logits=not harvested)
    found = []
    for turn in range(2):
        total, sequences = fill(arrays, STEP, STEP.new, [len(tokens) for tokens in STEP.tokens])
        arrays.temperature[:total], arrays.top_p[:total] = temperature, top_p
        arrays.temperature[0], arrays.top_k[1], arrays.min_p[2], arrays.top_p[3] = (
            0.0,
            5,
            0.1,
            1.0,
        )  # the first and the fourth are not harvested
        arrays.logprobs[4] = 0
        arrays.seeds[:total] = np.arange(total) + 100 * turn
        model.step(arrays, tokens=total, sequences=sequences, rows=total)
        found.append([*arrays.out_tokens[:total].tolist(), float(arrays.out_logprobs[4])])
    return found


def agree(models: Callable[[int], NativeModel], temperature: float, top_p: float) -> None:
    """Two steps of models that have not run before: the first finds no logits, the second does if one of its rows asked for them."""
    one, two = models(1), models(2)
    whole = tokens_of(one, temperature, top_p, harvested=False)
    assert tokens_of(two, temperature, top_p, harvested=True) == whole
    assert tokens_of(one, temperature, top_p, harvested=True) == whole
    assert min(whole[0][:ROWS]) >= 0
    one.close()
    two.close()


@pytest.mark.parametrize("isa", ["avx2", "auto"])
def test_a_harvest_draws_the_tokens_of_the_whole_row(
    isa: str, tmp_path: Path, packed: Callable[[Checkpoint, str], Packed], make_model: MakeModel
) -> None:
    """From a few candidates to all of a unit, and shares that reach beyond them; the last unit of the vocabulary is a short one."""
    checkpoint = make_checkpoint(tmp_path / "model", dataclasses.replace(TINY, vocab_size=2013))

    def fresh(threads: int) -> NativeModel:
        model = make_model(checkpoint, STEP, threads=threads, isa=isa)
        model.pool[1:] = 0
        return model

    for temperature in (0.05, 0.8, 3.0, 40.0):
        for top_p in (1e-6, 0.3, 0.95, 0.9999999):
            agree(fresh, temperature, top_p)


def test_a_row_with_more_candidates_than_there_is_room_for_draws_the_same(
    tmp_path: Path, packed: Callable[[Checkpoint, str], Packed], make_model: MakeModel
) -> None:
    """A flat row of 40,013 tokens, of which one thread keeps 32,768 and two keep half as many each."""
    checkpoint = make_checkpoint(tmp_path / "model", dataclasses.replace(TINY, vocab_size=40_013))

    def fresh(threads: int) -> NativeModel:
        model = make_model(checkpoint, STEP, threads=threads)
        model.pool[1:] = 0
        return model

    agree(fresh, 40.0, 0.9)


@pytest.mark.parametrize("top_p", [0.6, 0.95, 0.999])
def test_a_nucleus_that_goes_on_below_the_candidates_is_drawn_from_whole(
    top_p: float, tmp_path: Path, packed: Callable[[Checkpoint, str], Packed], make_model: MakeModel
) -> None:
    """One token of some rows is far above a flat rest: whether the rest wins is told by its noise, and mostly it does not."""
    checkpoint = make_checkpoint(tmp_path / "model", dataclasses.replace(TINY, vocab_size=6013))
    (path,) = checkpoint.files.weights
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][4000] *= 8
    save_file(tensors, path)

    def fresh(threads: int) -> NativeModel:
        model = make_model(checkpoint, STEP, threads=threads)
        model.pool[1:] = 0
        return model

    for temperature in (0.6, 0.9, 1.2, 1.6, 2.0):
        agree(fresh, temperature, top_p)


@pytest.mark.parametrize("isa", ["auto", "avx2"])
def test_a_token_at_the_edge_of_the_nucleus_is_the_twins(isa: str, library: Library) -> None:
    """Two levels of which the upper one is the share but for the last bit: whether the lower one is drawn hangs on the exact masses."""
    logits = np.where(np.arange(4096) % 2 == 0, 0.5, 0.25).astype(np.float32)
    upper, lower = (2048 * int(mass) for mass in masses(torch.tensor([-0.125, -0.375])))
    logits[9] = 0.625
    edge = (upper + 2**40) / (upper + lower + 2**40 - int(masses(torch.tensor([-0.375]))[0]))
    shares = [edge, *(float(np.nextafter(edge, to)) for to in (0, 1)), edge * (1 - 1e-12), edge * (1 + 1e-12)]
    for top_p in shares:
        rows = [sequence(Sampling(top_p=top_p), [1], 1, seed) for seed in range(8)]
        assert_equal(library, np.tile(logits, (8, 1)), rows, isa)


@pytest.mark.parametrize("isa", ["auto", "avx2"])
@pytest.mark.parametrize("top_p", [1 - 2e-7, 1 - 1e-9, 0.5, 0.25])
def test_a_share_that_hangs_on_the_last_mass_is_the_twins(top_p: float, isa: str, library: Library) -> None:
    """Sums that are exactly the share, or off by less than the bounds of the quick sum: the exact one decides."""
    generator = np.random.default_rng(11)
    level = np.where(np.arange(4096) % 2 == 0, 0.0, generator.uniform(-32.0, -20.0, 4096))
    steps = -np.log(2.0) * np.arange(4096)
    logits = np.stack((level, generator.permutation(level), steps, np.zeros(4096))).astype(np.float32)
    assert_equal(library, logits, [sequence(Sampling(top_p=top_p), [1], 1, seed) for seed in range(4)], isa)
