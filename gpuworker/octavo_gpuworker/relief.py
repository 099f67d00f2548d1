"""Relief: how much a step may hold after an allocation failed. Less and less until one runs, then more again."""

from __future__ import annotations

from octavo.step import StepBudget


class Relief:
    """What is left of the scheduler's budget."""

    __slots__ = ("_budget", "failures")

    def __init__(self) -> None:
        self.failures = 0
        """Allocations that failed one after the other."""
        self._budget: StepBudget | None = None

    def failed(self, tokens: int, sequences: int) -> None:
        """A step of that size found no memory: the next one holds half of it, down to one token."""
        self.failures += 1
        if tokens > 1:
            self._budget = StepBudget(tokens // 2, tokens // 2, max(1, sequences // 2))

    def ran(self, ordered: StepBudget) -> None:
        """A step ran: twice as much is tried next, until it is what the scheduler ordered."""
        self.failures = 0
        less = self._budget
        if less is not None:
            grown = 2 * less.with_decodes
            enough = grown >= max(ordered.with_decodes, ordered.alone)
            self._budget = None if enough else StepBudget(grown, grown, 2 * less.max_seqs)

    def of(self, ordered: StepBudget) -> StepBudget:
        """The budget of the next step."""
        less = self._budget
        if less is None:
            return ordered
        return StepBudget(
            min(ordered.with_decodes, less.with_decodes),
            min(ordered.alone, less.alone),
            min(ordered.max_seqs, less.max_seqs),
        )
