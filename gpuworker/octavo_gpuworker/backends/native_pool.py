"""NativePool: the KV pool in plain memory, with the very bytes of model/pool.py; no torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.block_shape import BlockShape

NULL_BLOCK = 0


class NativePool:
    """A BlockPool over a uint8 array [num_blocks, block_bytes]; memory is taken as blocks are written."""

    __slots__ = ("array", "block_bytes", "block_shape", "block_tokens", "num_blocks")

    def __init__(self, array: NDArray[np.uint8], block_tokens: int, block_shape: BlockShape | None = None) -> None:
        self.array = array
        self.block_shape = block_shape
        self.num_blocks, self.block_bytes = array.shape
        self.block_tokens = block_tokens

    def read_block(self, block_id: int) -> bytes:
        """See BlockPool."""
        self._check(block_id)
        return bytes(self.array[block_id].data)

    def write_block(self, block_id: int, payload: bytes | memoryview) -> None:
        """See BlockPool."""
        self._check_written(block_id)
        if len(payload) != self.block_bytes:
            raise ValueError(f"KV payload has {len(payload)} bytes, a block of this pool has {self.block_bytes}")
        self.array[block_id] = np.frombuffer(payload, dtype=np.uint8)

    def host_array(self, block_id: int) -> NDArray[np.uint8]:
        """See BlockPool."""
        self._check(block_id)
        block: NDArray[np.uint8] = self.array[block_id]
        return block

    def copy_block(self, src: int, dst: int) -> None:
        """See BlockPool."""
        self._check(src)
        self._check_written(dst)
        self.array[dst] = self.array[src]

    def _check(self, block_id: int) -> None:
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"block {block_id} is outside the pool of {self.num_blocks} blocks")

    def _check_written(self, block_id: int) -> None:
        self._check(block_id)
        if block_id == NULL_BLOCK:
            raise IndexError("block 0 is the null block; it is never written as a whole")
