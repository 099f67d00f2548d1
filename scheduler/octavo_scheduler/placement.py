"""Which of several workers: the one that is predicted to give the first token soonest without slowing the others most.

Pure functions of numbers, in microseconds; smaller is better. Cached prefix tokens and load meet in one unit because
both are time: what is cached need not be prefilled, what is queued must be prefilled first.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_scheduler.costs import StepCosts
from octavo_scheduler.fleet import Worker


@dataclass(frozen=True, slots=True)
class Candidate:
    """What placement looks at; tokens unless named otherwise."""

    uncached_tokens: int
    backlog_tokens: int
    running: int
    load_us: float  # predicted time of the tier load


def score_us(candidate: Candidate, costs: StepCosts, budget: int) -> float:
    """Predicted time to first token: tier load + own prefill + prefill ahead of it, each chunk beside the decodes."""
    tokens = candidate.uncached_tokens + candidate.backlog_tokens
    chunks = -(-tokens // max(1, budget))
    beside_us = chunks * candidate.running * costs.decode_seq_us
    return candidate.load_us + costs.predict_prefill_us(tokens, budget) + beside_us


def backlog_tokens(worker: Worker) -> int:
    """Tokens that running sequences have still to prefill."""
    return sum(sequence.length - sequence.computed_len - 1 for sequence in worker.running())
