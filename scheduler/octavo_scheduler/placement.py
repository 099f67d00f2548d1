"""Which of several workers: the one that is predicted to give the first token soonest without slowing the others most.

Pure functions of numbers, in microseconds; smaller is better. Cached prefix tokens and load meet in one unit because
both are time: what is cached need not be prefilled, what is queued must be prefilled first.
"""

from __future__ import annotations

from octavo_scheduler.costs import StepCosts


def score_us(
    uncached_tokens: int, backlog_tokens: int, running: int, load_us: float, costs: StepCosts, budget: int
) -> float:
    """Predicted time to first token: tier load + own prefill + prefill ahead of it, each chunk beside the decodes.

    `load_us` is the predicted time of the tier load; `running` counts sequences.
    """
    tokens = uncached_tokens + backlog_tokens
    chunks = -(-tokens // max(1, budget))
    return load_us + chunks * (costs.fixed_us + running * costs.decode_seq_us) + tokens * costs.prefill_token_us
