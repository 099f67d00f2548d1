"""Blocks and their meta data to and from messages: the only place that knows both. Durations travel, not times."""

from __future__ import annotations

import math
from collections.abc import Iterable

from octavo.v1 import kvstore_pb2 as pb

from octavo_kvstore.block import PLAIN, BlockMeta
from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.store import Found
from octavo_kvstore.tiers.arena import SlotRef
from octavo_kvstore.tiers.remote import Source


def meta_from(message: pb.BlockMeta, now_s: float) -> BlockMeta:
    """The meta data of a block that is put now."""
    if not message.ByteSize():
        return PLAIN
    return BlockMeta(
        message.namespace,
        math.floor(now_s + message.ttl_us / 1e6) if message.ttl_us else 0,  # whole seconds: never later than asked
        max(0, int(now_s - message.age_us / 1e6)) if message.age_us else 0,
        message.priority,
        message.pinned,
        message.recompute_us,
        message.lossy,
        message.tiers & 7,
    )


def meta_to(meta: BlockMeta, now_s: float) -> pb.BlockMeta:
    """The other way; what is over by now has a microsecond left, since 0 means no limit."""
    return pb.BlockMeta(
        namespace=meta.namespace,
        ttl_us=max(1, int((meta.expires_s - now_s) * 1e6)) if meta.expires_s else 0,
        priority=meta.priority,
        pinned=meta.pinned,
        recompute_us=meta.recompute_us,
        lossy=meta.lossy,
        tiers=meta.tiers,
        age_us=max(0, int((now_s - meta.stored_s) * 1e6)) if meta.stored_s else 0,
    )


def get_response(found: Found, now_s: float) -> pb.GetResponse:
    """A block with its payload in the message."""
    block = found.block
    return pb.GetResponse(
        key=block.key,
        payload=block.payload if isinstance(block.payload, bytes) else bytes(block.payload),
        checksum=block.checksum,
        tier=found.tier,
        parent=block.parent,
        meta=meta_to(block.meta, now_s),
    )


def ref_to(ref: SlotRef) -> pb.SlotRef:
    """A slot for a client."""
    return pb.SlotRef(slot=ref.slot, generation=ref.generation, length=ref.length, checksum=ref.checksum)


def ref_from(message: pb.SlotRef) -> SlotRef:
    """A slot that a client filled."""
    return SlotRef(message.slot, message.generation, message.length, message.checksum)


def read_shape(message: pb.PayloadShape) -> PayloadShape:
    """Raises ValueError naming the field that cannot be."""
    return PayloadShape(message.layers, message.halves, message.heads, message.tokens, message.width, message.dtype)


def write_shape(shape: PayloadShape | None) -> pb.PayloadShape | None:
    """None stays None."""
    if shape is None:
        return None
    layers, halves, heads, tokens, width = shape.dims
    return pb.PayloadShape(layers=layers, halves=halves, heads=heads, tokens=tokens, width=width, dtype=shape.dtype)


def read_sources(messages: Iterable[pb.BlockSource], keys: int) -> list[Source]:
    """Hints about `keys` keys; what lies beyond them is cut off."""
    return [
        Source(item.store_id, item.first, min(item.count, keys - item.first))
        for item in messages
        if item.first < keys and item.count
    ]
