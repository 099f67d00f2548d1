"""Sizes of a worker that the manifest, the model and the pool decide together; the same for every backend."""

from __future__ import annotations

from octavo.errors import OctavoError
from octavo.manifest import Manifest

from octavo_gpuworker.backends.blocks import BlockPool


def pool_blocks(manifest: Manifest, block_bytes: int) -> int:
    """Blocks of the pool, the null block included. Raises OctavoError when it cannot hold a sequence of two blocks."""
    engine = manifest.engine
    num_blocks = engine.kv_num_blocks or engine.kv_pool_bytes // block_bytes
    if num_blocks < 3:
        raise OctavoError(
            f"the KV pool would have {num_blocks} blocks of {block_bytes} bytes; raise engine.kv_pool_bytes or engine.kv_num_blocks to 3 blocks at least"
        )
    return num_blocks


def model_len(manifest: Manifest, trained: int, pool: BlockPool) -> int:
    """Longest prompt + output: what the manifest, the model's `trained` positions and the pool allow.

    Raises OctavoError when the manifest asks for more than the model has.
    """
    asked = manifest.engine.max_model_len
    if asked > trained:
        raise OctavoError(
            f"engine.max_model_len {asked} is beyond the {trained} positions of the model; give at most {trained}"
        )
    return min(asked or trained, (pool.num_blocks - 1) * pool.block_tokens)
