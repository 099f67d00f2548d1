"""AttentionPlan: a step's batch cut into groups that attend together; built once per step, used by every layer.

Sequences with one new token (decodes) attend as a padded batch, in groups of similar context so that padding stays below
twice the work; every other sequence attends alone, in tiles of queries that end at the tile's own last key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import torch
from torch import Tensor

from octavo_gpuworker.kernels.needs import capability_of
from octavo_gpuworker.kernels.paged_batch import PagedBatch, paged_batch

QUERY_TILE: Final = 128
"""Queries per tile of a prefill chunk: a causal chunk of 512 then computes 5/8 of the full square."""
SMALL_CONTEXT: Final = 256
"""Contexts up to here share one decode group: below it, launches cost more than padding."""


@dataclass(slots=True)
class DecodeGroup:
    """S' sequences with one new token each over L gathered keys."""

    rows: Tensor | slice
    """Which of the step's T rows these are; a slice where they are adjacent."""
    gather: Tensor
    """[2 * S' * kv_heads * blocks] int64: rows of the pool seen as [num_blocks * layers * 2 * kv_heads, tokens * D], layer 0."""
    mask: Tensor | None
    """[S', 1, 1, L] in the queries' dtype, 0 or -inf; None when every key is visible to every sequence."""
    count: int
    hidden: tuple[Tensor, Tensor] | None = None
    """(sequence, key) int64 of each gathered key that the mask hides: what lies there may be another owner's NaN, which a
    weight of 0 does not make 0."""


@dataclass(slots=True)
class QueryTile:
    """Queries [start, end) of the step's rows over the gathered keys [first, last) of their sequence."""

    start: int
    end: int
    first: int
    last: int
    mask: Tensor
    """[group * (end - start), last - first] in the queries' dtype, 0 or -inf: queries of one KV head, head by head."""


@dataclass(slots=True)
class PrefillGroup:
    """One sequence with several new tokens."""

    gather: Tensor
    """As DecodeGroup.gather with S' = 1."""
    tiles: list[QueryTile]


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The numbers of a pool and a model that a plan depends on."""

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    sliding_window: int | None
    dtype: torch.dtype
    """Of the queries; masks are made in it, once per step."""
    soft_cap: float = 0.0
    """Scores become cap * tanh(score / cap); 0: they do not."""
    scale: float = 0.0
    """Of the scores; 0: head_dim^-0.5."""


class AttentionPlan:
    """How one step attends. Triton kernels read `batch`; the torch twin's groups are made where they are first asked for."""

    __slots__ = ("_groups", "batch", "contexts", "new_tokens", "shape")

    def __init__(self, batch: PagedBatch, shape: PoolShape, new_tokens: Sequence[int], contexts: Sequence[int]) -> None:
        self.batch, self.shape = batch, shape
        self.new_tokens, self.contexts = new_tokens, contexts
        self._groups: tuple[list[DecodeGroup], list[PrefillGroup]] | None = None

    @property
    def decodes(self) -> list[DecodeGroup]:
        """Sequences with one new token, in groups of similar context."""
        return self._grouped()[0]

    @property
    def prefills(self) -> list[PrefillGroup]:
        """Sequences with more."""
        return self._grouped()[1]

    @property
    def tokens(self) -> int:
        """T, the step's new tokens."""
        return self.batch.tokens

    @property
    def layer_stride(self) -> int:
        """Pool rows (heads of one layer's keys or values) between one layer and the next."""
        return 2 * self.shape.kv_heads

    def _grouped(self) -> tuple[list[DecodeGroup], list[PrefillGroup]]:
        if self._groups is None:
            self._groups = _groups(self.batch.block_tables.long(), self.new_tokens, self.contexts, self.shape)
        return self._groups


def plan_attention(
    query_start: Tensor,
    context_len: Tensor,
    block_tables: Tensor,
    shape: PoolShape,
    new_tokens: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
) -> AttentionPlan:
    """The plan of one step; arguments as in StepInputs. `new_tokens` and `contexts` are the host's copy of the lengths; without
    it they are read back from the device. ValueError when a table is too short for its context.
    """
    if new_tokens is None or contexts is None:
        starts: list[int] = query_start.tolist()
        new_tokens = [end - start for start, end in pairwise(starts)]
        contexts = context_len.tolist()
    covered = block_tables.shape[1] * shape.block_tokens
    if contexts and max(contexts) > covered:
        raise ValueError(f"context_len {max(contexts)} is longer than its block table, which covers {covered} tokens")
    batch = paged_batch(
        query_start,
        context_len,
        block_tables,
        new_tokens,
        contexts,
        block_tokens=shape.block_tokens,
        scale=shape.scale or shape.head_dim**-0.5,
        window=shape.sliding_window,
        soft_cap=shape.soft_cap,
        **_device_facts(block_tables.device),
    )
    return AttentionPlan(batch, shape, new_tokens, contexts)


def _device_facts(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return {"processors": processors, "capability": capability_of(device)}


def _groups(
    tables: Tensor, new_tokens: Sequence[int], contexts: Sequence[int], shape: PoolShape
) -> tuple[list[DecodeGroup], list[PrefillGroup]]:
    starts = [0, *accumulate(new_tokens)]
    buckets: dict[int, list[int]] = {}
    prefills: list[PrefillGroup] = []
    for seq, (new, context) in enumerate(zip(new_tokens, contexts, strict=True)):
        if new == 1:
            buckets.setdefault(max(context - 1, SMALL_CONTEXT - 1).bit_length(), []).append(seq)
        elif new > 1:
            prefills.append(_prefill_group(tables[seq], starts[seq], new, context, shape))
    return [_decode_group(seqs, starts, contexts, tables, shape) for _, seqs in sorted(buckets.items())], prefills


def _first_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _gather_rows(blocks: Tensor, shape: PoolShape) -> Tensor:
    """blocks [S', B] -> pool rows of layer 0 in the order [2, S', kv_heads, B]."""
    device = blocks.device
    halves = torch.arange(2, device=device).view(2, 1, 1, 1) * shape.kv_heads
    heads = torch.arange(shape.kv_heads, device=device).view(1, 1, -1, 1)
    rows = blocks[None, :, None, :] * (shape.layers * 2 * shape.kv_heads) + halves + heads
    return rows.reshape(-1)


def _decode_group(
    seqs: list[int], starts: list[int], contexts: Sequence[int], tables: Tensor, shape: PoolShape
) -> DecodeGroup:
    size, device = shape.block_tokens, tables.device
    lows = [_first_visible(contexts[seq] - 1, shape.sliding_window) for seq in seqs]
    bases = [low // size for low in lows]
    counts = [-(-contexts[seq] // size) - base for seq, base in zip(seqs, bases, strict=True)]
    width = max(counts)
    base = torch.tensor(bases, device=device)[:, None]
    used = torch.tensor(counts, device=device)[:, None]
    column = torch.arange(width, device=device)
    # A column past a sequence's own blocks reads the null block, whatever its table holds there.
    index = (base + column).clamp_(max=tables.shape[1] - 1)
    blocks = torch.where(column < used, tables[torch.tensor(seqs, device=device)].gather(1, index), 0)
    keys = base * size + torch.arange(width * size, device=device)
    last = torch.tensor([contexts[seq] for seq in seqs], device=device)[:, None]
    visible = (keys < last) & (keys >= torch.tensor(lows, device=device)[:, None])
    mask = hidden = None
    if not all(
        low == b * size and contexts[seq] == (b + width) * size for seq, low, b in zip(seqs, lows, bases, strict=True)
    ):
        mask = _bias(visible, shape.dtype)[:, None, None, :]
        sequence, key = (~visible).nonzero(as_tuple=True)
        hidden = (sequence, key)
    rows = [starts[seq] for seq in seqs]
    adjacent = rows[-1] - rows[0] + 1 == len(rows)
    selector = slice(rows[0], rows[-1] + 1) if adjacent else torch.tensor(rows, device=device)
    return DecodeGroup(selector, _gather_rows(blocks, shape), mask, len(seqs), hidden)


def _prefill_group(table: Tensor, row: int, new: int, context: int, shape: PoolShape) -> PrefillGroup:
    size, device = shape.block_tokens, table.device
    begin = context - new
    base = _first_visible(begin, shape.sliding_window) // size
    blocks = table[None, base : -(-context // size)]
    tiles = []
    for start in range(0, new, QUERY_TILE):
        end = min(start + QUERY_TILE, new)
        first = _first_visible(begin + start, shape.sliding_window)
        last = begin + end
        queries = torch.arange(begin + start, last, device=device)[:, None]
        keys = torch.arange(first, last, device=device)
        visible = keys <= queries
        if shape.sliding_window is not None:
            visible &= keys > queries - shape.sliding_window
        mask = _bias(visible, shape.dtype).repeat(shape.q_heads // shape.kv_heads, 1)
        tiles.append(QueryTile(row + start, row + end, first - base * size, last - base * size, mask))
    return PrefillGroup(_gather_rows(blocks, shape), tiles)


def _bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
