"""PayloadShape and BlockSource between their messages and the store's own types."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.v1 import kvstore_pb2 as pb

from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.tiers.remote import Source


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
