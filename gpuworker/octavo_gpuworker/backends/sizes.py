"""Sizes of a worker that the manifest, the model and the pool decide together; the same for every backend."""

from __future__ import annotations

from octavo.manifest import Manifest, ManifestError

from octavo_gpuworker.backends.blocks import BlockPool


def pool_blocks(manifest: Manifest, block_bytes: int) -> int:
    """Blocks of the pool, the null block included. Raises ManifestError when it cannot hold a sequence of two blocks."""
    engine = manifest.engine
    num_blocks = engine.kv_num_blocks or engine.kv_pool_bytes // block_bytes
    if num_blocks < 3:
        field = "engine.kv_num_blocks" if engine.kv_num_blocks else "engine.kv_pool_bytes"
        least = 3 if engine.kv_num_blocks else 3 * block_bytes
        raise ManifestError(
            f"{field}: the KV pool would have {num_blocks} blocks of {block_bytes} bytes; give at least {least}",
            field=field,
        )
    return num_blocks


def model_len(manifest: Manifest, trained: int, pool: BlockPool) -> int:
    """Longest prompt + output: what the manifest, the model's `trained` positions and the pool allow.

    Raises ManifestError when the manifest asks for more than the model has.
    """
    asked = manifest.engine.max_model_len
    if asked > trained:
        raise ManifestError(
            f"engine.max_model_len: {asked} is beyond the {trained} positions of the model; give at most {trained}",
            field="engine.max_model_len",
        )
    return min(asked or trained, (pool.num_blocks - 1) * pool.block_tokens)
