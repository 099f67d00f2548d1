"""When a request would start, have its first token, and end, if it were taken on now.

Queue wait: the worker time that is served before it (load.py) in units of the mean request is a number of sequences that
must end first; when they will is read off those that run (rates.py). Prefill and decode: the workers' cost model. Both
are held against what happens, and corrected by it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits.learn import arriving_tokens, overtaken_us
from octavo_scheduler.limits.rates import PoolRates, prefill_us
from octavo_scheduler.limits.starting import start_us
from octavo_scheduler.policies.joining import beside
from octavo_scheduler.policies.turns import prefill_turn
from octavo_scheduler.request import Forecast, Request


@dataclass(frozen=True, slots=True)
class Ask:
    """What a forecast needs of a newcomer."""

    tenant: str
    priority: int
    pool: str
    prompt: array[int]
    keys: Items[bytes]
    output_tokens: float  # expected, of one choice
    choices: int = 1
    slo_class: str = ""


def claim_us(cell: Cell, pool: str, prefill_tokens: float, output_tokens: float, choices: int) -> float:
    """Worker time that a request of this size takes; 0 without a worker."""
    rates = cell.rates.of(cell.fleet, pool, cell.now_us)
    if rates is None:
        return 0.0
    mix = cell.rates.mix
    if not mix.seen:
        mix.observe(int(prefill_tokens), int(prefill_tokens), output_tokens)
        mix.seen = 0  # the first admission is the first that counts
    first_us = rates.work_us(prefill_tokens, output_tokens, mix)
    if choices == 1:
        return first_us
    return first_us + (choices - 1) * rates.work_us(0, output_tokens, mix)


def forecast(cell: Cell, ask: Ask) -> Forecast | None:
    """None: no worker of the pool accepts."""
    rates = cell.rates.of(cell.fleet, ask.pool, cell.now_us)
    if rates is None:
        return None
    worker, cached = _likeliest(rates, ask.keys)
    prefill_tokens = max(1, len(ask.prompt) - cached)
    gpu_us = claim_us(cell, ask.pool, prefill_tokens, ask.output_tokens, ask.choices)
    waits = _waits(cell, rates, ask)
    mix, policy = cell.rates.mix, cell.policy
    if waits:
        raw_wait_us = _wait_us(cell, rates, ask, gpu_us)
        batch = rates.batch(mix)
        context = batch * (mix.prompt + 0.5 * mix.output)
        half_step_us = 0.5 * rates.decode_step_us(batch, mix)
        budget = worker.pace.budget
        raw_start_us = half_step_us + prefill_us(worker.costs, prefill_tokens, 0, batch, context, budget)
        factor = cell.busy_correction.factor
    else:
        raw_wait_us = 0.0
        turn, overtaken_us = _turn(cell, worker, ask, prefill_tokens)
        raw_start_us = start_us(
            worker,
            prefill_tokens,
            policy,
            cell.now_us,
            turn,
            arriving=arriving_tokens(cell, rates.workers),
            overtaken_us=overtaken_us,
        )
        factor = cell.start_correction.factor(prefill_tokens)
        batch = len(worker.sequences) + ask.choices
    # beside those that run now, prompts that come are prefilled too: the mean of what was observed has them
    step_us = rates.busy_step_us(batch, mix) if waits else max(worker.costs.step_us, rates.decode_step_us(batch, mix))
    return Forecast(
        wait_us=raw_wait_us * cell.wait_correction.factor,
        start_us=raw_start_us * factor,
        decode_us=max(0.0, ask.output_tokens - 1) * step_us,
        raw_wait_us=raw_wait_us,
        raw_start_us=raw_start_us,
        gpu_us=gpu_us,
        alone_us=prefill_us(worker.costs, prefill_tokens, 0, 0, 0, policy.budget_alone),
    )


def _turn(cell: Cell, worker: Worker, ask: Ask, prefill_tokens: int) -> tuple[int, float]:
    """The turn that its prefill would get there now, and for how long what arrives would overtake it."""
    now_us = cell.now_us
    probe = Request("", ask.tenant, ask.prompt, [], b"", -1, 1, now_us, now_us, ask.priority, ask.slo_class)
    alone_us = worker.costs.predict_prefill_us(prefill_tokens, cell.policy.budget_alone)
    others = beside(cell, worker, ask.tenant)
    order, number = cell.order_of(ask.slo_class), cell.next_number + 1
    turn = prefill_turn(order, cell.outlook, probe, alone_us, others, now_us, number)
    return turn, overtaken_us(cell, worker, ask.slo_class, alone_us, others)


def idle_service_us(cell: Cell, pool: str, prompt_tokens: int, output_tokens: float) -> float:
    """What a request takes at least: alone on a worker, from admission to end, nothing cached; 0 without a worker."""
    rates = cell.rates.of(cell.fleet, pool, cell.now_us)
    if rates is None:
        return 0.0
    costs = min((worker.costs for worker in rates.sampled), key=lambda item: item.fixed_us)
    alone_us = costs.predict_step_us(0, 1, prompt_tokens)
    return prefill_us(costs, prompt_tokens, 0, 0, 0, cell.policy.budget_alone) + max(0.0, output_tokens - 1) * alone_us


def _likeliest(rates: PoolRates, keys: Items[bytes]) -> tuple[Worker, int]:
    """The worker with most of the prompt, of those the least loaded; and the tokens that it has."""
    best, best_cached = rates.sampled[0], -1
    for worker in rates.sampled:
        held = worker.index.match_len(keys, len(keys)) if keys else 0
        cached = held * worker.block_tokens
        if (cached, -len(worker.sequences)) > (best_cached, -len(best.sequences)):
            best, best_cached = worker, cached
    return best, max(0, best_cached)


def _waits(cell: Cell, rates: PoolRates, ask: Ask) -> bool:
    """Whether somebody waits already, or no worker has room."""
    if len(cell.queue):
        return True
    for worker in rates.sampled:
        need = -(-(len(ask.prompt) + int(ask.output_tokens)) // worker.block_tokens)
        if len(worker.free_slots) >= ask.choices and need <= worker.pool.free_blocks:
            return False
    return True


def _wait_us(cell: Cell, rates: PoolRates, ask: Ask, gpu_us: float) -> float:
    mix = cell.rates.mix
    ahead_us = cell.queue.load.ahead_us(
        cell.policy.order_of(ask.slo_class), ask.pool, ask.tenant, ask.priority, gpu_us, cell.policy.tenant_weights
    )
    mean_us = max(1.0, rates.work_us(mix.prefill, mix.output, mix))
    return rates.kth_end_us(1 + ahead_us / mean_us, mix, cell.history, cell.now_us)
