"""What the scheduler's orders of copies say, as the kvstore is told."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.v1 import kvstore_pb2 as pb

from octavo_gpuworker.orders import LoadOrder, OffloadOrder

LOAD_LIMIT_US = 1_000_000
"""Of a Load that names no limit."""
NO_PARENT = bytes(32)
NO_TAG = bytes(16)


@dataclass(frozen=True, slots=True)
class Offloaded:
    """One block on its way to the store; an empty parent begins a chain."""

    block: int
    key: bytes
    parent: bytes
    meta: pb.BlockMeta


def offload_entries(order: OffloadOrder) -> list[Offloaded]:
    """The blocks of an order. Raises ValueError when its lists differ in length."""
    count = len(order.keys)
    parents = order.parents or [NO_PARENT] * count
    rows = zip(
        order.blocks,
        order.keys,
        parents,
        order.namespaces or [b""] * count,
        order.ttl_us or [0] * count,
        order.priorities or [0] * count,
        order.recompute_us or [0] * count,
        order.tiers or [0] * count,
        strict=True,
    )
    return [
        Offloaded(
            block,
            key,
            parent if parent != NO_PARENT else b"",
            pb.BlockMeta(
                namespace=tag if tag != NO_TAG else b"",
                ttl_us=ttl_us,
                priority=priority,
                recompute_us=recompute_us,
                tiers=tiers,
            ),
        )
        for block, key, parent, tag, ttl_us, priority, recompute_us, tiers in rows
    ]


def limit_us(order: LoadOrder) -> int:
    """How long a load may take."""
    return order.limit_us or LOAD_LIMIT_US


def sources_of(order: LoadOrder, done: int) -> list[pb.BlockSource]:
    """Where other hosts may have keys[done:] of a load."""
    found = []
    for source in order.sources:
        first, end = max(source.first, done), source.first + source.count
        if end > first:
            found.append(pb.BlockSource(store_id=source.store_id, first=first - done, count=end - first))
    return found
