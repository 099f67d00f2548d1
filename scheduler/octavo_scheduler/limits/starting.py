"""From an admission on a worker to its first token, step by step as `octavo/step.py` will compose them.

The step under way holds what had joined before the last report of one, since a worker reports as the next step begins; what
was admitted after that joins with the newcomer. Then come steps with the prefills whose turn is before the newcomer's; the last of
its own has room for what comes after it, which is either there already or expected to arrive by then. What arrives while its turn
is still before the newcomer's is computed first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from octavo_scheduler.costs import StepCosts
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits.rates import prefill_us
from octavo_scheduler.policy import Policy
from octavo_scheduler.request import Sequence

MOST_BUSY = 0.9
"""Of a worker's time, that prefills which overtake another are expected to take."""
OVERDUE_SHARE = 0.5
"""A step of decodes that should be over: as reports may cover several, another one is under way, and half of it is left."""


@dataclass(slots=True)
class _Prefill:
    turn: int
    tokens: int
    length: int
    admitted_us: int


@dataclass(slots=True)
class _Ahead:
    """What a worker has to do. `decoding` sequences have `context` tokens in all."""

    decoding: int = 0
    context: int = 0
    prefills: list[_Prefill] = field(default_factory=list)  # that can be computed now or with the next step
    first_us: int = -1  # the first admission of all
    stepping: bool = False  # something had joined before the last report


def start_us(
    worker: Worker,
    prefill_tokens: float,
    policy: Policy,
    now_us: int,
    turn: int,
    *,
    most: int = 0,
    own: Sequence | None = None,
    arriving: float = 0.0,
    overtaken_us: float = 0.0,
) -> float:
    """Microseconds from an admission on `worker` now to its first token, if its turn is `turn`.

    most: tokens of each step, if any, instead of what the worker's budget is; own: the newcomer itself, if it is seated there already;
    arriving: tokens to prefill that are expected to come to this worker per microsecond; overtaken_us: for so long they go before it.
    """
    costs, pace, alone = worker.costs, worker.pace, most or worker.pace.alone or policy.budget_alone
    ahead = _read(worker, own)
    left_us = _finish_step(worker, ahead, *pace.ordered(policy.budget_alone), now_us)
    mine = prefill_tokens + sum(item.tokens for item in ahead.prefills if item.turn <= turn)
    behind = sum(item.tokens for item in ahead.prefills if item.turn > turn)
    if not ahead.decoding and mine > alone:  # whoever is done with in that step decodes in the next
        left_us += costs.predict_step_us(alone, 0, alone)
        mine -= alone
        room = alone
        for item in sorted(ahead.prefills, key=_turn):
            if item.turn <= turn and item.tokens <= room:
                room -= item.tokens
                ahead.decoding += 1
                ahead.context += item.length
    budget = most or (pace.budget if ahead.decoding else alone)
    start_us = left_us + _own_steps(costs, ahead, mine, behind, budget, left_us, arriving)
    if not overtaken_us:
        return start_us
    busy = min(MOST_BUSY, arriving * costs.prefill_token_us)
    return min(start_us / (1 - busy), start_us + busy * overtaken_us)


def _own_steps(
    costs: StepCosts, ahead: _Ahead, mine: float, behind: float, budget: int, from_us: float, arriving: float
) -> float:
    """Steps of `budget` tokens until `mine` are computed; the last is filled by `behind`, and by what arrives until it begins."""
    room = max(1.0, budget - ahead.decoding)
    steps = max(1, math.ceil(mine / room))
    full_us = prefill_us(costs, room, 0, ahead.decoding, ahead.context, budget)
    coming = behind + arriving * (from_us + (steps - 1) * full_us)
    leftover = steps * room - mine
    filled = leftover * (1 - math.exp(-coming / leftover)) if leftover > 0 and not behind else min(leftover, coming)
    step_us = costs.predict_step_us(0, ahead.decoding, ahead.context)
    own_context_us = costs.context_token_us * mine * (steps + 1) / 2  # each chunk attends to those before it
    return steps * step_us + (mine + filled) * costs.prefill_token_us + own_context_us


def _turn(item: _Prefill) -> int:
    return item.turn


def _read(worker: Worker, own: Sequence | None) -> _Ahead:
    ahead = _Ahead()
    stepped_us = worker.stepped_us
    for sequence in worker.sequences.values():
        if sequence.stopping or sequence is own:
            continue
        if sequence.group and not sequence.leads:
            continue  # its prompt is computed by the leader
        computed = sequence.computed_len
        if sequence.wait_xfer and computed >= sequence.join_base:
            continue  # until its load has ended
        tokens = sequence.length - computed - sequence.join_tokens
        if tokens > 1:
            ahead.prefills.append(_Prefill(sequence.turn, tokens, sequence.length, sequence.admitted_us))
        else:
            ahead.decoding += 1
            ahead.context += computed
        if sequence.admitted_us < stepped_us:
            ahead.stepping = True
        if ahead.first_us < 0 or sequence.admitted_us < ahead.first_us:
            ahead.first_us = sequence.admitted_us
    return ahead


def _finish_step(worker: Worker, ahead: _Ahead, budget: int, alone: int, now_us: int) -> float:
    """What is left of the step under way, whose tokens are taken out of `ahead`."""
    if ahead.first_us < 0:
        return 0.0
    costs, decoding = worker.costs, ahead.decoding
    # an idle worker began with the first that came
    began_us = worker.stepped_us if ahead.stepping else ahead.first_us
    latest_us = began_us - 1 if ahead.stepping else began_us
    room = max(1, budget - decoding) if decoding else alone
    computed = 0
    left: list[_Prefill] = []
    for item in sorted(ahead.prefills, key=_turn):
        if item.admitted_us <= latest_us and room > 0:
            chunk = min(room, item.tokens)
            room -= chunk
            computed += chunk
            item.tokens -= chunk
            if not item.tokens:
                ahead.decoding += 1
                ahead.context += item.length
                continue
        left.append(item)
    if not (computed or decoding):
        return 0.0
    ahead.prefills = left
    step_us = costs.predict_step_us(computed, decoding, ahead.context)
    since_us = now_us - began_us
    return max(step_us - since_us, 0.0) if computed or since_us < step_us else OVERDUE_SHARE * step_us
