"""BlockPool: the KV pool as the engine and the transfers see it, whatever library owns its memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.block_shape import BlockShape


class BlockPool(Protocol):
    """`num_blocks` blocks of `block_bytes` bytes each, `block_tokens` positions of all layers; block 0 is never granted.

    Block-major (model/pool.py), the same bytes in every backend, so that tiers and other workers can share them.
    """

    @property
    def num_blocks(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def block_shape(self) -> BlockShape | None:
        """None: only whoever wrote the blocks knows; a kvstore then keeps them as they are."""

    def read_block(self, block_id: int) -> bytes:
        """A copy of the block's bytes; may be called from any thread. IndexError outside the pool."""

    def write_block(self, block_id: int, payload: bytes | memoryview) -> None:
        """Replaces the block's bytes. IndexError for block 0 or outside the pool; ValueError for a wrong length."""

    def host_array(self, block_id: int) -> NDArray[np.uint8] | None:
        """The block's own bytes, [block_bytes], when the pool lies in this process's memory; None on a device.

        Who writes to them holds the block (a transfer does): no step touches it then. IndexError outside the pool.
        """

    def copy_block(self, src: int, dst: int) -> None:
        """Copies block `src` over block `dst`. IndexError as above."""
