"""Edits of single logits in place: penalties from each slot's token history, and biases. Work grows with the history, not
with the vocabulary: tokens are counted into a workspace of zeros, and whoever takes a count applies it and leaves zero.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from octavo_gpuworker.kernels.sampling_ops import Bias, Penalties
from octavo_gpuworker.kernels.triton.launch import Launch, ceil_div

ENTRIES: Final = 1024
"""History tokens, or biases, per program."""
IN_PROMPT: tl.constexpr = tl.constexpr(1 << 30)
"""Bit of a count that says that the prompt holds the token; the bits below count the output."""


@triton.jit(do_not_specialize=["stride_counts", "stride_history"])
def sample_count_kernel(
    counts, history, slots, prompt_len, length, stride_counts, stride_history, ENTRIES: tl.constexpr
):
    """counts[row, token] of every token of the row's history. Grid: (R, ceil(H / ENTRIES))."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    end = tl.load(length + slot)
    entry = tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
    prompt = entry < tl.load(prompt_len + slot)
    token = tl.load(history + slot * stride_history + entry, mask=entry < end, other=0)
    place = counts + row * stride_counts + token
    one = tl.full([ENTRIES], 1, tl.int32)
    tl.atomic_or(place, one * IN_PROMPT, mask=(entry < end) & prompt)
    tl.atomic_add(place, one, mask=(entry < end) & (entry >= tl.load(prompt_len + slot)))


@triton.jit(do_not_specialize=["stride_logits", "stride_counts", "stride_history"])
def sample_penalize_kernel(
    logits,
    counts,
    history,
    slots,
    length,
    repetition,
    presence,
    frequency,
    stride_logits,
    stride_counts,
    stride_history,
    ENTRIES: tl.constexpr,
):
    """Takes each count once, penalises its logit, leaves zero. Grid as sample_count."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    end = tl.load(length + slot)
    entry = tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
    token = tl.load(history + slot * stride_history + entry, mask=entry < end, other=0)
    none = tl.full([ENTRIES], 0, tl.int32)
    count = tl.atomic_xchg(counts + row * stride_counts + token, none, mask=entry < end)
    # Of the entries that hold one token, exactly one sees its count.
    mine = (entry < end) & (count != 0)
    output = count & (IN_PROMPT - 1)
    place = logits + row * stride_logits + token
    value = tl.load(place, mask=mine, other=0.0)
    factor = tl.load(repetition + row)
    value = tl.where(value > 0, tl.div_rn(value, none.to(tl.float32) + factor), value * factor)
    cost = tl.load(presence + row) + tl.load(frequency + row) * output.to(tl.float32)
    tl.store(place, tl.where(output > 0, value - cost, value), mask=mine)


@triton.jit(do_not_specialize=["stride_logits"])
def sample_bias_kernel(logits, starts, tokens, values, stride_logits, ENTRIES: tl.constexpr):
    """logits[row, tokens[i]] += values[i]. Grid: (R, ceil(longest / ENTRIES))."""
    row = tl.program_id(0).to(tl.int64)
    end = tl.load(starts + row + 1)
    entry = tl.load(starts + row) + tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
    inside = entry < end
    place = logits + row * stride_logits + tl.load(tokens + entry, mask=inside, other=0)
    value = tl.load(place, mask=inside, other=0.0) + tl.load(values + entry, mask=inside, other=0.0)
    tl.store(place, value, mask=inside)


def penalty_launches(logits: Tensor, penalties: Penalties) -> list[Launch]:
    """Count, then apply; penalties.counts is zero again afterwards."""
    grid = (logits.shape[0], ceil_div(penalties.history.shape[1], ENTRIES))
    shared = {
        "counts": penalties.counts,
        "history": penalties.history,
        "slots": penalties.slots,
        "length": penalties.length,
        "stride_counts": penalties.counts.stride(0),
        "stride_history": penalties.history.stride(0),
    }
    apply = {
        "logits": logits,
        "repetition": penalties.repetition,
        "presence": penalties.presence,
        "frequency": penalties.frequency,
        "stride_logits": logits.stride(0),
    }
    return [
        Launch(sample_count_kernel, grid, {**shared, "prompt_len": penalties.prompt_len}, {"ENTRIES": ENTRIES}),
        Launch(sample_penalize_kernel, grid, {**shared, **apply}, {"ENTRIES": ENTRIES}),
    ]


def bias_launch(logits: Tensor, bias: Bias) -> Launch:
    """Adds the ragged biases to logits [R, V]."""
    return Launch(
        sample_bias_kernel,
        (logits.shape[0], ceil_div(bias.longest, ENTRIES)),
        {
            "logits": logits,
            "starts": bias.starts,
            "tokens": bias.tokens,
            "values": bias.values,
            "stride_logits": logits.stride(0),
        },
        {"ENTRIES": ENTRIES},
    )
