"""Facts about a request as a whole: what its log line, metrics and waiting spans are made of."""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.events import Submitted
from octavo_scheduler.orders import Fact
from octavo_scheduler.request import Outcome, Request


def note_rejected(cell: Cell, event: Submitted, outcome: Outcome) -> None:
    """A request that was refused at once: it never queued and has no record of its own."""
    attributes: dict[str, str | int | float] = {
        "octavo.request_id": event.request_id,
        "reason": outcome.reason,
        "waiting": len(cell.queue),
        "waiting_prompt_tokens": cell.queue.prompt_tokens,
    }
    cell.effects.facts.append(Fact("rejected", event.traceparent, cell.now_us, cell.now_us, attributes))


def note_wait(cell: Cell, request: Request, outcome: Outcome) -> None:
    """A request that ends while it waits leaves a span of its wait, with how it ended."""
    if not request.queued or outcome.outcome == "finished" or request.handoff is not None:
        return  # a handoff has a span of its own
    name, start_us = (
        ("queue", request.submitted_us) if request.admitted_us < 0 else ("preempted", request.waiting_since_us)
    )
    cell.fact(
        name,
        request,
        start_us,
        cell.now_us,
        outcome=outcome.outcome,
        reason=outcome.reason,
        prompt_tokens=len(request.prompt),
    )


def note_end(cell: Cell, request: Request, outcome: Outcome) -> None:
    """What the log line and the metrics of an ended request are made of; times are microseconds since it was submitted."""
    first_us = request.first_token_us
    tiers = {f"cached_{tier}": tokens for tier, tokens in request.cached_by_tier.items()}
    cell.fact(
        "request_end",
        request,
        request.submitted_us,
        cell.now_us,
        outcome=outcome.outcome,
        reason=outcome.reason,
        tenant=request.tenant,
        slo_class=request.slo_class,
        tokens=sum(len(choice.output) for choice in request.choices),
        choices=len(request.choices),
        prompt_tokens=len(request.prompt),
        cached_tokens=max(0, request.cached_tokens),
        blended_tokens=request.blended_tokens,
        predicted_tokens=request.predicted_tokens,
        first_token_us=first_us - request.submitted_us if first_us >= 0 else -1,
        preemptions=request.preemptions,
        attempts=request.attempts,
        degraded=request.degraded,
        predicted_first_token_us=round(request.forecast.ttft_us) if request.forecast is not None else 0,
        predicted_total_us=round(request.forecast.total_us) if request.forecast is not None else 0,
        **tiers,
        **request.cost.figures(),
    )
