"""KvPool: layout, bytes in and out, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.pool import KvPool, block_bytes

SMOLLM2 = ModelConfig("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e-5, 1e5)
SMALL = ModelConfig("llama", 3, 64, 4, 2, 16, 96, 211, 512, 1e-5, 1e4)


def test_smollm2_block_is_368640_bytes() -> None:
    assert block_bytes(SMOLLM2, 16, torch.bfloat16) == 368_640
    assert block_bytes(SMOLLM2, 8, torch.bfloat16) * 4 == block_bytes(SMOLLM2, 32, torch.bfloat16)


@pytest.mark.parametrize("block_tokens", [8, 16, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_block_is_one_run_of_bytes(block_tokens, dtype) -> None:
    pool = KvPool(SMALL, 5, block_tokens, dtype)
    assert pool.tensor.shape == (5, 3, 2, 2, block_tokens, 16)
    assert pool.tensor[2].is_contiguous()
    assert pool.block_bytes == pool.tensor[2].numel() * dtype.itemsize
    pool.tensor.copy_(torch.randn(pool.tensor.shape))
    payload = pool.read_block(2)
    assert len(payload) == pool.block_bytes
    assert torch.frombuffer(bytearray(payload), dtype=dtype).equal(pool.tensor[2].reshape(-1))


def test_write_and_copy_touch_one_block() -> None:
    pool = KvPool(SMALL, 6, 16, torch.bfloat16)
    pool.tensor.copy_(torch.randn(pool.tensor.shape))
    before = pool.tensor.clone()
    pool.write_block(3, memoryview(pool.read_block(1)))
    pool.copy_block(2, 5)
    assert pool.tensor[3].equal(before[1])
    assert pool.tensor[5].equal(before[2])
    for untouched in (0, 1, 2, 4):
        assert pool.tensor[untouched].equal(before[untouched])


def test_a_payload_is_a_copy() -> None:
    pool = KvPool(SMALL, 3, 8, torch.float32)
    payload = pool.read_block(1)
    pool.tensor[1].fill_(1.0)
    assert payload == bytes(pool.block_bytes)


def test_refusals() -> None:
    pool = KvPool(SMALL, 3, 16, torch.bfloat16)
    with pytest.raises(ValueError, match="has 10 bytes, a block of this pool has"):
        pool.write_block(1, b"0123456789")
    for call in (lambda: pool.write_block(0, bytes(pool.block_bytes)), lambda: pool.copy_block(1, 0)):
        with pytest.raises(IndexError, match="null block"):
            call()
    for call in (lambda: pool.read_block(3), lambda: pool.read_block(-1), lambda: pool.copy_block(1, 9)):
        with pytest.raises(IndexError, match="outside the pool of 3"):
            call()
    with pytest.raises(ValueError, match="num_blocks is 1"):
        KvPool(SMALL, 1, 16)
    with pytest.raises(ValueError, match="block_tokens is 0"):
        KvPool(SMALL, 4, 0)
