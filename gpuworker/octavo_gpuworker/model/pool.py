"""KvPool: the paged KV memory of one worker. The scheduler owns the blocks; this holds their bytes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_gpuworker.block_shape import BlockShape
from octavo_gpuworker.model.config import ModelConfig

QUANTIZED = (torch.int8, torch.float8_e4m3fn)
"""Element types that need a scale."""
NULL_BLOCK = 0
"""Takes KV writes that have no granted block; never allocated, never read as context."""


class KvPool:
    """`tensor` is [num_blocks, layers, 2 (key, value), kv_heads, block_tokens, head_dim], contiguous; under latent attention
    [num_blocks, layers, 1, 1, block_tokens, latent + rope] (ModelConfig.cache_shape).

    Block-major: all layers of a block lie together, so moving a block to another tier is one copy of `block_bytes`.
    An int8 or float8_e4m3fn pool has `scales` [num_blocks, layers, 2, kv_heads, block_tokens] float32, one per token and head,
    behind the values of the same block: `tensor` and `scales` are then views of `buffer` with gaps between blocks.
    What a block's earlier owner left behind stays: kernels must not let positions beyond a context into a product.
    """

    __slots__ = ("_bytes", "block_bytes", "block_tokens", "buffer", "device", "dtype", "num_blocks", "scales", "tensor")

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        device: str | torch.device = "cpu",
    ) -> None:
        """ValueError when there is no block beside the null block, or a block would hold no token."""
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}; at least 2 are needed, block 0 is never allocated")
        if block_tokens < 1:
            raise ValueError(f"block_tokens is {block_tokens}, expected a positive integer (8, 16 or 32)")
        halves, heads, width = config.cache_shape
        per_head = (config.layers, halves, heads, block_tokens)
        self.block_bytes = block_bytes(config, block_tokens, dtype)
        self.buffer: Tensor = torch.zeros(num_blocks, self.block_bytes, dtype=torch.uint8, device=device)
        """[num_blocks, block_bytes] uint8: what the tiers move."""
        values = config.layers * halves * heads * block_tokens * width * dtype.itemsize
        self.tensor: Tensor = self.buffer[:, :values].view(dtype).view(num_blocks, *per_head, width)
        self.scales: Tensor | None = None
        if dtype in QUANTIZED:
            self.scales = self.buffer[:, values:].view(torch.float32).view(num_blocks, *per_head)
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.dtype = dtype
        self.device = self.tensor.device
        self._bytes = self.buffer.numpy() if self.device.type == "cpu" else None

    @property
    def block_shape(self) -> BlockShape:
        """See BlockPool."""
        _, layers, halves, heads, tokens, width = self.tensor.shape
        dtype = "fp8" if self.dtype is torch.float8_e4m3fn else str(self.dtype).removeprefix("torch.")
        return BlockShape(layers, halves, heads, tokens, width, dtype)

    def read_block(self, block_id: int) -> bytes:
        """A copy of the block's bytes, `block_bytes` long. IndexError for an id outside the pool."""
        self._check(block_id)
        mapped = self._bytes
        raw = mapped[block_id] if mapped is not None else self.buffer[block_id].cpu().numpy()
        return bytes(raw.data)

    def write_block(self, block_id: int, payload: bytes | memoryview) -> None:
        """Replaces the block's bytes. IndexError for the null block or an id outside the pool; ValueError for a wrong length."""
        self._check(block_id)
        self._refuse_null(block_id)
        if len(payload) != self.block_bytes:
            raise ValueError(f"KV payload has {len(payload)} bytes, a block of this pool has {self.block_bytes}")
        source = np.frombuffer(payload, dtype=np.uint8)
        if self._bytes is not None:
            self._bytes[block_id] = source
            return
        self.buffer[block_id].copy_(torch.from_numpy(source.copy()))

    def host_array(self, block_id: int) -> NDArray[np.uint8] | None:
        """The block's own bytes, [block_bytes]; None when they lie on a device. IndexError for an id outside the pool."""
        self._check(block_id)
        return None if self._bytes is None else self._bytes[block_id]

    def copy_block(self, src: int, dst: int) -> None:
        """Copies block `src` over block `dst`, as copy-on-write does. IndexError as above."""
        self._check(src)
        self._check(dst)
        self._refuse_null(dst)
        self.buffer[dst].copy_(self.buffer[src])

    def _check(self, block_id: int) -> None:
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"block {block_id} is outside the pool of {self.num_blocks} blocks")

    def _refuse_null(self, block_id: int) -> None:
        if block_id == NULL_BLOCK:
            raise IndexError("block 0 is the null block; it is never written as a whole")


def block_bytes(config: ModelConfig, block_tokens: int, dtype: torch.dtype) -> int:
    """Bytes of one block of all layers (SmolLM2, 16 tokens, bf16: 368,640); for sizing a pool before it exists."""
    scale_bytes = torch.float32.itemsize if dtype in QUANTIZED else 0
    halves, heads, width = config.cache_shape
    return config.layers * halves * heads * block_tokens * (width * dtype.itemsize + scale_bytes)
