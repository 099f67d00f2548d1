"""What a waiting request is expected to take, and until when it must start: the cost model as the orders see it."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_scheduler.costs import StepCosts
from octavo_scheduler.events import Calibration
from octavo_scheduler.fleet import Fleet
from octavo_scheduler.history import OutputHistory
from octavo_scheduler.policy import SECOND_US, Policy
from octavo_scheduler.request import Request
from octavo_scheduler.slo import SloClass

NO_TARGET_US = 60 * SECOND_US
"""A class without a target for the first token is ordered as if it had this one, and never given up."""


class Outlook:
    """Predictions for requests that have no worker yet, by the cost model of any worker of the cell. Microseconds."""

    __slots__ = ("_budget_alone", "_classes", "_fleet", "_history", "_unknown")

    def __init__(self, policy: Policy, fleet: Fleet, history: OutputHistory, classes: Mapping[str, SloClass]) -> None:
        self._budget_alone = policy.budget_alone
        self._fleet = fleet
        self._history = history
        self._classes = classes
        self._unknown = StepCosts(Calibration())

    def _costs(self) -> StepCosts:
        for worker in self._fleet.workers.values():
            return worker.costs
        return self._unknown

    def prefill_us(self, request: Request) -> float:
        """All that it lacks, cached prefixes not considered; the first choice's when it has several."""
        tokens = len(request.prompt)
        if request.work_done:
            tokens += max((len(choice.output) for choice in request.choices), default=0)
        return self._costs().predict_prefill_us(tokens, self._budget_alone)

    def job_us(self, request: Request) -> float:
        """Prefill, and the device time of the output it is still expected to give."""
        costs = self._costs()
        predicted = self._history.predict(request.tenant, request.max_tokens, len(request.prompt))
        said = max((len(choice.output) for choice in request.choices), default=0)
        context_us = costs.context_token_us * len(request.prompt)
        return self.prefill_us(request) + max(1, predicted - said) * (costs.decode_seq_us + context_us)

    def has_deadline(self, request: Request) -> bool:
        """Its first token is asked for by a time."""
        target = self._classes.get(request.slo_class)
        return bool(request.deadline_us or (target is not None and target.ttft_ms))

    def latest_start_us(self, request: Request) -> int:
        """When it must start to meet the deadline of its first token, or of the next one once it has begun."""
        target = self._classes.get(request.slo_class) or SloClass(request.slo_class)
        if request.first_token_us >= 0:
            deadline_us = request.waiting_since_us + int(target.itl_p99_ms * 1000)
        else:
            deadline_us = request.arrival_us + (int(target.ttft_ms * 1000) or NO_TARGET_US)
            if request.deadline_us and request.deadline_us < deadline_us:
                deadline_us = request.deadline_us
        if request.work_done:
            return deadline_us - int(self.prefill_us(request))
        costs, tokens = self._costs(), len(request.prompt)  # prefill_us, in line
        return deadline_us - int(-(-tokens // self._budget_alone) * costs.fixed_us + tokens * costs.prefill_token_us)
