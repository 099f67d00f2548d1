"""Sampler: the next token of every row of a batch at once. A pure function of logits, parameters, seed and position.

Order as in vLLM: penalties, bias, minimum length, then temperature, min-p, top-k, top-p; logprobs come from the raw
logits. A token is drawn as the argmax of logits plus Gumbel noise that depends on (seed, position, token) alone, so a
row's token never depends on the rows beside it, and hardly on the last bits of its logits.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import torch
from torch import Tensor

from octavo_gpuworker.draw import Draws, draw
from octavo_gpuworker.masses import log_norms
from octavo_gpuworker.orders import TokenLogprobs
from octavo_gpuworker.sampled import Sampled
from octavo_gpuworker.sequence import Sequence

GREEDY_BELOW = 1e-5
"""A lower temperature is greedy (as in vLLM): logits divided by it could leave float32's range and all become infinite."""


@torch.inference_mode()
def sample(logits: Tensor, rows: Rows[Sequence]) -> Sampled:
    """logits [R, V] float32 (may be overwritten) and the R sequences that they continue. One wait for the device at the end.

    A token is -1 where the row's logits are not finite, edits took one to NaN or +inf, or every token is forbidden.
    """
    if not rows:
        return Sampled([], [])
    broken = ~torch.isfinite(logits.sum(dim=1))
    wants = [i for i, seq in enumerate(rows) if seq.sampling.logprobs >= 0]
    raw = logits[wants].clone() if wants else None
    for i, seq in enumerate(rows):
        if seq.sampling.alters_logits:
            _alter(logits[i], seq)
            # beyond float32's range, or every token forbidden; -inf alone is a token that is forbidden
            broken[i] |= ~torch.isfinite(logits[i].amax())
    tokens = _choose(logits, rows)
    logprobs: list[TokenLogprobs | None] = [None] * len(rows)
    chosen = torch.where(broken, -1, tokens).tolist()
    if raw is not None:
        whole = [at for at, i in enumerate(wants) if chosen[i] >= 0]
        kept = [wants[at] for at in whole]
        for i, item in zip(kept, _logprobs(raw[whole], tokens[kept], [rows[i] for i in kept]), strict=True):
            logprobs[i] = item
    return Sampled(chosen, logprobs)


def _choose(logits: Tensor, rows: Rows[Sequence]) -> Tensor:
    """[R] int64: greedy rows take their best token, the others draw."""
    drawn = [i for i, seq in enumerate(rows) if seq.sampling.temperature > GREEDY_BELOW]
    if not drawn:
        return logits.argmax(dim=1)
    params = [rows[i].sampling for i in drawn]
    draws = Draws(params, [rows[i].seed for i in drawn], [len(rows[i].tokens) for i in drawn])
    temperatures = torch.tensor([p.temperature for p in params], dtype=logits.dtype, device=logits.device)
    if len(drawn) == len(rows):
        return draw(logits / temperatures[:, None], draws)
    tokens = logits.argmax(dim=1)
    tokens[drawn] = draw(logits[drawn] / temperatures[:, None], draws)
    return tokens


def _alter(row: Tensor, seq: Sequence) -> None:
    """Penalties, bias and minimum length of one row [V], in place."""
    sampling = seq.sampling
    if sampling.has_penalties:
        _penalize(row, seq)
    if sampling.bias:
        ids, values = zip(*sampling.bias, strict=True)
        row.index_add_(
            0, torch.tensor(ids, device=row.device), torch.tensor(values, dtype=row.dtype, device=row.device)
        )
    if sampling.stop_ids and seq.output_len < sampling.min_tokens:
        row[list(sampling.stop_ids)] = float("-inf")


def _penalize(row: Tensor, seq: Sequence) -> None:
    """Repetition over prompt and output (CTRL, arXiv 1909.05858); presence and frequency over output (OpenAI)."""
    sampling, counts = seq.sampling, seq.token_counts()
    if sampling.repetition_penalty != 1:
        seen = torch.from_numpy(np.fromiter(counts.seen, np.int64, len(counts.seen))).to(row.device)
        values, penalty = row[seen], sampling.repetition_penalty
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if counts.output and (sampling.presence_penalty or sampling.frequency_penalty):
        size = len(counts.output)
        ids = np.fromiter(counts.output, np.int64, size)
        times = np.fromiter(counts.output.values(), np.float32, size)
        cost = sampling.presence_penalty + sampling.frequency_penalty * times
        row[torch.from_numpy(ids).to(row.device)] -= torch.from_numpy(cost.astype(np.float32)).to(row.device)


def _logprobs(raw: Tensor, chosen: Tensor, rows: Rows[Sequence]) -> list[TokenLogprobs]:
    """raw [R, V] logits and chosen [R] -> log-probabilities of the chosen token and the k best of each row."""
    if not rows:
        return []
    vocab = raw.shape[1]
    most = min(max(seq.sampling.logprobs for seq in rows), vocab)
    shifts, norms = raw.amax(dim=1).tolist(), log_norms(raw)
    picked, tokens = raw.gather(1, chosen[:, None]).squeeze(1).tolist(), chosen.tolist()
    best = raw.topk(min(most + 1, vocab), dim=1)
    values, ids = best.values.cpu().numpy(), best.indices.cpu().numpy()
    found = []
    for i, seq in enumerate(rows):
        k = min(seq.sampling.logprobs, vocab)
        row_values, row_ids = values[i], ids[i]
        if 0 < k < vocab and row_values[k] == row_values[k - 1]:  # equal ones go on beyond the k best: all must be seen
            row_values = raw[i].cpu().numpy()
            row_ids = np.arange(vocab)
        order = np.lexsort((row_ids, -row_values))[:k]
        probabilities = (row_values[order].astype(np.float64) - shifts[i] - norms[i]).astype(np.float32)
        own = float(np.float32(picked[i] - shifts[i] - norms[i]))
        found.append(TokenLogprobs(tokens[i], own, row_ids[order].tolist(), probabilities.tolist()))
    return found
