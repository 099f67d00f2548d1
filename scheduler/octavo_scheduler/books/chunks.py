"""Chunking's book: what of the decodes' stalls smaller steps avoid, against what they delay the prompt that is cut.

A prompt that does not fit into one step's budget beside decodes is cut, or, where chunking is switched off or its trial
says so, computed with the budget that holds without decodes. Both are held against what that other way was predicted
to take: the time to the prompt's first token, and what the decodes beside it stand still for in gaps that miss their target.
"""

from __future__ import annotations

from octavo_scheduler.batching import step_policy
from octavo_scheduler.books.book import who_is
from octavo_scheduler.cell import Cell
from octavo_scheduler.events import Reported
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits.starting import start_us
from octavo_scheduler.request import Cut, Sequence

STEPS_WITHOUT_TARGET = 2.0
"""Where no class has a target for gaps, they may be so many times those without a prefill."""


def _stood_us(worker: Worker, step_us: float, decoding: int, context: int) -> float:
    """What one of `decoding` sequences stands still for in a step of this time; nothing in one that meets the target."""
    alone_us = worker.costs.predict_step_us(0, decoding, context)
    limit_us = worker.pace.target_us() or STEPS_WITHOUT_TARGET * alone_us
    return max(0.0, step_us - alone_us) if step_us > limit_us else 0.0


def begin(cell: Cell, worker: Worker, sequence: Sequence) -> None:
    """A prefill was seated: whether it will be cut."""
    budget, tokens, decoding, context = worker.pace.budget, sequence.behind + 1, 0, 0
    if tokens <= budget - len(worker.sequences) or sequence.handoff is not None:
        return
    for other in worker.sequences.values():
        if other.first_token_us >= 0 and not other.stopping:
            decoding += 1
            context += other.computed_len
    if not decoding or tokens <= budget - decoding:
        return
    most, costs = cell.policy.budget_alone, worker.costs
    lacks = sequence.length - sequence.computed_len
    whole_us = start_us(worker, lacks, cell.policy, cell.now_us, sequence.turn, most=most, own=sequence)
    steps = [most] * (tokens // most) + [tokens % most] * bool(tokens % most)
    stood_us = sum(
        _stood_us(worker, costs.predict_step_us(step, decoding, context), decoding, context) for step in steps
    )
    request = sequence.choice.request
    # a target for gaps is kept by cutting: there a trial goes without it, a switch does not
    whole = not cell.uses("chunking", request) and (not worker.pace.target_us() or "chunking" in request.sampled)
    sequence.cut = Cut(whole, whole_us, decoding * stood_us, worker.stalled_us)
    if whole:
        sequence.forecast_start_us = 0.0  # which was that of a prompt that is cut
        worker.pace.whole += 1
        worker.order(step_policy(worker, cell.policy))


def stalled(worker: Worker, report: Reported) -> None:
    """Steps that computed prefills beside decodes: what those stood still for, over all."""
    if report.decode_seqs and report.prefill_tokens and report.steps:
        context = sum(report.computed_len)
        stood_us = _stood_us(worker, report.wall_us / report.steps, report.decode_seqs, context)
        worker.stalled_us += report.steps * report.decode_seqs * stood_us


def first_token(cell: Cell, worker: Worker, sequence: Sequence) -> None:
    """The prefill is over: what cutting it was worth, or what it would have been."""
    cut, request = sequence.cut, sequence.choice.request
    if cut is None:
        return
    took_us, stall_us = cell.now_us - sequence.admitted_us, worker.stalled_us - cut.stalled_from_us
    end(cell, worker, sequence)
    who = who_is(request)
    avoided_us, delay_us = cut.stall_us - stall_us, took_us - cut.whole_us
    trial = cell.switches.of("chunking", who.length).trial
    trial.observe(not cut.whole, took_us + stall_us, cut.whole_us + cut.stall_us, avoided_us - delay_us)
    if not cut.whole:
        saved_ms, spent_ms = max(0.0, avoided_us) / 1000, max(0.0, delay_us) / 1000
        cell.ledger.book("chunking", who, saved_ms=saved_ms, cost_ms=spent_ms)
        cell.switches.observe("chunking", request, saved_ms, spent_ms)


def end(cell: Cell, worker: Worker, sequence: Sequence) -> None:
    """It is no prefill any more, whatever became of it."""
    if sequence.cut is not None and sequence.cut.whole:
        worker.pace.whole -= 1
        worker.order(step_policy(worker, cell.policy))
    sequence.cut = None
