"""Draw: one token per row of temperature-scaled logits, as the argmax of logit + Gumbel noise over what truncation keeps.

Truncation as vLLM orders it: min-p, then top-k, then top-p (nucleus, arXiv 1904.09751) over what is left; ties with the
last kept token stay. A row's token depends on nothing but its own logits, parameters, seed and position, so it is the
same in any batch. Truncated rows look at their CANDIDATES best tokens first; one whose cut lies beyond them is sorted whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_gpuworker.masses import ONE, exp_exact, masses
from octavo_gpuworker.orders import Sampling
from octavo_gpuworker.philox import gumbel, gumbel_at, rough_gumbel

CANDIDATES = 256
"""16 rows of 49,152 on one core: topk(256) 1.8 ms, topk(1024) 5.4 ms, a full torch sort 47 ms."""

ROUNDING = 0.99
MARGIN = 1e-3
"""Of scores by the rough logarithm: a hundred times its error."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What the R rows of one draw need beside their logits."""

    params: Rows[Sampling]
    seeds: Rows[int]
    positions: Rows[int]

    def pick(self, rows: Rows[int]) -> Draws:
        """Some of the rows."""
        return Draws([self.params[i] for i in rows], [self.seeds[i] for i in rows], [self.positions[i] for i in rows])


def draw(scaled: Tensor, draws: Draws) -> Tensor:
    """scaled [R, V] float32 (may be overwritten) and what its R rows need -> [R] int64 token ids."""
    cut = [i for i, p in enumerate(draws.params) if p.top_k > 0 or p.top_p < 1 or p.min_p > 0]
    if not cut:
        return _draw_all(scaled, draws)
    if len(cut) == len(draws.params):
        return _draw_cut(scaled, draws)
    whole = sorted(set(range(len(draws.params))) - set(cut))
    tokens = torch.empty(len(draws.params), dtype=torch.int64, device=scaled.device)
    tokens[whole] = _draw_all(scaled[whole], draws.pick(whole))
    tokens[cut] = _draw_cut(scaled[cut], draws.pick(cut))
    return tokens


def _draw_all(scaled: Tensor, draws: Draws) -> Tensor:
    if scaled.device.type != "cpu":
        full = torch.from_numpy(gumbel(draws.seeds, draws.positions, scaled.shape[1])).to(scaled.device)
        return scaled.add_(full).argmax(dim=1)
    logits, vocab = scaled.numpy(), scaled.shape[1]
    scores = rough_gumbel(draws.seeds, draws.positions, vocab)
    scores += logits
    tokens = np.zeros(len(logits), np.int64)
    for row, top in enumerate(scores.max(axis=1).tolist()):
        if math.isfinite(top):  # the others are marked by the caller
            ids = np.flatnonzero(scores[row] >= top - MARGIN * (1 + abs(top)))
            noise = gumbel_at(draws.seeds[row : row + 1], draws.positions[row : row + 1], ids[None], vocab)
            tokens[row] = ids[(logits[row, ids] + noise[0]).argmax()]
    return torch.from_numpy(tokens)


def _draw_cut(scaled: Tensor, draws: Draws) -> Tensor:
    vocab = scaled.shape[1]
    best, ids = scaled.topk(min(CANDIDATES, vocab), dim=1)
    total = _total(scaled, best, draws.params)
    floor, whole = cut_floor(best, total, draws.params, vocab)
    if ids.device.type == "cpu":
        noise = torch.from_numpy(gumbel_at(draws.seeds, draws.positions, ids.numpy(), vocab))
    else:  # asking for the ids would wait for the device
        noise = torch.from_numpy(gumbel(draws.seeds, draws.positions, vocab)).to(ids.device).gather(1, ids)
    scores = noise.add_(best).masked_fill_(best < floor, float("-inf"))
    # of equal scores the lower id, as an argmax over the vocabulary would have it
    tokens = ids.masked_fill(scores < scores.amax(dim=1, keepdim=True), vocab).amin(dim=1)
    rest = (~whole).nonzero().squeeze(1)
    if len(rest):
        left = scaled[rest]
        rows = draws.pick(rest.tolist())
        floor = _floor_of_all(left, total[rest], rows.params)
        tokens[rest] = _draw_all(left.masked_fill_(left < floor, float("-inf")), rows)
    return tokens


def _total(scaled: Tensor, best: Tensor, params: Rows[Sampling]) -> Tensor:
    """[R] int64: the mass of the whole vocabulary; zeros where no row needs it."""
    if all(0 < p.top_k < scaled.shape[1] or p.min_p > 0 for p in params):
        return torch.zeros(len(params), dtype=torch.int64, device=best.device)
    return masses(scaled - best[:, :1]).sum(dim=1)


def _floor_of_all(scaled: Tensor, total: Tensor, params: Rows[Sampling]) -> Tensor:
    """`cut_floor` of rows whose cut lies beyond the candidates, [R, 1]."""
    vocab = scaled.shape[1]
    if scaled.device.type != "cpu":
        return cut_floor(scaled.sort(dim=1, descending=True).values, total, params, vocab)[0]
    floors = [
        cut_floor(_possible(row.numpy(), mass, p), total[i : i + 1], [p], vocab)[0]
        for i, (row, mass, p) in enumerate(zip(scaled, total.tolist(), params, strict=True))
    ]
    return torch.cat(floors)


def _possible(row: NDArray[np.float32], total: int, params: Sampling) -> Tensor:
    """[1, K] descending: the logits of a row that truncation could keep, so that a few thousand are sorted and not all.

    Tokens of less than (1 - top_p) / V together have less than 1 - top_p: the nucleus is whole before it needs them.
    """
    if not 0 < params.top_k < len(row):
        least = params.min_p if params.min_p > 0 else (1 - params.top_p) * (total / ONE) / len(row)
        possible = row[np.exp(row - row.max()) >= ROUNDING * least]
        row = possible if len(possible) else row  # a row that is not finite compares with nothing
    return -torch.from_numpy(np.sort(-row))[None]


def cut_floor(best: Tensor, total: Tensor, params: Rows[Sampling], vocab: int) -> tuple[Tensor, Tensor]:
    """The least logit that stays, per row [R, 1], and whether the `best` values (descending, [R, K]) were enough to tell.

    `total` [R] int64 is the mass of the whole vocabulary.
    """
    device, width = best.device, best.shape[1]
    top_k = torch.tensor([p.top_k if p.top_k > 0 else vocab for p in params], device=device)[:, None]
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)[:, None]
    min_p = torch.tensor([p.min_p for p in params], dtype=torch.float64, device=device)[:, None]
    shifted = best - best[:, :1]
    mass = masses(shifted)
    last = best.gather(1, top_k.clamp(max=width) - 1)
    kept = (exp_exact(shifted).double() >= min_p) & (best >= last)
    limited = (min_p > 0) | (top_k < vocab)
    whole = torch.where(limited, torch.where(kept, mass, 0).sum(dim=1, keepdim=True), total[:, None])
    known = ~limited | ~kept[:, -1:]
    # Top-p 1 keeps what has no mass left.
    kept &= ((mass.cumsum(dim=1) - mass).double() < top_p * whole.double()) | (top_p >= 1)
    floor = best.gather(1, kept.sum(dim=1, keepdim=True).clamp(min=1) - 1)
    if width == vocab:
        return floor, torch.ones(len(params), dtype=torch.bool, device=device)
    # equal values may go on beyond the candidates, so the floor must lie above the last of them
    return floor, (known & (floor > best[:, -1:])).squeeze(1)
