"""Blending: KV of chunks that were computed apart, put one behind the other (CacheBlend: Yao et al., EuroSys 2025, arXiv 2405.16444).

Keys are rotated on to their new positions. What is still wrong is that a chunk's tokens never saw the chunks before theirs;
that matters for few of them. The first layer is computed for all tokens; in the second their keys and values are held against
the reused ones, and only the share that deviates most is computed again there and in every layer above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_gpuworker.blending.dense import DenseLayers, LayerKv
from octavo_gpuworker.blending.fit import SELECTED_AT


@dataclass(frozen=True, slots=True)
class Chunk:
    """Token ids and their KV, computed with nothing before them; one LayerKv per layer."""

    ids: tuple[int, ...]
    layers: tuple[LayerKv, ...]


@dataclass(frozen=True, slots=True)
class Blended:
    """Logits [R, vocab] of the last R positions, and what it took: `computed` token-layers out of `all`."""

    logits: Tensor
    chosen: tuple[int, ...]
    """Positions of reused tokens that were computed again."""
    computed: int
    all: int


class Blender:
    """Prefills and blends with one model; keeps nothing between calls."""

    def __init__(self, layers: DenseLayers) -> None:
        self._dense = layers
        self._count = layers.config.layers

    @torch.inference_mode()
    def chunk(self, ids: Sequence[int]) -> Chunk:
        """The KV of a chunk by itself, at positions 0, 1, ..."""
        dense, positions = self._dense, torch.arange(len(ids))
        hidden = dense.embed(torch.tensor(ids))
        kept: list[LayerKv] = []
        for index in range(self._count):
            queries, kv = dense.qkv(index, hidden, positions)
            kept.append(kv)
            hidden = dense.after(index, dense.attend(queries, positions, kv), hidden)
        return Chunk(tuple(ids), tuple(kept))

    @torch.inference_mode()
    def full(self, ids: Sequence[int], rows: int) -> Tensor:
        """Logits of the last `rows` positions of an ordinary prefill."""
        dense, positions = self._dense, torch.arange(len(ids))
        hidden = dense.embed(torch.tensor(ids))
        for index in range(self._count):
            queries, kv = dense.qkv(index, hidden, positions)
            hidden = dense.after(index, dense.attend(queries, positions, kv), hidden)
        return dense.logits(hidden[len(ids) - rows :])

    @torch.inference_mode()
    def blend(
        self, chunks: Sequence[Chunk], fresh: Sequence[int], ratio: float, rows: int, rotate: bool = True
    ) -> Blended:
        """The chunks one behind the other, then `fresh` ids, which are always computed; logits of the last `rows` of those.

        `ratio` 0: nothing of the chunks again above the second layer; 1: everything behind the first chunk, which stands where
        it stood alone, so this is an ordinary prefill.
        `rotate` False leaves keys at their old positions, to show what that costs. ValueError for a ratio out of [0, 1].
        """
        if not 0 <= ratio <= 1:
            raise ValueError(f"ratio is {ratio}; it must lie in [0, 1]")
        dense = self._dense
        reused = sum(len(chunk.ids) for chunk in chunks)
        moved_from = len(chunks[0].ids) if chunks else 0
        ids = [token for chunk in chunks for token in chunk.ids] + list(fresh)
        positions = torch.arange(len(ids))
        hidden, at = dense.embed(torch.tensor(ids)), positions
        computed = 0
        for index in range(self._count):
            queries, kv = dense.qkv(index, hidden, at)
            computed += len(at)
            if index >= SELECTED_AT:
                held = self._held(chunks, index, kv, reused, rotate)
                if index == SELECTED_AT:  # this layer's own KV is there for all tokens, and exact
                    at = _choose(held, kv, moved_from, reused, ratio, len(ids))
                    queries, hidden = queries[at], hidden[at]
                else:
                    kv = _replaced(held, kv, at, len(ids))
            hidden = dense.after(index, dense.attend(queries, at, kv), hidden)
        chosen = tuple(int(position) for position in at if position < reused) if self._count > SELECTED_AT else ()
        return Blended(dense.logits(hidden[len(hidden) - rows :]), chosen, computed, self._count * len(ids))

    def _held(self, chunks: Sequence[Chunk], index: int, like: LayerKv, reused: int, rotate: bool) -> LayerKv:
        """The chunks' KV of one layer at their places in the prompt."""
        keys, values, start = [like.keys[:0]], [like.values[:0]], 0
        for chunk in chunks:
            kv = chunk.layers[index]
            keys.append(self._dense.moved(kv.keys, start) if rotate else kv.keys)
            values.append(kv.values)
            start += len(chunk.ids)
        return LayerKv(torch.cat(keys), torch.cat(values))


def _choose(held: LayerKv, fresh: LayerKv, first: int, reused: int, ratio: float, tokens: int) -> Tensor:
    """Positions to go on with: the share of the moved ones [first, reused) that deviates most, and all that are new; in order."""
    moved = (fresh.keys[first:reused] - held.keys[first:]).float().square().sum((1, 2))
    moved += (fresh.values[first:reused] - held.values[first:]).float().square().sum((1, 2))
    worst = moved.topk(math.ceil(ratio * (reused - first))).indices + first
    return torch.cat((worst.sort().values, torch.arange(reused, tokens)))


def _replaced(held: LayerKv, fresh: LayerKv, at: Tensor, tokens: int) -> LayerKv:
    """The held KV with the computed positions in place."""
    keys = torch.empty(tokens, *held.keys.shape[1:], dtype=held.keys.dtype)
    values = torch.empty_like(keys)
    keys[: len(held.keys)], values[: len(held.values)] = held.keys, held.values
    keys[at], values[at] = fresh.keys, fresh.values
    return LayerKv(keys, values)
