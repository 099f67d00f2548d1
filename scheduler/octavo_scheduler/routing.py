"""What a request costs on one worker, in microseconds: the worker of the largest score takes it.

    score = predicted prefill saved - predicted queue delay - KV pressure

Kept as its negative on one scale for workers of different speed: own prefill of what is not there + delay + pressure.
Cached prefix and tier load meet in one unit because both are time: what is there need not be prefilled, what is ahead must
be prefilled first. Pure functions; smaller is better.
"""

from __future__ import annotations

from octavo_scheduler.costs import StepCosts
from octavo_scheduler.fleet import Worker
from octavo_scheduler.history import OutputHistory


def score_us(
    uncached_tokens: int, backlog_tokens: int, running: int, load_us: float, costs: StepCosts, budget: int
) -> float:
    """Predicted time to first token: tier load + own prefill + prefill ahead of it, each chunk beside the decodes.

    `load_us` is the predicted time of the tier load; `running` counts sequences.
    """
    tokens = uncached_tokens + backlog_tokens
    chunks = -(-tokens // max(1, budget))
    return load_us + chunks * (costs.fixed_us + running * costs.decode_seq_us) + tokens * costs.prefill_token_us


def pressure_us(worker: Worker, new_blocks: int) -> float:
    """KV pressure: predicted time to compute again what `new_blocks` push out of the worker's cache.

    A block that goes is missed as often as this worker's prompts were found in its cache of late.
    """
    displaced = min(new_blocks - worker.pool.empty_blocks, worker.pool.cached_blocks)
    if displaced <= 0:
        return 0.0
    return displaced * worker.reuse * worker.block_cost_us(new_blocks // 2)


def room_in_us(worker: Worker, history: OutputHistory) -> float:
    """Predicted time until the first of its sequences ends and leaves its slot and blocks; 0 when one is on its way out."""
    left = float("inf")
    for sequence in worker.sequences.values():
        if sequence.stopping:
            return 0.0
        request = sequence.choice.request
        prompt = len(request.prompt)
        expected = history.expect(request.tenant, request.max_tokens, prompt)
        left = min(left, max(1.0, prompt + expected - sequence.length))
    return left * worker.costs.step_us if worker.sequences else 0.0
