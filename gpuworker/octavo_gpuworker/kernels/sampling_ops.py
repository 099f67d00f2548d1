"""sample: penalties, bias, grammar, temperature, min-p, top-k, top-p and the draw of a batch, from tensors alone.

The same function as `sampler.py`, whose state is lists of the host; here all of it lies on the device, so that a step
needs no host between the logits and the next step's input. Order as there (vLLM's): penalties, bias, grammar, then
temperature, min-p, top-k, top-p; log-probabilities come from the raw logits.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_gpuworker.philox import gumbel

NO_TOKEN = -1
"""The draw of a row whose logits hold a NaN or +inf, or where nothing is allowed."""


@dataclass(slots=True)
class SampleInputs:
    """How to draw one token per row; every tensor on the logits' device."""

    temperature: Tensor
    """[R] float32; 0 or less: the largest logit, without noise."""
    top_k: Tensor
    """[R] int32; 0: all."""
    top_p: Tensor
    """[R] float32 in (0, 1]; 1: all."""
    min_p: Tensor
    """[R] float32 in [0, 1)."""
    seeds: Tensor
    """[R] int64: the bits of the choice's 64-bit seed."""
    positions: Tensor
    """[R] int64: position of the token to draw."""
    max_logprobs: int = -1
    """-1: no log-probabilities; n: the chosen token's and the n best of every row."""
    penalties: Penalties | None = None
    bias: Bias | None = None
    grammar: Grammar | None = None


@dataclass(slots=True)
class Penalties:
    """Repetition over prompt and output (CTRL, arXiv 1909.05858); presence and frequency over output (OpenAI)."""

    repetition: Tensor
    """[R] float32; 1: none."""
    presence: Tensor
    """[R] float32."""
    frequency: Tensor
    """[R] float32."""
    history: Tensor
    """[S, H] int32: tokens of each slot, prompt first; what lies at `length` and behind is not read."""
    slots: Tensor
    """[R] int32: the row's slot."""
    prompt_len: Tensor
    """[S] int32."""
    length: Tensor
    """[S] int32: prompt and output together."""
    counts: Tensor
    """[R or more, V] int32, zero before and after: where the Triton form counts; the twin leaves it alone."""


@dataclass(slots=True)
class Bias:
    """Values added to single logits, as ragged rows; -inf forbids a token (an end before min_tokens)."""

    starts: Tensor
    """[R + 1] int32: row r owns entries [starts[r], starts[r + 1])."""
    tokens: Tensor
    """[N] int32; a token may occur once per row."""
    values: Tensor
    """[N] float32."""
    longest: int
    """Most entries of a row."""


@dataclass(slots=True)
class Grammar:
    """Allowed tokens as bits: token t is bit t % 32 of word t // 32."""

    allowed: Tensor
    """[G, ceil(V / 32)] int32."""
    rows: Tensor
    """[R] int32: the row's mask, or -1 where all tokens are allowed."""


@dataclass(slots=True)
class SampleOutputs:
    """What was drawn; the last three are None without log-probabilities."""

    tokens: Tensor
    """[R] int64; NO_TOKEN where the row could not be drawn."""
    logprobs: Tensor | None = None
    """[R] float32 of the drawn token."""
    top_tokens: Tensor | None = None
    """[R, n] int64, best first; of equal ones the lower id."""
    top_logprobs: Tensor | None = None
    """[R, n] float32."""


def sample_torch(logits: Tensor, inputs: SampleInputs) -> SampleOutputs:
    """logits [R, V] float32 (may be overwritten) -> the next tokens. Sorts: the oracle of the Triton form."""
    raw = logits.clone()
    if inputs.penalties is not None:
        _penalize(logits, inputs.penalties)
    if inputs.bias is not None:
        _add_bias(logits, inputs.bias)
    broken = (logits.isnan() | (logits == torch.inf)).any(dim=1)
    if inputs.grammar is not None:
        _forbid(logits, inputs.grammar)
    broken |= logits.amax(dim=1) == -torch.inf
    logits[broken] = 0.0
    tokens = _draw(logits, inputs)
    outputs = SampleOutputs(torch.where(broken, NO_TOKEN, tokens))
    if inputs.max_logprobs >= 0:
        logprobs = raw.double().log_softmax(dim=1).float()
        outputs.logprobs = logprobs.gather(1, tokens[:, None]).squeeze(1)
        order = logprobs.sort(dim=1, descending=True, stable=True)
        outputs.top_tokens = order.indices[:, : inputs.max_logprobs]
        outputs.top_logprobs = order.values[:, : inputs.max_logprobs]
    return outputs


def _penalize(logits: Tensor, penalties: Penalties) -> None:
    for row, slot in enumerate(penalties.slots.tolist()):
        length, prompt_len = int(penalties.length[slot]), int(penalties.prompt_len[slot])
        tokens = penalties.history[slot, :length].long()
        values, repetition = logits[row], penalties.repetition[row]
        seen = tokens.bincount(minlength=len(values)) > 0
        values.copy_(torch.where(seen, torch.where(values > 0, values / repetition, values * repetition), values))
        counts = tokens[prompt_len:].bincount(minlength=len(values))
        values -= torch.where(counts > 0, penalties.presence[row] + penalties.frequency[row] * counts, 0.0)


def _add_bias(logits: Tensor, bias: Bias) -> None:
    starts = bias.starts.tolist()
    for row, (start, end) in enumerate(itertools.pairwise(starts)):
        logits[row, bias.tokens[start:end].long()] += bias.values[start:end]


def _forbid(logits: Tensor, grammar: Grammar) -> None:
    vocab_size = logits.shape[1]
    for row, mask in enumerate(grammar.rows.tolist()):
        if mask >= 0:
            bits = grammar.allowed[mask][:, None] >> torch.arange(32, device=logits.device) & 1
            logits[row].masked_fill_(bits.flatten()[:vocab_size] == 0, -torch.inf)


def _draw(logits: Tensor, inputs: SampleInputs) -> Tensor:
    """logits [R, V] -> [R] int64: argmax of what min-p, top-k, top-p keep, plus Gumbel noise where the row is random."""
    random = inputs.temperature > 0
    scaled = logits / torch.where(random, inputs.temperature, 1.0)[:, None]
    scaled = torch.where(scaled < thresholds(scaled, inputs)[:, None], -torch.inf, scaled)
    seeds = inputs.seeds.cpu().numpy().view(np.uint64).tolist()
    noise = torch.from_numpy(gumbel(seeds, inputs.positions.tolist(), logits.shape[1])).to(logits.device)
    return torch.where(random[:, None], scaled + noise, logits).argmax(dim=1)


def thresholds(scaled: Tensor, inputs: SampleInputs) -> Tensor:
    """scaled [R, V] -> [R] float32: the least scaled logit that min-p, then top-k, then top-p keep; ties with it stay."""
    vocab_size = scaled.shape[1]
    ordered = scaled.sort(dim=1, descending=True).values
    mass = (ordered - ordered[:, :1]).double().exp()
    top_k = torch.where((inputs.top_k > 0) & (inputs.top_k < vocab_size), inputs.top_k, vocab_size).long()
    kept = (mass >= inputs.min_p.double()[:, None]) & (ordered >= ordered.gather(1, top_k[:, None] - 1))
    mass = torch.where(kept, mass, 0.0)
    cumulative = mass.cumsum(dim=1)
    share = cumulative[:, -1:] * inputs.top_p.double()[:, None]
    # Top-p 1 keeps what a rounded sum would cut.
    kept &= (cumulative - mass < share) | (inputs.top_p >= 1)[:, None]
    return ordered.gather(1, (kept.sum(dim=1, keepdim=True) - 1).clamp_(min=0)).squeeze(1)
