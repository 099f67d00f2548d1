"""What a block takes along when it leaves the pool for a store."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_scheduler.orders import Offload
from octavo_scheduler.preloads.rule import CacheRule

TIER_BITS = {"dram": 1, "nvme": 2, "remote": 4}
"""octavo.v1.BlockMeta.tiers."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A block that may be offloaded. `until_us` 0: no limit; `tiers` 0: any."""

    key: bytes
    parent: bytes
    tag: bytes = b""
    until_us: int = 0
    priority: int = 0
    recompute_us: int = 0
    tiers: int = 0


def tier_bits(rule: CacheRule) -> int:
    """Where its blocks may lie below the pool; 0: anywhere."""
    return sum(TIER_BITS.get(tier, 0) for tier in rule.tiers)


def offload_order(xfer_id: int, blocks: list[int], leaving: list[Leaving], now_us: int) -> Offload:
    """The order; lists that would say nothing stay empty."""

    def told(values: list[int]) -> list[int]:
        return values if any(values) else []

    return Offload(
        xfer_id,
        blocks,
        [item.key for item in leaving],
        [item.parent for item in leaving],
        [item.tag for item in leaving] if any(item.tag for item in leaving) else [],
        told([max(1, item.until_us - now_us) if item.until_us else 0 for item in leaving]),
        told([item.priority for item in leaving]),
        told([item.recompute_us for item in leaving]),
        told([item.tiers for item in leaving]),
    )
