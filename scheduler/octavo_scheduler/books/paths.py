"""How a prompt gets its KV when a kvstore holds some of it: load that, compute it, or both at once.

Compared is the predicted time from the admission to the first token. Computing waits for the prefill ahead of it; a load
for the copies ahead of it on the worker's link, and beside it the worker goes on. Both at once: blocks are computed
from the head while those of the tail are loaded, split where both end together; it goes on behind the last of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from octavo_scheduler.books.path import Path, Way
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits.rates import prefill_us
from octavo_scheduler.policy import Policy

OVERLAP_GAIN = 0.05
"""Part of the time that computing beside a load must save to be worth a second thing that may go wrong."""


class Work(NamedTuple):
    """What a prefill on a worker has ahead of it and beside it."""

    worker: Worker
    left_us: float
    """Of the step that runs."""
    backlog: int
    decoding: int
    context: int
    budget: int

    def prefill_us(self, start: int, tokens: int, behind: bool = True) -> float:
        """Predicted time to compute `tokens` from position `start` on, the backlog before them or not."""
        backlog, left_us = (self.backlog, self.left_us) if behind else (0, 0.0)
        if tokens + backlog <= 0:
            return left_us
        context = self.context + start
        return left_us + prefill_us(self.worker.costs, tokens, backlog, self.decoding, context, self.budget)


def work_of(worker: Worker, policy: Policy) -> Work:
    """As the worker is now."""
    decoding = context = 0
    for sequence in worker.sequences.values():
        if not sequence.stopping and sequence.first_token_us >= 0:
            decoding += 1
            context += sequence.computed_len
    backlog = worker.backlog
    left_us = 0.5 * worker.costs.step_us if decoding or backlog else 0.0
    budget = worker.pace.budget if decoding else worker.pace.alone or policy.budget_alone
    return Work(worker, left_us, backlog, decoding, context, budget)


def link_wait_us(worker: Worker, now_us: int) -> float:
    """How long the copies that are under way keep the worker's link busy.

    What is overdue is taken to need as long again: so a link that has become slow shows before anything has come over it.
    """
    if not worker.transfers:
        return 0.0
    first_us = min(transfer.started_us for transfer in worker.transfers.values())
    size = sum(len(transfer.blocks) for transfer in worker.transfers.values()) * worker.block_bytes
    return abs(size / worker.link.bytes_per_us - (now_us - first_us))


def choose_path(
    work: Work,
    length: int,
    matched: int,
    run: int,
    load_us_of: Callable[[int, int], float],
    *,
    overlap: bool = True,
    forced: Way | None = None,
) -> Path:
    """The quickest way for a prompt of `length` tokens whose first `matched` blocks are in the pool, the next `run` loadable.

    `load_us_of(first, count)`: predicted time of loading `count` blocks from the `first` of the run on. With `forced` that way
    is taken, as far as it is possible; the predictions are those of all.
    """
    size = work.worker.block_tokens
    start = matched * size
    recompute_us = work.prefill_us(start, length - start)
    if not run:
        return Path("recompute", recompute_us=recompute_us)
    rest_us = work.prefill_us(start + run * size, length - start - run * size, behind=False)
    all_us = load_us_of(0, run)
    # that a load has ended is seen when the step that runs then is over
    whole_us = max(all_us + work.left_us, work.prefill_us(start, 0)) + rest_us
    head, together_us = _split(work, start, run, load_us_of) if overlap and run > 1 else (0, 0.0)
    overlap_us = together_us + rest_us if head else 0.0
    way: Way = "load" if whole_us < recompute_us else "recompute"
    if head and overlap_us < (1 - OVERLAP_GAIN) * min(whole_us, recompute_us):
        way = "overlap"
    if forced is not None:
        way = forced if forced != "overlap" or head else "load"
    predicted = (recompute_us, whole_us, overlap_us, rest_us)
    if way == "recompute":
        return Path(way, 0, 0, 0.0, *predicted)
    if way == "load":
        return Path(way, run, 0, all_us, *predicted)
    return Path(way, run, head, load_us_of(head, run - head), *predicted)


def _split(work: Work, start: int, run: int, load_us_of: Callable[[int, int], float]) -> tuple[int, float]:
    """How many leading blocks of the run to compute, and when both that and the load of the others have ended.

    Computing grows with their number and loading shrinks: the best number is where they meet, found by halving.
    """
    size = work.worker.block_tokens

    def ends_us(head: int) -> float:
        return max(work.prefill_us(start, head * size), load_us_of(head, run - head) + work.left_us)

    low, high = 0, run - 1
    while low < high:
        middle = (low + high) // 2
        if work.prefill_us(start, middle * size) < load_us_of(middle, run - middle):
            low = middle + 1
        else:
            high = middle
    best = min((head for head in (low - 1, low) if head > 0), key=ends_us, default=0)
    return best, ends_us(best)
