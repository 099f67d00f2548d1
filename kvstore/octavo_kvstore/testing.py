"""Blocks for tests: content that follows from the key, so that a wrong block is seen."""

from __future__ import annotations

import hashlib
import random

import xxhash

from octavo_kvstore.block import PLAIN, Block, BlockMeta

LAYOUT = hashlib.sha256(b"layout").digest()
OTHER_LAYOUT = hashlib.sha256(b"other layout").digest()


def key_of(number: int) -> bytes:
    """The 32-byte key of test block `number`."""
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


def payload_of(key: bytes, size: int) -> bytes:
    """The only payload that `key` may ever have at this size."""
    return random.Random(key).randbytes(size)


def make_block(
    number: int, size: int = 3000, parent: int | None = None, layout: bytes = LAYOUT, meta: BlockMeta = PLAIN
) -> Block:
    """Test block `number`; the parent is another number."""
    key = key_of(number)
    payload = payload_of(key + layout, size)
    head = b"" if parent is None else key_of(parent)
    return Block(key, head, layout, xxhash.xxh3_64_intdigest(payload), payload, meta)


def is_right(block: Block) -> bool:
    """Whether a block that came back is the one that was put under its key."""
    return block.payload == payload_of(block.key + block.layout, len(block.payload)) and block.is_intact()
