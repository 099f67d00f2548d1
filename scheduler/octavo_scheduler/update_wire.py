"""What a gateway is owed as messages: most of a step's tokens as columns of numbers, everything else as events."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.packing import RepeatingColumn, pack_u32
from octavo.v1 import scheduler_pb2 as pb

from octavo_scheduler.outbox import Update
from octavo_scheduler.request import Cost
from octavo_scheduler.token_runs import TokenRuns


class UpdateWriter:
    """Writes the updates of one gateway's stream. `runs`: to be filled when they are collected; None: this gateway does not read TokenRuns."""

    def __init__(self, *, runs: bool) -> None:
        self.runs = TokenRuns() if runs else None
        self._who, self._indexes, self._counts = RepeatingColumn(), RepeatingColumn(), RepeatingColumn()

    def write(self, updates: Sequence[Update], now_us: int) -> pb.AttachGatewayResponse | None:
        """One message with all of them and the runs, each request's own events in order; None: there is nothing to tell.

        `now_us` is the core's clock."""
        if not updates and (self.runs is None or not self.runs.who):
            return None
        response = pb.AttachGatewayResponse()
        message = response.events
        message.SetInParent()
        runs = self.runs
        for update in updates:
            handle = runs.handles.get(update.request_id, 0) if runs is not None else 0
            if runs is not None and handle and _plain(update):
                for part in update.tokens:
                    runs.add(handle, part.index, part.start, part.tokens)
                continue
            if runs is not None and update.accepted:
                handle = runs.give(update.request_id)
            write_update(message, update, now_us, handle)
            if runs is not None and update.finished is not None:
                runs.handles.pop(update.request_id, None)
        if runs is not None and runs.who:
            self._write_runs(message.runs, runs)
        return response

    def _write_runs(self, message: pb.TokenRuns, runs: TokenRuns) -> None:
        message.handles = self._who.pack(runs.who)
        message.indexes = self._indexes.pack(runs.indexes)
        message.starts = pack_u32(runs.starts)
        message.counts = self._counts.pack(runs.counts)
        message.tokens = pack_u32(runs.tokens)
        runs.take()


def _plain(update: Update) -> bool:
    """Nothing but tokens behind a choice's first, which says more than its number."""
    if update.accepted or update.ended or update.finished or not update.tokens:
        return False
    return all([part.start and not (part.logprobs or part.told) for part in update.tokens])


def write_update(message: pb.RequestEvents, update: Update, now_us: int, handle: int = 0) -> None:
    """Appends the events of one update, in order; `now_us` is the core's clock."""
    name, add = update.request_id, message.events.add
    if update.accepted:
        accepted = add(request_id=name).accepted
        accepted.attempt, accepted.max_tokens, accepted.degraded = update.attempt, update.max_tokens, update.degraded
        accepted.handle = handle
        if update.attached_to is not None:
            accepted.attached = True
            accepted.gateway_state = update.attached_to.gateway_state
            accepted.prompt_tokens = pack_u32(update.attached_to.prompt)
    for part in update.tokens:
        tokens = add(request_id=name).tokens
        tokens.index, tokens.tokens = part.index, pack_u32(part.tokens)
        setattr(tokens, "from", part.start)
        if not part.start and update.first_token_us >= 0:
            tokens.relay_us = max(0, now_us - update.first_token_us)
        for item in part.logprobs:
            tokens.logprobs.add().MergeFromString(item)
        for score in part.told:
            tokens.logprobs.add(
                token=score.token,
                logprob=score.logprob,
                top_tokens=pack_u32(score.top_tokens),
                top_logprobs=score.top_logprobs,
            )
    for end in update.ended:
        choice = add(request_id=name).choice_finished
        choice.index, choice.reason, choice.tokens, choice.stop_token = (
            end.index,
            end.reason,
            end.tokens,
            end.stop_token,
        )
        if end.score is not None and end.sum_logprob is not None:
            choice.score, choice.cumulative_logprob = end.score, end.sum_logprob
    if update.finished is not None:
        _fill_finished(add(request_id=name).finished, update)
    if update.pause is not None:
        add(request_id=name).pause_result.decision = update.pause
    if update.cancel is not None:
        answer = update.cancel
        result = pb.CancelResult(
            found=answer.found,
            outcome=answer.outcome,
            last_step=answer.last_step,
            blocks_freed=answer.blocks_freed,
            latency_us=answer.latency_us,
            cost=write_cost(answer.cost) if answer.cost is not None else None,
        )
        add(request_id=name).cancel_result.CopyFrom(result)


def _fill_finished(finished: pb.RequestFinished, update: Update) -> None:
    outcome = update.finished
    if outcome is None:
        raise ValueError("the update has no outcome")
    finished.outcome, finished.reason, finished.message = outcome.outcome, outcome.reason, outcome.message
    finished.retry_after_us, finished.cached_tokens = outcome.retry_after_us, update.cached_tokens
    finished.cached_by_tier.update(update.cached_by_tier)
    finished.blended_tokens = update.blended_tokens
    if update.cost is not None:
        finished.cost.CopyFrom(write_cost(update.cost))
    times = update.times
    if times is not None:
        finished.times.CopyFrom(
            pb.RequestTimes(
                queue_us=times.queue_us,
                kv_load_us=times.kv_load_us,
                worker_wait_us=times.worker_wait_us,
                prefill_us=times.prefill_us,
                decode_us=times.decode_us,
                scheduler_us=times.scheduler_us,
                preemptions=times.preemptions,
                attempts=times.attempts,
                first_token_us=times.first_token_us,
                retry_us=times.retry_us,
                sample_us=times.sample_us,
                dispatch_us=times.dispatch_us,
                report_us=times.report_us,
            )
        )


def write_cost(cost: Cost) -> pb.RequestCost:
    """A request's cost."""
    return pb.RequestCost(**cost.figures())
