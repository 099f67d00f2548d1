"""A KV block as the store knows it: key, parent, layout, checksum, payload, and what it must know beside them."""

from __future__ import annotations

from dataclasses import dataclass, field

import xxhash

KEY_BYTES = 32
LAYOUT_BYTES = 32
NAMESPACE_BYTES = 16
ANYWHERE, DRAM, NVME, REMOTE = 0, 1, 2, 4
"""Bits of BlockMeta.tiers."""


def bit_of(tier: str) -> int:
    """The bit of a tier's name; what is neither DRAM nor NVMe is remote."""
    return {"dram": DRAM, "nvme": NVME}.get(tier, REMOTE)


MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1

CLOCK_SLACK_S = 60.0
"""How far the clocks of hosts that share a tier may lie apart, and one clock be set back, without a block being lost for it."""

Payload = bytes | memoryview


@dataclass(frozen=True, slots=True)
class BlockMeta:
    """What travels with a block and decides how long it stays; the payload does not depend on it."""

    namespace: bytes = b""
    """16 opaque bytes, one value per tenant; empty: nobody's."""
    expires_s: int = 0
    """Unix seconds from which on the block is unreadable; 0: never."""
    stored_s: int = field(default=0, compare=False)
    """Unix seconds of the first put, for the maximum age of a tenant; 0: not known yet."""
    priority: int = 0
    """Larger ones are evicted later, whatever their value."""
    pinned: bool = False
    """Never evicted."""
    recompute_us: int = 0
    """Predicted time to compute the block again; 0: unknown."""
    lossy: bool = False
    """The payload came out of a lossy codec: close to what a worker computed, not equal."""
    tiers: int = ANYWHERE
    """Where it may lie: DRAM, NVME and REMOTE, added; ANYWHERE (0): in all of them."""

    def is_over(self, now_s: float, max_age_s: float | None = None) -> bool:
        """Whether its time is over at that unix second. A first put that lies ahead tells that the clock was set back: what
        has a limited life then has an age that nobody knows, and would outlive its limit.
        """
        if not self.expires_s and max_age_s is None:
            return False
        if self.stored_s > now_s + CLOCK_SLACK_S:
            return True
        if self.expires_s and now_s >= self.expires_s:
            return True
        return max_age_s is not None and bool(self.stored_s) and now_s >= self.stored_s + max_age_s

    def may_lie_in(self, tier: int) -> bool:
        """Whether the tier of this bit may hold it."""
        return self.tiers == ANYWHERE or bool(self.tiers & tier)

    def merged(self, other: BlockMeta) -> BlockMeta:
        """What a second put of the same block makes of it: the longer life, the higher priority, pinned if either is, more tiers."""
        return BlockMeta(
            self.namespace or other.namespace,
            max(self.expires_s, other.expires_s) if self.expires_s and other.expires_s else 0,
            self.stored_s or other.stored_s,
            max(self.priority, other.priority),
            self.pinned or other.pinned,
            other.recompute_us or self.recompute_us,
            self.lossy,  # the bytes stay those of the first put
            self.tiers | other.tiers if self.tiers and other.tiers else ANYWHERE,
        )


PLAIN = BlockMeta()


@dataclass(frozen=True, slots=True)
class Block:
    """One KV block: all layers of kv_block_tokens tokens, contiguous."""

    key: bytes
    """32 bytes."""
    parent: bytes
    """32 bytes, or empty for the head of a chain."""
    layout: bytes
    """32-byte layout fingerprint; a reader that expects another one gets a miss."""
    checksum: int
    """xxh3-64 of the payload, from the worker that computed it."""
    payload: Payload = field(repr=False)
    """Never in a log or a span; so not in the repr either."""
    meta: BlockMeta = PLAIN

    def is_intact(self) -> bool:
        """Whether the payload still has its checksum."""
        return xxhash.xxh3_64_intdigest(self.payload) == self.checksum


def check_key(key: bytes) -> None:
    """Raises ValueError unless `key` has 32 bytes."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"key: {len(key)} bytes, must be {KEY_BYTES}")


def check_block(block: Block) -> None:
    """Raises ValueError naming the field of a wrong length."""
    check_key(block.key)
    if len(block.parent) not in (0, KEY_BYTES):
        raise ValueError(f"parent: {len(block.parent)} bytes, must be 0 or {KEY_BYTES}")
    if len(block.layout) != LAYOUT_BYTES:
        raise ValueError(f"layout: {len(block.layout)} bytes, must be {LAYOUT_BYTES}")
    if len(block.meta.namespace) not in (0, NAMESPACE_BYTES):
        raise ValueError(f"namespace: {len(block.meta.namespace)} bytes, must be 0 or {NAMESPACE_BYTES}")
    if not MIN_PRIORITY <= block.meta.priority <= MAX_PRIORITY:
        raise ValueError(f"priority: {block.meta.priority} must fit into 32 bits")
