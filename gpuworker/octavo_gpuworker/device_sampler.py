"""Sampling by the table's `sample` operation: a batch's parameters as tensors, one launch sequence, one wait at the end.

Draws the tokens of `sampler.sample`, whose state is lists of the host; used where the table chose Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from octavo_gpuworker.kernels.sampling_ops import Bias, Penalties, SampleInputs, SampleOutputs
from octavo_gpuworker.kernels.table import KernelTable
from octavo_gpuworker.orders import TokenLogprobs
from octavo_gpuworker.sampled import Sampled
from octavo_gpuworker.sampler import GREEDY_BELOW, sample
from octavo_gpuworker.sequence import Sequence


def sampler_of(kernels: KernelTable) -> Callable[[Tensor, Rows[Sequence]], Sampled]:
    """The device's sampler where the table chose Triton for `sample`; else the host's, which needs no tensors of parameters."""
    chosen = {choice.operation: choice.chosen for choice in kernels.choices}
    return partial(sample_on_device, kernels.sample) if chosen["sample"] == "triton" else sample


@torch.inference_mode()
def sample_on_device(
    operation: Callable[[Tensor, SampleInputs], SampleOutputs], logits: Tensor, rows: Rows[Sequence]
) -> Sampled:
    """As `sampler.sample`: logits [R, V] float32 (may be overwritten) and the R sequences that they continue."""
    if not rows:
        return Sampled([], [])
    outputs = operation(logits, inputs_of(rows, logits.shape[1], logits.device))
    tokens = outputs.tokens.tolist()
    logprobs: list[TokenLogprobs | None] = [None] * len(rows)
    if outputs.logprobs is not None and outputs.top_tokens is not None and outputs.top_logprobs is not None:
        picked, ids, values = outputs.logprobs.tolist(), outputs.top_tokens.tolist(), outputs.top_logprobs.tolist()
        for i, seq in enumerate(rows):
            k = seq.sampling.logprobs
            if k >= 0 and tokens[i] >= 0:
                logprobs[i] = TokenLogprobs(tokens[i], picked[i], ids[i][:k], values[i][:k])
    return Sampled(tokens, logprobs)


def inputs_of(rows: Rows[Sequence], vocab_size: int, device: torch.device) -> SampleInputs:
    """The tensors of one draw."""

    def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    params = [seq.sampling for seq in rows]
    seeds = np.array([seq.seed for seq in rows], dtype=np.uint64).view(np.int64)
    return SampleInputs(
        column([p.temperature if p.temperature > GREEDY_BELOW else 0.0 for p in params]),
        # More than the vocabulary keeps all, and fits the kernel's integers.
        column([min(p.top_k, vocab_size) for p in params], torch.int32),
        column([p.top_p for p in params]),
        column([p.min_p for p in params]),
        torch.from_numpy(seeds).to(device, non_blocking=True),
        column([len(seq.tokens) for seq in rows], torch.int64),
        min(max(p.logprobs for p in params), vocab_size),
        _penalties(rows, vocab_size, device),
        _bias(rows, device),
    )


def _penalties(rows: Rows[Sequence], vocab_size: int, device: torch.device) -> Penalties | None:
    """Histories of the rows with penalties; the others' have length 0, so nothing is counted for them."""
    if not any(seq.sampling.has_penalties for seq in rows):
        return None
    lengths = [len(seq.tokens) if seq.sampling.has_penalties else 0 for seq in rows]
    history = np.zeros((len(rows), max(lengths)), dtype=np.int32)
    for row, (seq, length) in enumerate(zip(rows, lengths, strict=True)):
        history[row, :length] = seq.tokens[:length]

    def floats(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Penalties(
        floats([seq.sampling.repetition_penalty for seq in rows]),
        floats([seq.sampling.presence_penalty for seq in rows]),
        floats([seq.sampling.frequency_penalty for seq in rows]),
        torch.from_numpy(history).to(device),
        ints(list(range(len(rows)))),
        ints([min(seq.prompt_len, length) for seq, length in zip(rows, lengths, strict=True)]),
        ints(lengths),
        torch.zeros(len(rows), vocab_size, dtype=torch.int32, device=device),
    )


def _bias(rows: Rows[Sequence], device: torch.device) -> Bias | None:
    """Logit biases, and -inf for the ends of rows that are below their least length."""
    entries = [seq.biases() for seq in rows]
    sizes = [len(row) for row in entries]
    if not any(sizes):
        return None
    return Bias(
        torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device),
        torch.tensor([token for row in entries for token in row], dtype=torch.int32, device=device),
        torch.tensor([value for row in entries for value in row.values()], dtype=torch.float32, device=device),
        max(sizes),
    )
