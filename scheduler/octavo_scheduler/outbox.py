"""What a gateway is still owed, read off the `sent` cursors when its stream is writable: backlog coalesces by itself."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from octavo_scheduler.beams.rule import TokenScore
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import CancelAnswer, Gateway
from octavo_scheduler.lifecycle import end_delivery
from octavo_scheduler.request import Choice, Cost, Delivery, Outcome, Phase, Request
from octavo_scheduler.token_runs import TokenRuns

MAX_TOKENS_PER_MESSAGE = 65_536
LOGPROB_WEIGHT = 4
"""A token's logprob, and each alternative, takes as many bytes of the 4 MB message as this many bare tokens."""


@dataclass(slots=True)
class TokensUpdate:
    index: int
    start: int  # position of the first token among the output tokens
    tokens: array[int]
    logprobs: list[bytes]
    told: tuple[TokenScore, ...] = ()  # instead of logprobs, of a beam


@dataclass(slots=True)
class ChoiceEnded:
    index: int
    reason: str
    tokens: int
    stop_token: int
    score: float | None = None  # of a beam
    sum_logprob: float | None = None


@dataclass(slots=True)
class Times:
    """Durations in microseconds on the scheduler's clock, and what the worker measured."""

    queue_us: int = 0
    kv_load_us: int = 0
    worker_wait_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    scheduler_us: int = 0
    preemptions: int = 0
    attempts: int = 1
    first_token_us: int = 0
    retry_us: int = 0
    sample_us: int = 0
    dispatch_us: int = 0
    report_us: int = 0


@dataclass(slots=True)
class Update:
    """What changed for one request since the last message; at most one terminal per delivery."""

    request_id: str
    accepted: bool = False
    attached_to: Request | None = None
    tokens: list[TokensUpdate] = field(default_factory=list)
    ended: list[ChoiceEnded] = field(default_factory=list)
    finished: Outcome | None = None
    cached_tokens: int = 0
    cached_by_tier: dict[str, int] = field(default_factory=dict)
    blended_tokens: int = 0
    times: Times | None = None
    cost: Cost | None = None
    first_token_us: int = -1  # when the request's first token was reported; set while a choice's first token is owed
    cancel: CancelAnswer | None = None
    pause: str | None = None  # keep, offload, drop, later; empty: unknown request
    attempt: int = 1
    max_tokens: int = 0
    degraded: str = ""


def collect(
    cell: Cell, gateway: Gateway, runs: TokenRuns | None = None, max_tokens: int = MAX_TOKENS_PER_MESSAGE
) -> list[Update]:
    """The next message's updates, about `max_tokens` tokens at most; advances the cursors.

    New tokens of a request that is known to owe nothing else go into `runs`, when there are some, instead of an update. Within that
    budget the cursors end up the same with and without. No update and no run: nothing is owed.
    """
    updates: list[Update] = []
    left = max_tokens
    if runs is not None:
        left -= _fill_runs(gateway, runs, left)
    # a snapshot: taking the first key of a dict again and again, and deleting it, is quadratic
    for delivery in list(gateway.dirty):
        if left <= 0:
            break
        update = Update(delivery.label)
        left = _fill(delivery, update, left)
        if runs is not None and delivery.plain is None:
            _look_for_plain(delivery, runs)
        if left > 0 or delivery.finished_sent:
            del gateway.dirty[delivery]
        if update.accepted or update.tokens or update.ended or update.finished:
            updates.append(update)
        if delivery.finished_sent:
            end_delivery(cell, gateway, delivery)
    for label, answer in gateway.cancel_results:
        updates.append(Update(label, cancel=answer))
    gateway.cancel_results = []
    updates += [Update(label, pause=decision) for label, decision in gateway.pause_results]
    gateway.pause_results = []
    return updates


def _fill_runs(gateway: Gateway, runs: TokenRuns, left: int) -> int:
    """Puts what plain deliveries are owed into the runs; returns how many tokens that is.

    Nearly every token leaves here, and each object on its way is a miss of the CPU's cache.
    """
    told = 0
    done: list[Delivery] = []
    who, starts, counts, tokens = runs.who, runs.starts, runs.counts, runs.tokens
    for delivery in gateway.dirty:
        output = delivery.plain
        if output is None:
            continue
        (start,) = delivery.sent
        end = len(output)
        if told + end - start >= left:
            break
        if end > start:
            told += end - start
            delivery.sent[0] = end
            who.append(delivery.handle)  # runs.add, in line
            starts.append(start)
            counts.append(end - start)
            if end - start == 1:
                tokens.append(output[start])
            else:
                tokens.extend(output[start:end])
        done.append(delivery)
    runs.indexes.extend([0] * (len(who) - len(runs.indexes)))
    if len(done) == len(gateway.dirty):
        gateway.dirty.clear()
    else:
        for delivery in done:
            del gateway.dirty[delivery]
    return told


def _look_for_plain(delivery: Delivery, runs: TokenRuns) -> None:
    """Notes it when from now on only tokens can be owed of it, until its request is touched."""
    request = delivery.request
    handle = runs.handles.get(delivery.label, 0)
    if not handle or request is None or request.outcome is not None or delivery.own_outcome is not None:
        return
    if len(request.choices) != 1 or request.logprobs >= 0 or request.beams is not None or not delivery.accepted_sent:
        return
    choice = request.choices[0]
    if choice.phase is not Phase.DONE and choice.logprobs is None and delivery.sent[0]:
        delivery.plain, delivery.handle = choice.output, handle


def _fill(delivery: Delivery, update: Update, left: int) -> int:
    """Moves what is owed into `update`; returns the tokens left of the message's budget."""
    if delivery.finished_sent:
        return left
    request = delivery.request
    if delivery.own_outcome is not None:
        update.finished = delivery.own_outcome
        delivery.finished_sent = True
        return left
    if request is None:
        raise ValueError(f"delivery {delivery.label} has neither a request nor an outcome")
    if not delivery.accepted_sent:
        delivery.accepted_sent = True
        update.accepted = True
        update.attempt = request.attempts
        update.max_tokens, update.degraded = request.max_tokens, request.degraded
        if delivery.attached:
            update.attached_to = request
            left -= len(request.prompt)
    choices = request.told_choices()
    for choice in choices:
        left -= _fill_choice(delivery, choice, update, max(0, left))
    if request.outcome is not None and all(delivery.sent[choice.index] >= len(choice.output) for choice in choices):
        update.finished = request.outcome
        update.cached_tokens = max(0, request.cached_tokens)
        update.cached_by_tier = request.cached_by_tier
        update.blended_tokens = request.blended_tokens
        update.times = times_of(request)
        update.cost = request.cost
        if request.told_device_us < 0:
            request.told_device_us = request.cost.device_us
        delivery.finished_sent = True
    return left


def _fill_choice(delivery: Delivery, choice: Choice, update: Update, limit: int) -> int:
    start = delivery.sent[choice.index]
    # rounded up, so that a choice that was cut has always used up the limit
    weight = 1 if choice.request.logprobs < 0 else LOGPROB_WEIGHT + LOGPROB_WEIGHT * max(0, choice.request.logprobs)
    end = min(len(choice.output), start + -(-limit // weight))
    if end > start:
        logprobs = choice.logprobs[start:end] if choice.logprobs is not None else []
        told = choice.hypothesis.told[start:end] if choice.hypothesis is not None else ()
        update.tokens.append(TokensUpdate(choice.index, start, choice.output[start:end], logprobs, told))
        delivery.sent[choice.index] = end
        if not start:
            update.first_token_us = choice.request.first_token_us
    ended = choice.phase is Phase.DONE and choice.finish_reason
    # >=: a stop string may have cut the output below what was sent
    if ended and not delivery.finish_sent[choice.index] and max(start, end) >= len(choice.output):
        delivery.finish_sent[choice.index] = True
        ended_as = ChoiceEnded(choice.index, choice.finish_reason, len(choice.output), choice.stop_token)
        if choice.hypothesis is not None:
            ended_as.score, ended_as.sum_logprob = choice.hypothesis.score, choice.hypothesis.sum_logprob
        update.ended.append(ended_as)
    return max(0, end - start) * weight


def times_of(request: Request) -> Times:
    """The durations that travel to the client."""
    first_us = request.first_token_us
    return Times(
        queue_us=max(0, (request.admitted_us if request.admitted_us >= 0 else request.ended_us) - request.submitted_us),
        kv_load_us=request.kv_load_us,
        worker_wait_us=request.worker_wait_us,
        prefill_us=request.prefill_us,
        decode_us=max(0, request.ended_us - first_us) if first_us >= 0 else 0,
        scheduler_us=max(0, request.ended_us - request.submitted_us),
        preemptions=request.preemptions,
        attempts=request.attempts,
        first_token_us=max(0, first_us - request.submitted_us) if first_us >= 0 else 0,
        retry_us=max(0, request.seated_us - request.admitted_us),
        sample_us=request.sample_us,
        dispatch_us=request.dispatch_us,
        report_us=request.report_us,
    )
