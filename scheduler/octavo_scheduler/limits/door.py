"""The door: whether a new request may wait at all. Cheap checks first, the forecast only where something hangs on it.

A refusal names the unit that is exhausted and when to come back. Words that begin with `rejected-` mean that no work
was done for the request, words that begin with `evicted-` that some was.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_scheduler.cell import Cell
from octavo_scheduler.events import Submitted
from octavo_scheduler.limits.drain import bounded
from octavo_scheduler.limits.forecast import Ask, claim_us, forecast
from octavo_scheduler.policy import SECOND_US
from octavo_scheduler.request import Forecast, Outcome
from octavo_scheduler.slo import SloClass

WATCHED_SHARE = 8
"""One of so many requests is forecast though nothing hangs on it, so that the error is known before it matters."""
DEGRADED_PATIENCE = 2.0
"""A degraded request may be predicted to wait for so many times its class's TTFT target; beyond, it is refused."""


@dataclass(slots=True)
class Terms:
    """On what terms a request is taken on."""

    pool: str = ""
    max_tokens: int = 0
    deadline_us: int = 0  # remaining; 0: none
    degraded: str = ""
    charged_tokens: int = 0
    kv_tokens: int = 0
    gpu_us: float = 0.0
    forecast: Forecast | None = None
    foreseen: tuple[int, int, float] = (-1, 0, 0.0)  # as Request.foreseen


def knock(cell: Cell, event: Submitted, slo: SloClass | None, privileged: bool) -> Terms | Outcome:
    """The terms of a valid request of class `slo`, or why it is refused. A privileged one (a resubmit after a restart) is
    never refused."""
    if slo is None:
        raise ValueError(f"slo_class {event.slo_class!r} was not checked")
    terms = Terms(slo.pool, event.max_tokens, event.remaining_deadline_us or int(slo.deadline_ms * 1000))
    _size(cell, event, terms)
    if privileged:
        return terms
    if not cell.fleet.accepting(terms.pool):
        return _pool_away(terms.pool)
    tenants, policy, waiting = cell.tenants, cell.policy, cell.queue.load.total
    refused = None
    if (
        waiting.requests >= policy.max_waiting_requests
        or waiting.prompt_tokens + len(event.prompt) > policy.max_waiting_prompt_tokens
        or policy.max_waiting_kv_tokens
        or policy.max_waiting_gpu_us
    ):  # of nearly no request
        refused = _queue_refusal(cell, event, terms)
    if (
        refused is None
        and tenants.limited
        and (refused := tenants.refusal(event.tenant, terms.charged_tokens, cell.now_us))
    ):
        tenants.refused(event.tenant, cell.now_us)
    if refused is not None:
        return refused
    watched = int(cell.counters["requests_submitted"]) % WATCHED_SHARE == 0
    if not (watched or terms.deadline_us or slo.on_overload != "queue"):
        return terms
    terms.forecast = forecast(cell, _ask(cell, event, terms))
    late = _late(cell, slo, terms)
    if late is not None and slo.on_overload == "degrade":
        return _degrade(cell, event, slo, terms) or late
    return late or terms


def _pool_away(pool: str) -> Outcome:
    which = f"no worker of pool {pool!r} is ready" if pool else "no worker is ready"
    return Outcome("rejected", "rejected-not-ready", f"{which}; retry", SECOND_US)


def _size(cell: Cell, event: Submitted, terms: Terms) -> None:
    """What the request counts in each unit."""
    prompt, choices = len(event.prompt), len(event.choices)
    history = cell.history
    predicted, expected = history.lengths(event.tenant, terms.max_tokens, prompt)
    terms.foreseen = history.version, predicted, expected
    terms.charged_tokens = prompt + round(choices * expected)
    terms.kv_tokens = prompt + choices * predicted
    terms.gpu_us = claim_us(cell, terms.pool, prompt, expected, choices)


def _ask(cell: Cell, event: Submitted, terms: Terms) -> Ask:
    return Ask(
        event.tenant,
        event.priority,
        terms.pool,
        event.prompt,
        event.prompt_keys if cell.policy.prefix_cache else (),
        cell.history.count_on(event.tenant, terms.max_tokens, len(event.prompt)),
        len(event.choices),
        event.slo_class or cell.policy.default_slo_class,
    )


def _queue_refusal(cell: Cell, event: Submitted, terms: Terms) -> Outcome | None:
    """A limit of the queue that the request exceeds. Without anyone waiting, only the count can refuse."""
    policy, waiting = cell.policy, cell.queue.load.total
    prompt = len(event.prompt)
    workers = max(1, len(cell.fleet.accepting()))
    limits = (
        ("requests", "requests", waiting.requests, 1, policy.max_waiting_requests, "max_waiting_requests"),
        (
            "prompt-tokens",
            "prompt tokens",
            waiting.prompt_tokens,
            prompt,
            policy.max_waiting_prompt_tokens,
            "max_waiting_prompt_tokens",
        ),
        (
            "kv-tokens",
            "reserved KV tokens",
            waiting.kv_tokens,
            terms.kv_tokens,
            policy.max_waiting_kv_tokens,
            "max_waiting_kv_tokens",
        ),
        (
            "gpu-time",
            "us of worker time",
            waiting.gpu_us / workers,
            terms.gpu_us / workers,
            policy.max_waiting_gpu_us,
            "max_waiting_gpu_s",
        ),
    )
    for word, unit, held, more, most, name in limits:
        if not most or held + more <= most or (word != "requests" and not waiting.requests):
            continue
        excess = held + more - most
        if word == "gpu-time":
            retry_us = bounded(excess)
        else:
            retry_us = cell.drain.retry_us(word.replace("-", "_"), excess, cell.now_us)
        message = (
            f"{held:.0f} {unit} wait and {more:.0f} more exceed {name} "
            f"({most / SECOND_US if word == 'gpu-time' else most:g}); retry in {retry_us / SECOND_US:.1f} s"
        )
        return Outcome("rejected", f"rejected-queue-{word}", message, retry_us)
    return None


def _late(cell: Cell, slo: SloClass, terms: Terms) -> Outcome | None:
    """Why the forecast does not meet the request's deadline or its class's target."""
    seen = terms.forecast
    if seen is None:
        return None
    if terms.deadline_us and seen.total_us > terms.deadline_us:
        late_us = seen.total_us - terms.deadline_us
        # the queue's work is served in its own time: waiting helps by as much as one waits, and no more than the queue is long
        helps = seen.service_us <= terms.deadline_us
        message = (
            f"predicted {seen.wait_us / 1000:.0f} ms of queue, {seen.start_us / 1000:.0f} ms of prefill and "
            f"{seen.decode_us / 1000:.0f} ms of decode exceed the {terms.deadline_us / 1000:.1f} ms left; give a later deadline or a smaller max_tokens"
        )
        return Outcome("deadline", "rejected-deadline", message, bounded(late_us) if helps else 0)
    likely_us = seen.ttft_us * cell.errors["ttft"].headroom
    if slo.on_overload != "queue" and slo.ttft_ms and likely_us > slo.ttft_ms * 1000:
        if seen.alone_us > slo.ttft_ms * 1000:
            return None  # the prompt alone takes longer: that is not overload
        message = (
            f"predicted time to first token {seen.ttft_us / 1000:.0f} ms (likely below {likely_us / 1000:.0f} ms) "
            f"misses the {slo.ttft_ms:g} ms of SLO class {slo.name}"
        )
        return Outcome("rejected", "rejected-overload", message, bounded(likely_us - slo.ttft_ms * 1000))
    return None


def _degrade(cell: Cell, event: Submitted, slo: SloClass, terms: Terms) -> Terms | None:
    """Less than was asked for, where that helps: another pool, then fewer tokens; None when neither does."""
    said: list[str] = []
    if slo.degrade_pool and slo.degrade_pool != terms.pool and cell.fleet.accepting(slo.degrade_pool):
        terms.pool = slo.degrade_pool
        said.append(f"pool={terms.pool}")
        terms.forecast = forecast(cell, _ask(cell, event, terms))
        if _late(cell, slo, terms) is None:
            terms.degraded = said[0]
            _size(cell, event, terms)
            return terms
        terms.pool = slo.pool
        said.clear()
    if slo.degrade_max_tokens and slo.degrade_max_tokens < terms.max_tokens:
        terms.max_tokens = int(slo.degrade_max_tokens)
        said.append(f"max_tokens={terms.max_tokens}")
        terms.forecast = seen = forecast(cell, _ask(cell, event, terms))
        too_late = terms.deadline_us and seen is not None and seen.total_us > terms.deadline_us
        if seen is not None and not too_late and seen.ttft_us <= DEGRADED_PATIENCE * slo.ttft_ms * 1000:
            terms.degraded = " ".join(said)
            _size(cell, event, terms)
            return terms
    return None
