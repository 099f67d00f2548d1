"""What gateways ask for: submit, attach, cancel, stop a choice; and the one place where outcomes are decided."""

from __future__ import annotations

from array import array

from octavo_scheduler.admission import can_ever_hold, least_blocks
from octavo_scheduler.beams.search import BeamSearch
from octavo_scheduler.books.trial import sampled_for
from octavo_scheduler.cell import Cell
from octavo_scheduler.costing import accrue_all, note_untold
from octavo_scheduler.events import (
    AttachRequested,
    Cancelled,
    ChoiceStart,
    ChoiceStopped,
    GatewayJoined,
    GatewayLost,
    Paused,
    Submitted,
)
from octavo_scheduler.facts import note_end, note_rejected, note_wait
from octavo_scheduler.fleet import CancelAnswer, Gateway
from octavo_scheduler.limits import hopeless, learn
from octavo_scheduler.limits.door import Terms, knock
from octavo_scheduler.moves import copies, handoff, pauses
from octavo_scheduler.policy import SECOND_US
from octavo_scheduler.preloads import blend, build
from octavo_scheduler.preloads.quota import pin_refusal
from octavo_scheduler.request import CancelState, Choice, Delivery, Outcome, Phase, Request
from octavo_scheduler.residency import settle, stop
from octavo_scheduler.slo import SloClass, deadline_outcome, resolve

DETACHING = ("client_disconnect", "slow_client")
"""Cancel reasons that concern one client: with another one attached, only the delivery ends."""

_COUNTER = {
    "finished": "requests_finished",
    "cancelled": "requests_cancelled",
    "failed": "requests_failed",
    "rejected": "requests_rejected",
    "deadline": "requests_deadline",
}


def join_gateway(cell: Cell, event: GatewayJoined) -> None:
    """A gateway's stream opened."""
    cell.fleet.gateways[event.gateway] = Gateway(event.gateway, event.gateway_id)


def lose_gateway(cell: Cell, event: GatewayLost) -> None:
    """Its requests run on for the orphan grace, unless another gateway delivers them too."""
    gateway = cell.fleet.gateways.pop(event.gateway, None)
    if gateway is None:
        return
    for delivery in list(gateway.deliveries.values()):
        end_delivery(cell, gateway, delivery)


def submit(cell: Cell, event: Submitted) -> None:
    """Attach to what is known under this id, refuse, or take on a new request: it is the cell's `newcomer` then."""
    gateway = cell.fleet.gateways.get(event.gateway)
    if gateway is None:
        return
    cell.counters["requests_submitted"] += 1
    known = cell.registry.find(event.tenant, event.request_id, event.idempotency_key)
    if known is not None:
        if known.body_hash != event.body_hash:
            what = "idempotency key" if event.idempotency_key else "request id"
            message = f"this {what} is in use for another request body; choose a new one"
            refuse(cell, gateway, event.request_id, Outcome("already_exists", "already_exists", message))
            return
        if known.outcome is None or known.outcome.outcome == "finished":
            attach(cell, gateway, event.request_id, known, event.choices if event.attempt > 1 else [])
            return
    default = cell.policy.default_slo_class
    slo = cell.classes.get(event.slo_class or default) or resolve(event.slo_class, default, cell.classes)
    privileged = event.attempt > 1 and _privileged(cell, event)
    terms: Terms | Outcome | None = None
    if slo is None or not _is_plain(cell, event, slo):
        terms = _refusal(cell, event, slo, privileged)
    terms = terms or knock(cell, event, slo, privileged)
    if isinstance(terms, Outcome):
        note_rejected(cell, event, terms)
        refuse(cell, gateway, event.request_id, terms)
        return
    request = _new_request(cell, event, terms)
    cell.registry.add(request)
    cell.tenant_asked(request.tenant)
    cell.tenants.open(request, terms.charged_tokens, cell.now_us)
    if terms.degraded:
        cell.counters["requests_degraded"] += 1
    emitted = [0] if len(request.choices) == 1 and not request.work_done else [len(c.output) for c in request.choices]
    if request.beams is not None:  # its search begins anew, and what it comes to is told from there
        emitted = [len(start.emitted) for start in event.choices]
    delivery = _deliver(cell, gateway, event.request_id, request, emitted)
    if request.deadline_us:
        cell.timers.at(request.deadline_us, "deadline", request)
    if request.work_done or any([start.finished for start in event.choices]):
        _go_on(cell, event, request, delivery)
    if event.resumes:
        pauses.resume(cell, request, event.resumes)
    if request.outcome is None:
        cell.newcomer = request
        if request.deadline_us:
            hopeless.watch(cell, request)
        if not cell.fleet.workers:
            cell.timers.at(cell.now_us + cell.policy.no_worker_timeout_us, "no_worker")


def _go_on(cell: Cell, event: Submitted, request: Request, delivery: Delivery) -> None:
    """A resubmit may bring choices that have all their tokens, or have ended."""
    delivery.finish_sent = [bool(choice.finished) for choice in event.choices]
    for choice in request.choices if request.beams is None else ():
        if len(choice.output) >= request.max_tokens and choice.phase is not Phase.DONE:
            finish_choice(cell, choice, "length")
    if not request.waiting_choices():
        _finish_if_done(cell, request)


def _is_plain(cell: Cell, event: Submitted, slo: SloClass) -> bool:
    """Whether `_refusal` has nothing to say, as of nearly every request."""
    prompt = len(event.prompt)
    return (
        prompt > 0 < event.max_tokens
        and len(event.choices) == 1
        and prompt + event.max_tokens - 1 <= cell.fleet.most_positions(slo.pool)  # 0 without a worker
        and (not event.slo_class or event.slo_class in cell.classes)
        and not (cell.draining or event.cache.pin or event.choices[0].emitted)
    )


def _refusal(cell: Cell, event: Submitted, slo: SloClass | None, privileged: bool) -> Outcome | None:
    """Why a new request is refused at once."""
    invalid = _invalid(cell, event, slo)
    if invalid:
        return Outcome("rejected", "rejected-invalid", invalid)
    if cell.draining:
        return Outcome("rejected", "rejected-draining", "the scheduler is draining; retry", SECOND_US)
    fleet = cell.fleet
    if not (privileged or fleet.accepting()):
        return Outcome("rejected", "rejected-not-ready", "no worker is ready; retry", SECOND_US)
    pool = slo.pool if slo is not None else ""
    prompt, choices = len(event.prompt), len(event.choices)
    if choices > 1 or prompt + event.max_tokens - 1 > fleet.most_positions(pool):  # else some worker has room for it
        never = never_fits(cell, prompt, event.max_tokens, choices, event.beams is not None, pool=pool)
        if never:
            return Outcome("rejected", "rejected-never-fits", never)
    unpinned = pin_refusal(cell, event) if event.cache.pin else ""
    return Outcome("rejected", "rejected-pin-quota", unpinned) if unpinned else None


def _privileged(cell: Cell, event: Submitted) -> bool:
    """Of a resubmit: the cell recovers, or the stream has begun. It was taken on before."""
    return cell.in_grace or any(choice.emitted for choice in event.choices)


def _invalid(cell: Cell, event: Submitted, slo: SloClass | None) -> str:
    """What the caller must change, naming the field."""
    prompt = len(event.prompt)
    if not prompt:
        return "prompt_tokens: empty; give at least one token"
    if event.max_tokens < 1:
        return f"max_tokens: {event.max_tokens} is too small; give at least 1"
    if not 1 <= len(event.choices) <= cell.policy.max_num_seqs:
        name = "n" if event.beams is None else "beam_width"
        return f"{name}: {len(event.choices)} must lie in [1, {cell.policy.max_num_seqs}] (max_num_seqs)"
    if slo is None:
        return f"slo_class: {event.slo_class!r} is unknown; use one of {', '.join(sorted(cell.classes))}"
    for choice in event.choices:
        if choice.emitted and len(choice.emitted) > event.max_tokens:
            return "choices: more emitted tokens than max_tokens"
    longest = cell.fleet.longest_context()
    if longest and prompt + event.max_tokens > longest:
        return f"max_tokens: prompt {prompt} + max_tokens {event.max_tokens} exceed the context of {longest}"
    return ""


def never_fits(
    cell: Cell, prompt_tokens: int, max_tokens: int, choices: int, beams: bool = False, *, pool: str = ""
) -> str:
    """Why a request of this size can run on no worker of its pool; empty when it can, or when there is none."""
    shapes = cell.fleet.shapes(pool)
    if not shapes:
        return ""
    for shape in shapes:
        if can_ever_hold(shape, prompt_tokens, max_tokens, choices, beams):
            return ""
    usable, seqs = max(shape.usable_blocks for shape in shapes), max(shape.max_seqs for shape in shapes)
    need = least_blocks(prompt_tokens, max_tokens, choices, shapes[0].block_tokens, beams)
    of_pool = f" of pool {pool!r}" if pool else ""
    if choices > seqs:
        what = f"beam_width: {choices} beams" if beams else f"n: {choices} choices"
        return f"{what} never fit the {seqs} sequences of a worker{of_pool}; ask for fewer"
    return (
        f"max_tokens: the request needs {need} KV blocks and the largest KV pool{of_pool} has {usable}; "
        f"shorten the prompt or max_tokens{', or lower beam_width' if beams else ''}"
    )


def _new_request(cell: Cell, event: Submitted, terms: Terms) -> Request:
    now = cell.now_us
    # keys of a namespace that was rotated meanwhile must neither be found nor left behind
    policy, generations = cell.policy, cell.caching.generations
    stale = event.cache.generation != (generations.get(event.tenant, 0) if generations else 0)
    blended = policy.blending and not stale and not event.cache_off and blend.wanted(event)
    keyless = event.cache_off or stale or blended
    request = Request(  # by place: names are looked up one by one, among as many as it has
        event.request_id,
        event.tenant,
        event.prompt,
        [] if keyless else event.prompt_keys,
        event.sampling,
        event.logprobs,
        terms.max_tokens,
        now - event.age_us,
        now,
        event.priority,
        event.slo_class or policy.default_slo_class,
        now + terms.deadline_us if terms.deadline_us else 0,
        event.traceparent,
        event.idempotency_key,
        event.body_hash,
        event.gateway_state,
        b"" if keyless else event.namespace_root,
    )
    request.cache, request.namespace_tag, request.waiting_since_us = event.cache, event.namespace_tag, now
    request.pool, request.degraded, request.blended = terms.pool, terms.degraded, blended
    request.claimed_kv_tokens, request.claimed_gpu_us = terms.kv_tokens, terms.gpu_us
    request.forecast, request.foreseen = terms.forecast, terms.foreseen
    if policy.counterfactual_share > 0:
        request.sampled = sampled_for(event.request_id, policy.counterfactual_share)
    if event.attempt > 1:
        request.resubmitted, request.attempts = cell.in_grace, event.attempt
    if len(event.choices) == 1 and not terms.degraded:
        request.sized_for = cell.fleet.version  # never_fits was asked for just this size
    if event.pause_tool or event.pause_expected_us:
        request.pause = (event.pause_tool, event.pause_expected_us)
    if event.beams is not None:
        request.beams = BeamSearch(event.beams, len(event.choices))
        request.choices = [Choice(request, at, start.seed, array("I")) for at, start in enumerate(event.choices)]
        return request
    for index, start in enumerate(event.choices):
        choice = Choice(request, index, start.seed, start.emitted[:])
        if event.logprobs >= 0:
            choice.logprobs = [b""] * len(choice.output)
        if start.finished:
            choice.phase, choice.finish_reason = Phase.DONE, start.finished
        if choice.output:
            request.work_done = True
        request.choices.append(choice)
    return request


def attach_known(cell: Cell, event: AttachRequested) -> None:
    """Delivers a live or stored request from its first token; an unknown one is not found."""
    gateway = cell.fleet.gateways.get(event.gateway)
    if gateway is None:
        return
    known = cell.registry.find(event.tenant, event.request_id, event.idempotency_key)
    if known is None:
        message = "no live or stored request has this id; it was never seen here, or its result has expired"
        refuse(cell, gateway, event.request_id, Outcome("not_found", "not_found", message))
        return
    attach(cell, gateway, event.request_id, known, [])


def attach(cell: Cell, gateway: Gateway, label: str, request: Request, had: list[ChoiceStart]) -> None:
    """A new delivery from token 0, or, for a resubmit, from what its gateway `had` delivered already."""
    cell.counters["requests_attached"] += 1
    delivery = _deliver(cell, gateway, label, request, [0] * len(request.choices))
    delivery.attached = True
    for choice, start in zip(request.choices, had, strict=False):
        if start.finished and choice.phase is not Phase.DONE and request.beams is None:
            _stop_at(cell, choice, len(start.emitted))  # the stop string was found, its message lost with a stream
        told = len(choice.output) if request.beams is None else len(start.emitted)
        delivery.sent[choice.index] = min(len(start.emitted), told)
        delivery.finish_sent[choice.index] = bool(start.finished)


def _deliver(cell: Cell, gateway: Gateway, label: str, request: Request | None, cursors: list[int]) -> Delivery:
    old = gateway.deliveries.get(label)
    if old is not None:
        gateway.dirty.pop(old, None)
        end_delivery(cell, gateway, old, orphan=old.request is not request)
    delivery = Delivery(gateway.connection, label, request, sent=cursors, finish_sent=[False] * len(cursors))
    gateway.deliveries[label] = delivery
    gateway.dirty[delivery] = None
    cell.effects.dirty_gateways.add(gateway.connection)
    if request is not None:
        request.deliveries.append(delivery)
        request.orphaned_us = -1
    return delivery


def end_delivery(cell: Cell, gateway: Gateway, delivery: Delivery, orphan: bool = True) -> None:
    """The gateway will be sent nothing more of it; a live request without any delivery is an orphan."""
    if gateway.deliveries.get(delivery.label) is delivery:
        del gateway.deliveries[delivery.label]
    request = delivery.request
    if request is None:
        return
    if delivery in request.deliveries:
        request.deliveries.remove(delivery)
    if request.live and not request.deliveries and orphan:
        request.orphaned_us = cell.now_us
        cell.timers.at(cell.now_us + cell.policy.orphan_grace_us, "orphan", request)
    note_untold(cell, request)
    request.retire_if_done()


def refuse(cell: Cell, gateway: Gateway, label: str, outcome: Outcome) -> None:
    """Ends a delivery that never had a request of its own."""
    if outcome.outcome == "rejected":
        cell.counters["requests_rejected"] += 1
    live = gateway.deliveries.get(label)
    delivery = Delivery(gateway.connection, label, None, own_outcome=outcome)
    if live is None:
        gateway.deliveries[label] = delivery
    gateway.dirty[delivery] = None
    cell.effects.dirty_gateways.add(gateway.connection)


def cancel(cell: Cell, event: Cancelled) -> None:
    """Ends a request; answered when its last hold ends. Unknown or finished: answered at once, nothing done."""
    gateway = cell.fleet.gateways.get(event.gateway)
    if gateway is None:
        return
    delivery = gateway.deliveries.get(event.request_id)
    # another gateway's request may be cancelled through this one, another tenant's never
    request = cell.registry.find(event.tenant, event.request_id) if delivery is None else delivery.request
    if request is not None and request.tenant != event.tenant:
        request = None
    if request is None or (request.outcome is not None and request.cancel is None):
        gateway.cancel_results.append((event.request_id, CancelAnswer(False)))
        cell.effects.dirty_gateways.add(event.gateway)
        return
    if delivery is not None and event.reason in DETACHING and len(request.deliveries) > 1 and request.live:
        delivery.own_outcome = Outcome("cancelled", event.reason, "this client detached; another one is attached")
        request.deliveries.remove(delivery)
        delivery.plain = None
        gateway.dirty[delivery] = None
        gateway.cancel_results.append((event.request_id, CancelAnswer(True, "cancelled")))
        cell.effects.dirty_gateways.add(event.gateway)
        return
    cancel_request(cell, request, event.reason, (event.gateway, event.request_id))


def cancel_request(cell: Cell, request: Request, reason: str, waiter: tuple[int, str] | None) -> None:
    """Decides `cancelled` unless the outcome is known; a repeat attaches to the first."""
    if request.cancel is None:
        request.cancel = CancelState(reason, cell.now_us, [])
    if waiter is not None:
        request.cancel.waiters.append(waiter)
    if request.live:
        decide(cell, request, Outcome("cancelled", reason, f"cancelled: {reason}"))


def pause(cell: Cell, event: Paused) -> None:
    """A client pauses after a turn; answered at once with what is done about it."""
    gateway = cell.fleet.gateways.get(event.gateway)
    if gateway is not None:
        gateway.pause_results.append((event.request_id, pauses.announce(cell, event)))
        cell.effects.dirty_gateways.add(event.gateway)


def expire(cell: Cell, request: Request, outcome: Outcome | None = None) -> None:
    """The deadline has passed, or cannot be met any more. What it still holds is waited for as after a cancel, so that
    the trace shows it."""
    if request.cancel is None:
        request.cancel = CancelState("deadline", cell.now_us, [])
    decide(cell, request, outcome or deadline_outcome(request.work_done))


def stop_choice(cell: Cell, event: ChoiceStopped) -> None:
    """The gateway found a stop string: the choice ends at `at_len` tokens, what came after is dropped."""
    gateway = cell.fleet.gateways.get(event.gateway)
    delivery = gateway.deliveries.get(event.request_id) if gateway is not None else None
    request = delivery.request if delivery is not None else None
    if request is None or not request.live or event.index >= len(request.choices) or request.beams is not None:
        return  # nothing of a beam search was told before its end
    choice = request.choices[event.index]
    _stop_at(cell, choice, event.at_len)


def _stop_at(cell: Cell, choice: Choice, at_len: int) -> None:
    """Ends a running choice with `stop` after `at_len` output tokens."""
    request = choice.request
    if choice.phase is Phase.DONE or not request.live or at_len > len(choice.output):
        return
    del choice.output[at_len:]
    if choice.logprobs is not None:
        del choice.logprobs[at_len:]
    finish_choice(cell, choice, "stop")
    if choice.sequence is not None:
        stop(cell, choice.sequence, "finished")
    _finish_if_done(cell, request)
    cell.touch(request)


def finish_choice(cell: Cell, choice: Choice, reason: str, stop_token: int = 0) -> None:
    """A choice ended; a finish that comes while it is being preempted wins."""
    if choice.phase is Phase.DONE:
        return
    choice.end()
    choice.finish_reason = reason
    choice.stop_token = stop_token
    cell.history.observe(choice.request.tenant, len(choice.output), len(choice.request.prompt))


def worker_finished(cell: Cell, choice: Choice, reason: str, stop_token: int, message: str) -> None:
    """A worker's finish: stop, length, or failed, which fails the request alone."""
    request = choice.request
    if choice.phase is Phase.DONE or not request.live:
        return
    if reason == "failed":
        choice.end()
        decide(cell, request, Outcome("failed", "worker-failed", message or "the worker could not compute it"))
        return
    finish_choice(cell, choice, reason, stop_token)
    _finish_if_done(cell, request)
    cell.touch(request)


def _finish_if_done(cell: Cell, request: Request) -> None:
    if request.live and all(choice.phase is Phase.DONE for choice in request.choices):
        decide(cell, request, Outcome("finished"))
    elif request.queued and not request.waiting_choices():
        cell.queue.remove(request)


def decide(cell: Cell, request: Request, outcome: Outcome) -> None:
    """The one outcome of a request, in event order; whatever comes later is a no-op."""
    if request.outcome is not None:
        return
    request.outcome = outcome
    request.ended_us = cell.now_us
    note_wait(cell, request, outcome)
    handoff.end(cell, request, handoff.cause_of(outcome))
    pauses.forget(cell, request)
    cell.queue.remove(request)
    cell.admission_due = True
    reason = "deadline" if outcome.outcome == "deadline" else "cancel"
    accrue_all(request, cell.fleet.workers, cell.now_us)
    for choice in request.choices:
        choice.end()
        if choice.sequence is not None:
            stop(cell, choice.sequence, reason)
    if outcome.outcome != "finished":  # of an answer what goes out may be found again
        copies.abandon_all(cell, request)
    cell.counters[_COUNTER[outcome.outcome]] += 1
    cell.tenants.close(request, cell.now_us)
    learn.from_end(cell, request)
    note_end(cell, request, outcome)
    if cell.caching.book.by_request:
        build.ended(cell, request)
    cell.touch(request)
    if outcome.outcome in ("failed", "rejected"):
        cell.registry.drop(request)  # a retry of the same id starts anew
    elif request.registered:
        cell.registry.store(request, cell.now_us)
    settle(cell, request)
