"""What happened, held against what was predicted: the corrections and the error figures of the cell learn from it."""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits.starting import start_us
from octavo_scheduler.policies.turns import overtaking_us
from octavo_scheduler.request import Request, Sequence

WATCHED_SHARE = 4
"""One of so many admissions is predicted again on its worker."""


def from_admission(cell: Cell, request: Request, prefill_tokens: int) -> None:
    """A request was seated for the first time."""
    cell.counters["admissions"] += 1
    prompt = len(request.prompt)
    version, predicted, expected = request.foreseen
    if version != cell.history.version:
        predicted, expected = cell.history.lengths(request.tenant, request.max_tokens, prompt)
    request.predicted_tokens = predicted
    cell.rates.mix.observe(prefill_tokens, prompt, expected)
    cell.drain.admitted(prompt, request.claimed_kv_tokens, cell.now_us)
    seen = request.forecast
    if seen is not None and seen.raw_wait_us > 0 and cell.now_us > request.submitted_us:
        cell.wait_correction.observe(seen.raw_wait_us, cell.now_us - request.submitted_us)


def watches(cell: Cell) -> bool:
    """Whether the admission at hand is one whose start is predicted again."""
    return not cell.rates.mix.seen % WATCHED_SHARE


def arriving_tokens(cell: Cell, workers: int) -> float:
    """Tokens to prefill that are expected to come to one of so many workers, per microsecond."""
    return cell.drain.requests_per_us(cell.now_us) * cell.rates.mix.prefill / max(1, workers)


def overtaken_us(cell: Cell, worker: Worker, slo_class: str, prefill_us: float, beside: float) -> float:
    """For how long the prompts that arrive are expected to go before a prefill that would take `prefill_us` alone."""
    mean_us = worker.costs.predict_prefill_us(int(cell.rates.mix.prefill), cell.budget_alone)
    return overtaking_us(cell.order_of(slo_class), prefill_us, mean_us, beside)


def start_forecast_us(cell: Cell, worker: Worker, prefill_tokens: int, turn: int, overtaken_us: float) -> float:
    """Raw prediction from an admission on `worker` to the first token."""
    arriving = arriving_tokens(cell, len(cell.fleet.accepting()))
    return start_us(
        worker, prefill_tokens, cell.policy, cell.now_us, turn, arriving=arriving, overtaken_us=overtaken_us
    )


def from_first_token(cell: Cell, sequence: Sequence) -> None:
    """A residency's first token has come."""
    request = sequence.choice.request
    took_us = sequence.first_token_us - sequence.admitted_us
    if sequence.forecast_start_us and took_us > 0:
        tokens = len(request.prompt) - sequence.cached_len
        cell.errors["start"].observe(sequence.forecast_start_us * cell.start_correction.factor(tokens), took_us)
        cell.start_correction.observe(tokens, sequence.forecast_start_us, took_us)
    seen = request.forecast
    if seen is not None and request.first_token_us == cell.now_us > request.submitted_us:
        if seen.raw_wait_us > 0 and took_us > 0:
            cell.busy_correction.observe(seen.raw_start_us, took_us)
        cell.errors["ttft"].observe(seen.ttft_us, request.first_token_us - request.submitted_us)


def from_growth(cell: Cell, sequence: Sequence) -> None:
    """A table is about to grow: once its output has passed the prediction, the prediction was too low."""
    request = sequence.choice.request
    if len(sequence.choice.output) > request.predicted_tokens > 0:
        sequence.outgrew = True
        cell.history.outgrown(request.tenant, len(request.prompt))


def from_end(cell: Cell, request: Request) -> None:
    """A request has its outcome."""
    seen, outcome = request.forecast, request.outcome
    if seen is None or outcome is None or outcome.outcome != "finished" or request.ended_us <= request.submitted_us:
        return
    cell.errors["e2e"].observe(seen.total_us, request.ended_us - request.submitted_us)
