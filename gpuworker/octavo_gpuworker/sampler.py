"""Sampler: the next token of every row of a batch at once. A pure function of logits, parameters, seed and position.

Order as in vLLM: penalties, bias, minimum length, then temperature, min-p, top-k, top-p; logprobs come from the raw
logits. A token is drawn as the argmax of logits plus Gumbel noise that depends on (seed, position, token) alone, so a
row's token never depends on the rows beside it, and hardly on the last bits of its logits.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_gpuworker.orders import Sampling, TokenLogprobs
from octavo_gpuworker.philox import gumbel
from octavo_gpuworker.sequence import Sequence

GREEDY_BELOW = 1e-5
"""A lower temperature is greedy (as in vLLM): logits divided by it could leave float32's range and all become infinite."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Per row: the token, or -1 where the row's logits were not finite; and the logprobs of rows that asked."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None]


def sample(logits: Tensor, rows: Rows[Sequence]) -> Sampled:
    """logits [R, V] float32 (may be overwritten) and the R sequences that they continue."""
    if not rows:
        return Sampled([], [])
    broken = ~torch.isfinite(logits.sum(dim=1))
    any_broken = bool(broken.any())
    if any_broken:
        logits = torch.where(broken[:, None], torch.zeros((), device=logits.device), logits)
    wants = [i for i, seq in enumerate(rows) if seq.sampling.logprobs >= 0]
    raw = torch.log_softmax(logits[wants], dim=1) if wants else None
    _penalize(logits, rows)
    _bias(logits, rows)
    tokens = logits.argmax(dim=1)
    drawn = [i for i, seq in enumerate(rows) if seq.sampling.temperature > GREEDY_BELOW]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        tokens[index] = _draw(logits[index], [rows[i] for i in drawn])
    chosen = tokens.tolist()
    logprobs: list[TokenLogprobs | None] = [None] * len(rows)
    if raw is not None:
        for i, item in zip(wants, _logprobs(raw, [chosen[i] for i in wants], [rows[i] for i in wants]), strict=True):
            logprobs[i] = item
    if any_broken:
        chosen = [-1 if bad else token for bad, token in zip(broken.tolist(), chosen, strict=True)]
    return Sampled(chosen, logprobs)


def _penalize(logits: Tensor, rows: Rows[Sequence]) -> None:
    """Repetition over prompt and output (CTRL, arXiv 1909.05858); presence and frequency over output (OpenAI)."""
    for i, seq in enumerate(rows):
        sampling = seq.sampling
        if not sampling.has_penalties:
            continue
        row = logits[i]
        if sampling.repetition_penalty != 1:
            seen = torch.from_numpy(np.unique(np.asarray(seq.tokens, dtype=np.int64))).to(row.device)
            values = row[seen]
            row[seen] = torch.where(
                values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
            )
        output = seq.tokens[seq.prompt_len :]
        if output and (sampling.presence_penalty or sampling.frequency_penalty):
            ids, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
            cost = sampling.presence_penalty + sampling.frequency_penalty * counts.astype(np.float32)
            row[torch.from_numpy(ids).to(row.device)] -= torch.from_numpy(cost.astype(np.float32)).to(row.device)


def _bias(logits: Tensor, rows: Rows[Sequence]) -> None:
    for i, seq in enumerate(rows):
        for token, value in seq.sampling.bias:
            logits[i, token] += value
        if seq.output_len < seq.sampling.min_tokens and seq.sampling.stop_ids:
            logits[i, list(seq.sampling.stop_ids)] = float("-inf")


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _draw(logits: Tensor, rows: Rows[Sequence]) -> Tensor:
    """logits [R, V] -> [R] int64 tokens."""
    params = [seq.sampling for seq in rows]
    scaled = logits / _column([p.temperature for p in params], logits)
    cut = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1 or p.min_p > 0]
    if cut:
        index = torch.tensor(cut, device=logits.device)
        probs = torch.softmax(scaled[index], dim=1)
        kept = _truncate(probs, [params[i] for i in cut])
        scaled[index] = scaled[index].masked_fill_(~kept, float("-inf"))
    noise = gumbel([seq.seed for seq in rows], [len(seq.tokens) for seq in rows], logits.shape[1])
    return scaled.add_(torch.from_numpy(noise).to(logits.device)).argmax(dim=1)


def _truncate(probs: Tensor, params: list[Sampling]) -> Tensor:
    """[R, V] bool: what min-p, then top-k, then top-p (nucleus, arXiv 1904.09751) keep; ties with the last kept token stay."""
    floor = probs.amax(dim=1, keepdim=True) * _column([p.min_p for p in params], probs)
    size = probs.shape[1]
    top_k = [p.top_k if 0 < p.top_k < size else size for p in params]
    ordered = probs.sort(dim=1, descending=True).values
    floor = torch.maximum(floor, ordered.gather(1, torch.tensor(top_k, device=probs.device)[:, None] - 1))
    ordered = torch.where(ordered < floor, torch.zeros((), device=probs.device), ordered)
    cumulative = ordered.double().cumsum(dim=1)
    share = cumulative[:, -1:] * _column([p.top_p for p in params], cumulative)
    within = (cumulative - ordered < share) & (ordered > 0)
    last = ordered.gather(1, (within.sum(dim=1, keepdim=True) - 1).clamp_(min=0))
    return probs >= torch.maximum(floor, last)


def _logprobs(raw: Tensor, chosen: list[int], rows: Rows[Sequence]) -> list[TokenLogprobs]:
    """raw [R, V] log probabilities -> the chosen token's and the k best of each row."""
    most = max(seq.sampling.logprobs for seq in rows)
    picked = raw.gather(1, torch.tensor(chosen, device=raw.device)[:, None]).squeeze(1).tolist()
    best = raw.topk(most, dim=1) if most else None
    values = best.values.tolist() if best else [[]] * len(rows)
    ids = best.indices.tolist() if best else [[]] * len(rows)
    found = []
    for i, seq in enumerate(rows):
        k = seq.sampling.logprobs
        found.append(TokenLogprobs(chosen[i], picked[i], ids[i][:k], values[i][:k]))
    return found
