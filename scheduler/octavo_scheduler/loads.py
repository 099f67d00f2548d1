"""What the workers of a pool have to do, side by side: whom to give a prompt of which nobody holds anything.

Such a prompt costs on each worker what routing.score_us says, and of a large cell most workers have not changed since the last one
came. So their figures stand in columns, and are read off a worker again only after an event that touched it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from octavo_scheduler.fleet import Worker
from octavo_scheduler.routing import pressure_us


class Loads:
    """Columns over `workers`, one place for each. Times in microseconds."""

    __slots__ = ("_backlog", "_chunk_us", "_place", "_stale", "_token_us", "workers")

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self._place = {worker: at for at, worker in enumerate(workers)}
        self._stale: set[Worker] = set(workers)
        self._backlog = [0] * len(workers)
        self._chunk_us = array("d", bytes(8 * len(workers)))  # of a chunk beside what runs there, without its tokens
        self._token_us = array("d", bytes(8 * len(workers)))

    def touch(self, workers: Iterable[Worker]) -> None:
        """An event has changed these."""
        self._stale.update(workers)

    def cheapest(self, among: list[Worker], length: int, budget: int, blocks: int) -> Worker:
        """The cheapest `among` the workers for a prompt of `length` tokens, in chunks of `budget`, that takes `blocks` blocks."""
        if self._stale:
            self._read()
        backlogs, chunks_us, tokens_us, workers = self._backlog, self._chunk_us, self._token_us, self.workers
        places = range(len(workers)) if among is workers else [self._place[worker] for worker in among]
        best, best_us = among[0], float("inf")
        for at in places:
            tokens = length + backlogs[at]
            cost_us = -(-tokens // budget) * chunks_us[at] + tokens * tokens_us[at]  # score_us, in line
            if cost_us < best_us:
                worker = workers[at]
                if blocks > worker.pool.empty_blocks:
                    cost_us += pressure_us(worker, blocks)
                    if cost_us >= best_us:
                        continue
                best, best_us = worker, cost_us
        return best

    def wrong(self) -> list[str]:
        """Workers whose figures are not those of now though no event has touched them; for tests."""
        fresh = [worker for worker in self.workers if worker not in self._stale]
        return [worker.worker_id for worker in fresh if self._figures(self._place[worker]) != _figures_of(worker)]

    def _figures(self, at: int) -> tuple[int, float, float]:
        return self._backlog[at], self._chunk_us[at], self._token_us[at]

    def _read(self) -> None:
        for worker in self._stale:
            at = self._place.get(worker)
            if at is not None:  # else it is of another pool, or drains
                self._backlog[at], self._chunk_us[at], self._token_us[at] = _figures_of(worker)
        self._stale.clear()


def _figures_of(worker: Worker) -> tuple[int, float, float]:
    costs = worker.costs
    chunk_us = costs.fixed_us + len(worker.sequences) * costs.decode_seq_us
    return worker.backlog, chunk_us, costs.prefill_token_us
