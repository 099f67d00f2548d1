"""What to do with the KV of a client that pauses: keep it in the pool, copy it out, or let it go.

All three in microseconds of one worker. After InferCept (Abhyankar et al., 2024), which weighs the waste of memory
times time; here the memory's part of the pool turns it into the worker's own time, so that all are one unit:

    keep    = scarcity * (blocks / pool) * how long they are likely to be held
    offload = scarcity * (blocks / pool) * copy out  +  chance of return * copy back
    drop    = chance of return * prefill again

Scarcity is 1 while somebody waits for blocks, else the share of the pool that is in use, squared: memory that nobody
wants costs nothing, and as long as it does, keeping is right.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves.pause import Decision
from octavo_scheduler.tiers import Directory


class Costs(NamedTuple):
    """Predicted microseconds of each; None: impossible."""

    keep: float
    offload: float | None
    drop: float

    def best(self) -> Decision:
        """The cheapest; of equals the one that holds on to more."""
        ways: list[tuple[float, Decision]] = [(self.keep, "keep")]
        if self.offload is not None:
            ways.append((self.offload, "offload"))
        ways.append((self.drop, "drop"))
        return min(ways, key=lambda way: way[0])[1]


def scarcity(cell: Cell, worker: Worker) -> float:
    """How much the worker's blocks are wanted, in [0, 1]."""
    if len(cell.queue):
        return 1.0
    pool = worker.pool
    return (1 - pool.free_blocks / pool.usable_blocks) ** 2


def pause_costs(
    worker: Worker,
    keys: list[bytes],
    directory: Directory | None,
    hold_us: float,
    return_chance: float,
    wanted: float,
    budget: int,
) -> Costs:
    """Costs of a pause whose `keys` (full blocks) the worker has, likely to be held for `hold_us`."""
    blocks = len(keys)
    share = wanted * blocks / worker.pool.usable_blocks
    again_us = worker.costs.predict_prefill_us(blocks * worker.block_tokens, budget)
    offload_us: float | None = None
    if directory is not None and blocks:
        lacking = sum(key not in directory for key in keys)
        out_us = worker.link.predict_us(lacking * worker.block_bytes) if lacking else 0.0
        back_us = worker.link.predict_us(blocks * worker.block_bytes)
        offload_us = share * out_us + return_chance * back_us
    return Costs(share * hold_us, offload_us, return_chance * again_us)
