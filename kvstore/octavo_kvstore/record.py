"""The bytes of one block in the NVMe tier: a fixed header of 160 bytes, then the payload.

    offset  bytes  field
         0      4  magic "OCTK"
         4      2  format version, u16 little-endian
         6      2  flags, u16: 1 pinned, 2 lossy; bits 8 to 10: the tiers where it may lie, none for all
         8      8  payload length, u64
        16      8  xxh3-64 of the payload (the worker's checksum)
        24      8  use number at the time of writing, u64: the order of eviction after a restart
        32     32  layout fingerprint (dtype, heads, block size, rope, quantization, kernel layout)
        64     32  parent key; zeros: head of a chain
        96     16  namespace; zeros: none
       112      8  unreadable from this unix second on, u64; 0: never
       120      8  unix second of the first put, u64
       128      4  priority, i32
       132      4  predicted time to compute it again, us, u32
       136     16  zeros
       152      8  xxh3-64 of the block's key and bytes 0..151 of the header

The header's checksum covers the key, so a record that an index points to by mistake is never served.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from octavo_kvstore.block import KEY_BYTES, NAMESPACE_BYTES, Block, BlockMeta

FORMAT_VERSION = 2
HEADER_BYTES = 160
_MAGIC = b"OCTK"
_PINNED, _LOSSY = 1, 2
_TIERS_SHIFT = 8
_TIERS = 7 << _TIERS_SHIFT
_FIELDS = struct.Struct("<4sHHQQQ32s32s16sQQiI16x")
_CHECK = struct.Struct("<Q")
_NO_PARENT = bytes(KEY_BYTES)
_NO_NAMESPACE = bytes(NAMESPACE_BYTES)


@dataclass(frozen=True, slots=True)
class Header:
    """A header whose own checksum was right."""

    length: int
    checksum: int
    use_number: int
    layout: bytes
    parent: bytes
    meta: BlockMeta


def encode_header(block: Block, use_number: int) -> bytes:
    """The 160 bytes that stand before the block's payload."""
    meta = block.meta
    fields = _FIELDS.pack(
        _MAGIC,
        FORMAT_VERSION,
        (_PINNED if meta.pinned else 0) | (_LOSSY if meta.lossy else 0) | meta.tiers << _TIERS_SHIFT,
        len(block.payload),
        block.checksum,
        use_number,
        block.layout,
        block.parent or _NO_PARENT,
        meta.namespace or _NO_NAMESPACE,
        meta.expires_s,
        meta.stored_s,
        meta.priority,
        min(meta.recompute_us, 0xFFFFFFFF),
    )
    return fields + _CHECK.pack(xxhash.xxh3_64_intdigest(block.key + fields))


def decode_header(key: bytes, header: bytes) -> Header | None:
    """The header of `key`'s record, or None when it is short, foreign, of another version, or damaged."""
    if len(header) < HEADER_BYTES:
        return None
    fields = header[: _FIELDS.size]
    (check,) = _CHECK.unpack_from(header, _FIELDS.size)
    if xxhash.xxh3_64_intdigest(key + fields) != check:
        return None
    magic, version, flags, length, checksum, use_number, layout, parent, namespace, *life = _FIELDS.unpack(fields)
    if magic != _MAGIC or version != FORMAT_VERSION or flags & ~(_PINNED | _LOSSY | _TIERS):
        return None
    expires_s, stored_s, priority, recompute_us = life
    meta = BlockMeta(
        b"" if namespace == _NO_NAMESPACE else namespace,
        expires_s,
        stored_s,
        priority,
        bool(flags & _PINNED),
        recompute_us,
        bool(flags & _LOSSY),
        (flags & _TIERS) >> _TIERS_SHIFT,
    )
    return Header(length, checksum, use_number, layout, b"" if parent == _NO_PARENT else parent, meta)


def decode_block(key: bytes, record: bytes) -> Block | None:
    """The block of a whole record, or None when anything about it is wrong."""
    header = decode_header(key, record[:HEADER_BYTES])
    if header is None or len(record) != HEADER_BYTES + header.length:
        return None
    payload = record[HEADER_BYTES:]
    block = Block(key, header.parent, header.layout, header.checksum, payload, header.meta)
    return block if block.is_intact() else None
