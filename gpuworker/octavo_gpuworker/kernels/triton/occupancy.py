"""How many warps of a kernel fit one streaming multiprocessor (CUDA C Programming Guide, table of compute capabilities)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Processor:
    """Limits of one streaming multiprocessor."""

    shared_bytes: int
    """For all blocks together."""
    warps: int = 64
    blocks: int = 32
    registers: int = 65536
    """32-bit, given to warps in units of 256."""


BLOCK_RESERVE_BYTES: Final = 1024
"""Shared memory the system keeps per block since compute capability 8.0."""
DEVICES: Final = {80: Processor(164 * 1024), 90: Processor(228 * 1024), 100: Processor(228 * 1024)}


def occupancy(capability: int, registers: int, shared_bytes: int, warps: int) -> float:
    """Resident warps over the most possible; 0 when one block does not fit. `shared_bytes` per block, without the reserve
    where the binary does not count it; `registers` per thread; `warps` per block.
    """
    device = DEVICES[capability]
    per_warp = -(-registers * 32 // 256) * 256
    by_registers = device.registers // per_warp // warps if per_warp else device.blocks
    shared = max(shared_bytes, BLOCK_RESERVE_BYTES)
    blocks = min(device.blocks, device.warps // warps, by_registers, device.shared_bytes // shared)
    return blocks * warps / device.warps
