"""What a pool's workers can do now, as few numbers: mean costs, slots, memory, and when those that run will be done.

Read off the workers at most once in a while of the core's time, so that a forecast costs the same however many there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_scheduler.costs import StepCosts
from octavo_scheduler.fleet import Fleet, Worker
from octavo_scheduler.history import OutputHistory
from octavo_scheduler.request import Sequence

FRESH_US = 20_000
SAMPLED_WORKERS = 8
"""Of a large pool, so many workers stand for all."""
MEAN_RATE = 0.02


@dataclass(slots=True)
class Mix:
    """Running means over the requests that were admitted: tokens to prefill, context at the end, output."""

    prefill: float = 0.0
    prompt: float = 0.0
    output: float = 0.0
    seen: int = 0

    def observe(self, prefill: int, prompt: int, output: float) -> None:
        """One admission, its output as expected then."""
        self.seen += 1
        rate = max(MEAN_RATE, 1 / self.seen)
        self.prefill += rate * (prefill - self.prefill)
        self.prompt += rate * (prompt - self.prompt)
        self.output += rate * (output - self.output)


@dataclass(slots=True)
class PoolRates:
    """One pool. Means over its workers; durations in microseconds."""

    workers: int
    sampled: list[Worker]
    max_seqs: float
    pool_tokens: float
    fixed_us: float
    prefill_token_us: float
    decode_seq_us: float
    context_token_us: float
    read_us: int
    _ends_us: list[float] | None = field(default=None)
    _token_us: float = 0.0  # of one output token on a busy worker

    def batch(self, mix: Mix) -> float:
        """Sequences that run at once on a worker when enough wait: slots or memory, whichever ends first."""
        tokens = mix.prompt + 0.5 * mix.output
        return max(1.0, min(self.max_seqs, self.pool_tokens / max(1.0, tokens)))

    def decode_step_us(self, batch: float, mix: Mix) -> float:
        """One step of `batch` decodes in the mix's mean context."""
        context = batch * (mix.prompt + 0.5 * mix.output)
        return self.fixed_us + batch * self.decode_seq_us + context * self.context_token_us

    def busy_step_us(self, batch: float, mix: Mix) -> float:
        """The same on a busy worker: whoever ends is replaced by a prompt that is prefilled beside the others."""
        return self.decode_step_us(batch, mix) + self.prefill_token_us * mix.prefill * batch / max(1.0, mix.output)

    def work_us(self, prefill_tokens: float, output_tokens: float, mix: Mix) -> float:
        """Worker time of a choice on a busy worker: its prefill, and its part of the steps it decodes in."""
        if not self._token_us:  # the mix moves slowly: once per reading is enough
            batch = self.batch(mix)
            self._token_us = self.decode_step_us(batch, mix) / batch
        return prefill_tokens * self.prefill_token_us + output_tokens * self._token_us

    def kth_end_us(self, kth: float, mix: Mix, history: OutputHistory, now_us: int) -> float:
        """From now until `kth` (from 1) of the pool's sequences have ended, those that will follow them included."""
        if self._ends_us is None:
            self._ends_us = self._read_ends(mix, history)
        ends = self._ends_us
        passed_us = now_us - self.read_us
        place = kth * len(self.sampled) / self.workers
        work_us = self.work_us(mix.prefill, mix.output, mix) / len(self.sampled)
        if not ends:
            return place * work_us
        if place <= len(ends):
            return max(0.0, ends[max(0, int(place + 0.5) - 1)] - passed_us)
        return max(0.0, ends[-1] - passed_us) + (place - len(ends)) * work_us

    def _read_ends(self, mix: Mix, history: OutputHistory) -> list[float]:
        ends: list[float] = []
        for worker in self.sampled:
            running = worker.running()
            step_us = self.busy_step_us(len(running), mix)
            for sequence in running:
                behind = max(0, sequence.length - sequence.computed_len - 1)
                ends.append(behind * self.prefill_token_us + remaining_tokens(sequence, history) * step_us)
        return sorted(ends)


def remaining_tokens(sequence: Sequence, history: OutputHistory) -> float:
    """Output that a running sequence is still expected to make; past its mean, a tenth of the mean again."""
    request = sequence.choice.request
    said = len(sequence.choice.output)
    expected = history.expect(request.tenant, request.max_tokens, len(request.prompt))
    return max(expected - said, min(0.1 * expected, request.max_tokens - said), 1.0)


class Rates:
    """The pools' rates, read again when they are older than FRESH_US or the fleet has changed."""

    __slots__ = ("_by_pool", "mix")

    def __init__(self) -> None:
        self._by_pool: dict[str, PoolRates | None] = {}
        self.mix = Mix()

    def of(self, fleet: Fleet, pool: str, now_us: int) -> PoolRates | None:
        """The pool's rates; None when it has no worker that accepts."""
        known = self._by_pool.get(pool)
        if known is None or now_us - known.read_us > FRESH_US:
            known = self._by_pool[pool] = _read(fleet.accepting(pool), now_us)
        return known

    def changed(self) -> None:
        """A worker came or left."""
        self._by_pool.clear()


def _read(workers: list[Worker], now_us: int) -> PoolRates | None:
    if not workers:
        return None
    stride = max(1, len(workers) // SAMPLED_WORKERS)
    sampled = workers[::stride][:SAMPLED_WORKERS]
    costs = [worker.costs for worker in sampled]
    count = len(sampled)
    return PoolRates(
        workers=len(workers),
        sampled=sampled,
        max_seqs=sum(worker.max_seqs for worker in sampled) / count,
        pool_tokens=sum(worker.pool.usable_blocks * worker.block_tokens for worker in sampled) / count,
        fixed_us=sum(item.fixed_us for item in costs) / count,
        prefill_token_us=sum(item.prefill_token_us for item in costs) / count,
        decode_seq_us=sum(item.decode_seq_us for item in costs) / count,
        context_token_us=sum(item.context_token_us for item in costs) / count,
        read_us=now_us,
    )


def prefill_us(
    costs: StepCosts, prefill_tokens: float, backlog: float, decoding: float, context: float, budget: int
) -> float:
    """Steps of `budget` tokens that compute `backlog` and then `prefill_tokens` beside `decoding` sequences with
    `context` tokens."""
    tokens = prefill_tokens + backlog
    steps = max(1.0, -(-tokens // max(1.0, budget - decoding)))
    own_context = costs.context_token_us * tokens * (steps + 1) / 2  # each chunk attends to those before it
    step_us = costs.fixed_us + decoding * costs.decode_seq_us + context * costs.context_token_us
    return steps * step_us + tokens * costs.prefill_token_us + own_context
