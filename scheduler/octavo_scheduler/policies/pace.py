"""How many tokens one step may compute while decodes run: as many as keep their ITL inside its target.

The budget is what the cost model says fits into a part of the strictest target of the running sequences, at most
`max_num_batched_tokens`; the part is learned from the gaps that miss the target. Where the decodes alone take that long already, no budget can save the target: prefill then gets
PREFILL_FLOOR of the decodes' own time, so that it goes on (Sarathi-Serve, arXiv 2403.02310, fixes the budget by hand).
"""

from __future__ import annotations

from collections import Counter

from octavo_scheduler.costs import StepCosts
from octavo_scheduler.policy import SECOND_US, Policy

HEADROOM, LEAST_HEADROOM = 0.8, 0.5
"""Of the target, for what the model does not know: the target is a 99th percentile, the prediction a mean. It starts with the
larger and is lowered as far as gaps miss the target more often than that."""
MISSED_STEP, MISSED_SHARE = 0.02, 0.01
"""By how much a missed gap lowers it; a kept one raises it by so much less that one miss in a hundred leaves it alone."""
PREFILL_FLOOR = 0.5
LEAST_TOKENS = 16
LOWER_AT, RAISE_AT = 0.875, 1.25
"""A new budget is ordered when it is below or above the present one by so much."""
RAISE_AFTER_US = SECOND_US // 2
"""A higher budget must have been right for this long: a decode that ends is mostly followed by another."""


class Pace:
    """One worker's budget with decodes, and the targets that it follows."""

    __slots__ = ("_least_us", "_raise_since_us", "_targets_us", "alone", "budget", "headroom", "limit", "whole")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        """Tokens per step with decodes, as ordered."""
        self.alone = 0
        """Tokens per step without decodes, as ordered; 0: the policy's (moves/pieces.py has another)."""
        self.headroom = HEADROOM
        """Part of the target that a step beside decodes is predicted to take, at most."""
        self.whole = 0
        """Prefills under way that are not to be cut: `budget` rests (books/chunks.py)."""
        self.limit = 0
        """Tokens of any step at most, for the sake of tenants that run less here (policies/guard.py); 0: none."""
        self._targets_us: Counter[int] = Counter()  # ITL target -> running sequences; without one: none
        self._least_us = 0
        self._raise_since_us = -1

    def join(self, target_us: int) -> bool:
        """A sequence with this target (0: none) began; True when no other is as strict."""
        if not target_us:
            return False
        stricter = target_us < min(self._targets_us, default=target_us + 1)
        self._targets_us[target_us] += 1
        self._least_us = min(self._targets_us)
        return stricter

    def leave(self, target_us: int) -> None:
        """It ended."""
        if target_us:
            self._targets_us[target_us] -= 1
            if not self._targets_us[target_us]:
                del self._targets_us[target_us]
                self._least_us = min(self._targets_us, default=0)

    def ordered(self, budget_alone: int) -> tuple[int, int]:
        """Tokens per step with decodes, and without, when the policy's budget for the latter is `budget_alone`."""
        alone = self.alone or budget_alone
        if self.whole:
            return max(self.budget, budget_alone), alone
        if self.limit:
            return min(self.budget, self.limit), min(alone, self.limit)
        return self.budget, alone

    def target_us(self) -> int:
        """The strictest target; 0: none."""
        return self._least_us

    def felt(self, gap_us: float, alone_us: float) -> None:
        """A step with prefill beside decodes ended `gap_us` after the one before; the decodes alone were predicted to take `alone_us`."""
        target_us = self.target_us()
        if not target_us or self.whole or alone_us >= LEAST_HEADROOM * target_us:
            return  # there the budget is not what keeps or misses the target
        if gap_us > target_us:
            self.headroom = max(LEAST_HEADROOM, self.headroom * (1 - MISSED_STEP))
        else:
            self.headroom = min(HEADROOM, self.headroom * (1 + MISSED_STEP * MISSED_SHARE / (1 - MISSED_SHARE)))

    def adjust(self, costs: StepCosts, decode_seqs: int, context_tokens: int, policy: Policy, now_us: int) -> bool:
        """Looks at a report's composition; True when `budget` has changed enough to be ordered."""
        if not decode_seqs:
            return False
        most = policy.max_num_batched_tokens
        wanted = fitting_budget(self.target_us(), costs, decode_seqs, context_tokens, most, self.headroom)
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


def fitting_budget(
    target_us: int, costs: StepCosts, decode_seqs: int, context_tokens: int, most: int, headroom: float = HEADROOM
) -> int:
    """Tokens of a step, the decodes included, whose predicted time fits the target; `most` at most, or without a target."""
    if not target_us:
        return most
    alone_us = costs.predict_step_us(0, decode_seqs, context_tokens)
    left_us = max(headroom * target_us - alone_us, PREFILL_FLOOR * alone_us)
    return min(most, decode_seqs + max(LEAST_TOKENS, int(left_us / costs.prefill_token_us)))
