"""How many tokens one step may compute while decodes run: as many as keep their ITL inside its target.

The budget is what the cost model says fits into HEADROOM of the strictest target of the running sequences, at most
`max_num_batched_tokens`. Where the decodes alone take that long already, no budget can save the target: prefill then gets
PREFILL_FLOOR of the decodes' own time, so that it goes on (Sarathi-Serve, arXiv 2403.02310, fixes the budget by hand).
"""

from __future__ import annotations

from collections import Counter

from octavo_scheduler.costs import StepCosts
from octavo_scheduler.policy import SECOND_US, Policy

HEADROOM = 0.8
"""Of the target, for what the model does not know: the target is a 99th percentile, the prediction a mean."""
PREFILL_FLOOR = 0.5
LEAST_TOKENS = 16
LOWER_AT, RAISE_AT = 0.875, 1.25
"""A new budget is ordered when it is below or above the present one by so much."""
RAISE_AFTER_US = SECOND_US // 2
"""A higher budget must have been right for this long: a decode that ends is mostly followed by another."""


class Pace:
    """One worker's budget with decodes, and the targets that it follows."""

    __slots__ = ("_raise_since_us", "_targets_us", "alone", "budget", "whole")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        """Tokens per step with decodes, as ordered."""
        self.alone = 0
        """Tokens per step without decodes, as ordered; 0: the policy's (moves/pieces.py has another)."""
        self.whole = 0
        """Prefills under way that are not to be cut: `budget` rests (books/chunks.py)."""
        self._targets_us: Counter[int] = Counter()  # ITL target -> running sequences; without one: none
        self._raise_since_us = -1

    def join(self, target_us: int) -> bool:
        """A sequence with this target (0: none) began; True when no other is as strict."""
        if not target_us:
            return False
        stricter = target_us < min(self._targets_us, default=target_us + 1)
        self._targets_us[target_us] += 1
        return stricter

    def leave(self, target_us: int) -> None:
        """It ended."""
        if target_us:
            self._targets_us[target_us] -= 1
            if not self._targets_us[target_us]:
                del self._targets_us[target_us]

    def target_us(self) -> int:
        """The strictest target; 0: none."""
        return min(self._targets_us, default=0)

    def adjust(self, costs: StepCosts, decode_seqs: int, context_tokens: int, policy: Policy, now_us: int) -> bool:
        """Looks at a report's composition; True when `budget` has changed enough to be ordered."""
        if not decode_seqs:
            return False
        wanted = fitting_budget(self.target_us(), costs, decode_seqs, context_tokens, policy.max_num_batched_tokens)
        if wanted <= LOWER_AT * self.budget:
            self._raise_since_us = -1
        elif wanted >= RAISE_AT * self.budget or (wanted > self.budget and wanted == policy.max_num_batched_tokens):
            if self._raise_since_us < 0:
                self._raise_since_us = now_us
            if now_us - self._raise_since_us < RAISE_AFTER_US:
                return False
        else:
            self._raise_since_us = -1
            return False
        self._raise_since_us = -1
        self.budget = wanted
        return True


def fitting_budget(target_us: int, costs: StepCosts, decode_seqs: int, context_tokens: int, most: int) -> int:
    """Tokens of a step, the decodes included, whose predicted time fits the target; `most` at most, or without a target."""
    if not target_us:
        return most
    alone_us = costs.predict_step_us(0, decode_seqs, context_tokens)
    left_us = max(HEADROOM * target_us - alone_us, PREFILL_FLOOR * alone_us)
    return min(most, decode_seqs + max(LEAST_TOKENS, int(left_us / costs.prefill_token_us)))
