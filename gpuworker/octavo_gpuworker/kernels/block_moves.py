"""gather_blocks, scatter_blocks, copy_blocks: whole KV blocks between the pool and a contiguous staging buffer, or in the pool."""

from __future__ import annotations

from torch import Tensor


def gather_blocks_torch(pool: Tensor, block_ids: Tensor, staging: Tensor) -> None:
    """staging[i] = pool[block_ids[i]]; pool [num_blocks, ...] contiguous, block_ids [n] int64, staging [>= n, ...] contiguous."""
    staging[: block_ids.numel()] = pool[block_ids]


def scatter_blocks_torch(staging: Tensor, block_ids: Tensor, pool: Tensor) -> None:
    """pool[block_ids[i]] = staging[i]; ids are distinct, shapes as `gather_blocks_torch`."""
    pool[block_ids] = staging[: block_ids.numel()]


def copy_blocks_torch(pool: Tensor, source_ids: Tensor, target_ids: Tensor) -> None:
    """pool[target_ids[i]] = pool[source_ids[i]] [n] int64; no block is both a source and a target."""
    pool[target_ids] = pool[source_ids]
