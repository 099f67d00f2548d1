"""Sampling by the table's `sample` operation: a batch's parameters as tensors, one launch sequence, one wait at the end.

Draws the tokens of `sampler.sample`, whose state is lists of the host; used where the table chose Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo_gpuworker.kernels.sampling_ops import Bias, Penalties, SampleInputs, SampleOutputs
from octavo_gpuworker.kernels.table import KernelTable
from octavo_gpuworker.orders import TokenLogprobs
from octavo_gpuworker.sampled import Sampled
from octavo_gpuworker.sampler import GREEDY_BELOW, sample
from octavo_gpuworker.sequence import Sequence
from octavo_gpuworker.step_buffer import pack


def sampler_of(kernels: KernelTable) -> Callable[[Tensor, Rows[Sequence]], Sampled]:
    """The device's sampler where the table chose Triton for `sample`; else the host's, which needs no tensors of parameters."""
    chosen = {choice.operation: choice.chosen for choice in kernels.choices}
    return partial(sample_on_device, kernels.sample) if chosen["sample"] == "triton" else sample


@dataclass(frozen=True, slots=True)
class Drawn:
    """A draw that the device may still be busy with: its tokens there, and the one copy of everything to the host."""

    tokens: Tensor
    """[R] int64 on the device."""
    packed: Tensor
    """uint8 in host memory: tokens, and where wanted logprobs, the best tokens and theirs, one array after the other."""
    ended: torch.cuda.Event | None
    """When `packed` is whole; None: it is."""
    best: int
    """Best tokens per row; -1: no log-probabilities."""


@torch.inference_mode()
def draw_on_device(
    operation: Callable[[Tensor, SampleInputs], SampleOutputs], logits: Tensor, rows: Rows[Sequence]
) -> Drawn:
    """Enqueues the draw of logits [R, V] float32 (may be overwritten) for R sequences and the copy of its result; waits for
    nothing."""
    outputs = operation(logits, inputs_of(rows, logits.shape[1], logits.device))
    parts = [outputs.tokens]
    best = -1
    if outputs.logprobs is not None and outputs.top_tokens is not None and outputs.top_logprobs is not None:
        best = outputs.top_tokens.shape[1]
        parts += [outputs.logprobs, outputs.top_tokens, outputs.top_logprobs]
    packed = torch.cat([part.contiguous().view(-1).view(torch.uint8) for part in parts])
    if packed.device.type != "cuda":
        return Drawn(outputs.tokens, packed, None, best)
    host = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=True)
    host.copy_(packed, non_blocking=True)
    ended = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ended.record(torch.cuda.current_stream(packed.device))
    return Drawn(outputs.tokens, host, ended, best)


def read_drawn(drawn: Drawn, rows: Rows[Sequence]) -> Sampled:
    """Waits for a draw of these rows: the one place of a step where the host waits for the device."""
    if drawn.ended is not None:
        drawn.ended.synchronize()
    raw, count, best = drawn.packed.numpy(), len(rows), drawn.best
    tokens = raw[: 8 * count].view(np.int64).tolist()
    logprobs: list[TokenLogprobs | None] = [None] * count
    if best < 0:
        return Sampled(tokens, logprobs)
    ends = list(accumulate((8 * count, 4 * count, 8 * count * best, 4 * count * best)))
    picked = raw[ends[0] : ends[1]].copy().view(np.float32).tolist()
    ids = raw[ends[1] : ends[2]].copy().view(np.int64).reshape(count, best).tolist()
    values = raw[ends[2] : ends[3]].copy().view(np.float32).reshape(count, best).tolist()
    for i, seq in enumerate(rows):
        k = seq.sampling.logprobs
        if k >= 0 and tokens[i] >= 0:
            logprobs[i] = TokenLogprobs(tokens[i], picked[i], ids[i][:k], values[i][:k])
    return Sampled(tokens, logprobs)


def sample_on_device(
    operation: Callable[[Tensor, SampleInputs], SampleOutputs], logits: Tensor, rows: Rows[Sequence]
) -> Sampled:
    """As `sampler.sample`: logits [R, V] float32 (may be overwritten) and the R sequences that they continue."""
    return read_drawn(draw_on_device(operation, logits, rows), rows) if rows else Sampled([], [])


def inputs_of(rows: Rows[Sequence], vocab_size: int, device: torch.device) -> SampleInputs:
    """The tensors of one draw, by one packed copy."""
    params = [seq.sampling for seq in rows]
    arrays: list[np.ndarray] = [
        np.array([p.temperature if p.temperature > GREEDY_BELOW else 0.0 for p in params], dtype=np.float32),
        # More than the vocabulary keeps all, and fits the kernel's integers.
        np.array([min(p.top_k, vocab_size) for p in params], dtype=np.int32),
        np.array([p.top_p for p in params], dtype=np.float32),
        np.array([p.min_p for p in params], dtype=np.float32),
        np.array([seq.seed for seq in rows], dtype=np.uint64).view(np.int64),
        np.array([len(seq.tokens) for seq in rows], dtype=np.int64),
    ]
    histories, bias = _history_arrays(rows), _bias_arrays(rows)
    moved = iter(pack([*arrays, *histories, *bias], device))

    def take(kind: type, count: int) -> dict[str, Any]:
        return {item.name: next(moved) for item in fields(kind)[:count]}

    columns = take(SampleInputs, len(arrays))
    penalties = entries = None
    if histories:
        counts = torch.zeros(len(rows), vocab_size, dtype=torch.int32, device=device)
        penalties = Penalties(**take(Penalties, len(histories)), counts=counts)
    if bias:
        entries = Bias(**take(Bias, len(bias)), longest=int(np.diff(bias[0]).max()))
    most = min(max(p.logprobs for p in params), vocab_size)
    return SampleInputs(**columns, max_logprobs=most, penalties=penalties, bias=entries)


def _history_arrays(rows: Rows[Sequence]) -> list[np.ndarray]:
    """Penalties' arrays in their order, empty where no row has any; the others' histories have length 0, so nothing is counted
    for them."""
    if not any(seq.sampling.has_penalties for seq in rows):
        return []
    lengths = [len(seq.tokens) if seq.sampling.has_penalties else 0 for seq in rows]
    history = np.zeros((len(rows), max(lengths)), dtype=np.int32)
    for row, (seq, length) in enumerate(zip(rows, lengths, strict=True)):
        history[row, :length] = seq.tokens[:length]
    return [
        np.array([seq.sampling.repetition_penalty for seq in rows], dtype=np.float32),
        np.array([seq.sampling.presence_penalty for seq in rows], dtype=np.float32),
        np.array([seq.sampling.frequency_penalty for seq in rows], dtype=np.float32),
        history,
        np.arange(len(rows), dtype=np.int32),
        np.array([min(seq.prompt_len, length) for seq, length in zip(rows, lengths, strict=True)], dtype=np.int32),
        np.array(lengths, dtype=np.int32),
    ]


def _bias_arrays(rows: Rows[Sequence]) -> list[np.ndarray]:
    """Bias' arrays in their order, empty where there is none: logit biases, and -inf for the ends of rows that are below their
    least length."""
    entries = [seq.biases() for seq in rows]
    sizes = [len(row) for row in entries]
    if not any(sizes):
        return []
    return [
        np.array([0, *accumulate(sizes)], dtype=np.int32),
        np.array([token for row in entries for token in row], dtype=np.int32),
        np.array([value for row in entries for value in row.values()], dtype=np.float32),
    ]
