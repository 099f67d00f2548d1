"""Binaries of the sampling family: one serves every vocabulary whose rows are aligned, another the odd ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

import torch
from torch import Tensor

from octavo_gpuworker.kernels.sampling_ops import Bias, Grammar, Penalties, SampleInputs
from octavo_gpuworker.kernels.triton.sampling import sample_launches
from octavo_gpuworker.kernels.triton.variant import META, Variant

VOCABULARIES: Final = (128256, 50257)
"""Rows that are and are not multiples of 16 apart."""


def sample_inputs(rows: int, vocab_size: int, edited: bool, max_logprobs: int) -> SampleInputs:
    """Inputs without data."""

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    def floats(*shape: int) -> Tensor:
        return empty(*shape, dtype=torch.float32)

    wide = empty(rows, dtype=torch.int64)
    inputs = SampleInputs(floats(rows), empty(rows), floats(rows), floats(rows), wide, wide, max_logprobs)
    if edited:
        inputs.penalties = Penalties(
            floats(rows), floats(rows), floats(rows), empty(rows, 4096), empty(rows), empty(rows), empty(rows),
            empty(rows, vocab_size),
        )  # fmt: skip
        inputs.bias = Bias(empty(rows + 1), empty(40), floats(40), 20)
        inputs.grammar = Grammar(empty(2, -(-vocab_size // 32)), empty(rows))
    return inputs


def sampling_variants() -> Iterator[Variant]:
    """Every vocabulary size, with and without edits and log-probabilities."""
    for vocab_size, edited, logprobs in product(VOCABULARIES, (False, True), (-1, 5)):
        logits = torch.empty(4, vocab_size, device=META)
        _, launches = sample_launches(logits, sample_inputs(4, vocab_size, edited, logprobs))
        for launch in launches:
            constants = launch.constants
            parts = [name.lower() for name in ("SCALED", "GRAMMAR", "LOGPROBS") if constants.get(name)]
            if _reads_rows(launch.arguments) and vocab_size % 16:
                parts.append("ragged")
            yield Variant("-".join(parts) or "any", launch, False)


def _reads_rows(arguments: object) -> bool:
    """A stride of logits is an argument that the kernel specializes on."""
    assert isinstance(arguments, dict)
    return "tile_max" in arguments
