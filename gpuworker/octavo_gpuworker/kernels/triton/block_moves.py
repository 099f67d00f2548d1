"""Whole blocks between the pool and a contiguous staging buffer, and from block to block (tiers, handoff, copy-on-write).

A block is `words` 8-byte words, an even number, whatever the cache's dtype is: moving it changes no bit.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_gpuworker.kernels.triton.launch import Launch, ceil_div

WORDS: Final = 1024
"""8-byte words per program: 8 KB."""


@triton.jit(do_not_specialize=["words"])
def move_blocks_kernel(target, source, target_ids, source_ids, words, WORDS: tl.constexpr, SCATTER: tl.constexpr, GATHER: tl.constexpr):  # fmt: skip
    """Row i of source (row source_ids[i] if GATHER) to row i of target (target_ids[i] if SCATTER). Grid: (n, ceil(words / WORDS))."""
    index = tl.program_id(0)
    words = tl.multiple_of(words, 2)
    origin = index.to(tl.int64)
    place = index.to(tl.int64)
    if GATHER:
        origin = tl.load(source_ids + index).to(tl.int64)
    if SCATTER:
        place = tl.load(target_ids + index).to(tl.int64)
    columns = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = columns < words
    values = tl.load(source + origin * words + columns, mask=inside)
    tl.store(target + place * words + columns, values, mask=inside)


def as_words(blocks: Tensor) -> Tensor:
    """[n, ...] contiguous -> [n, words] int64 over the same memory. ValueError when a block is no multiple of 16 bytes."""
    if not blocks.is_contiguous():
        raise ValueError("blocks must be contiguous: a pool is [num_blocks, ...] with all layers of a block together")
    row = blocks.view(blocks.shape[0], -1)
    if row.shape[1] * row.element_size() % 16:
        raise ValueError(f"a block has {row.shape[1] * row.element_size()} bytes, expected a multiple of 16")
    return row.view(torch.int64)


def move_launch(
    target: Tensor, source: Tensor, target_ids: Tensor | None, source_ids: Tensor | None, count: int
) -> Launch:
    """`count` rows of words [.., words] int64; an id list of None counts 0, 1, 2, ..."""
    words = source.shape[1]
    return Launch(
        move_blocks_kernel,
        (count, ceil_div(words, WORDS)),
        {"target": target, "source": source, "target_ids": target_ids, "source_ids": source_ids, "words": words},
        {"WORDS": WORDS, "SCATTER": target_ids is not None, "GATHER": source_ids is not None},
    )


def gather_blocks_triton(pool: Tensor, block_ids: Tensor, staging: Tensor) -> None:
    """As `gather_blocks_torch`."""
    move_launch(as_words(staging), as_words(pool), None, block_ids, block_ids.numel()).run()


def scatter_blocks_triton(staging: Tensor, block_ids: Tensor, pool: Tensor) -> None:
    """As `scatter_blocks_torch`."""
    move_launch(as_words(pool), as_words(staging), block_ids, None, block_ids.numel()).run()


def copy_blocks_triton(pool: Tensor, source_ids: Tensor, target_ids: Tensor) -> None:
    """As `copy_blocks_torch`."""
    words = as_words(pool)
    move_launch(words, words, target_ids, source_ids, source_ids.numel()).run()
