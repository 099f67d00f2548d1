"""Runner: drives an engine without a scheduler through the steps of one row, and times them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from octavo.errors import OctavoError
from octavo.step import StepBudget

from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.bench.row import Row
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.orders import AdmitOrder, Sampling
from octavo_gpuworker.warmup import blocks_for

MAX_SEQS = 256
WARM_STEPS = 2
"""The first steps of a shape fill buffers and caches."""
GREEDY = Sampling(temperature=0.0)
SAMPLED = Sampling(temperature=0.8, top_p=0.95)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: tokens computed or sampled, steps, and seconds; `context` is the mean one of its steps."""

    tokens: int
    steps: int
    seconds: float
    context: float


class Runner:
    """One engine; `measure` may be called again and again, and leaves the pool free."""

    def __init__(self, backend: Backend, budget_tokens: int) -> None:
        self.backend = backend
        self._written: set[int] = set()
        self._seed = 0
        self.engine = Engine(
            backend,
            budget=StepBudget(budget_tokens, budget_tokens, MAX_SEQS),
            start_transfer=lambda order: None,
        )

    def measure(self, row: Row, steps: int, seed: int = 0) -> Sample:
        """Other prompts for each seed. Raises OctavoError when the pool or the model's context is too small for the row, or a sequence failed."""
        self._seed = seed
        if row.kind == "prefill":
            return self._prefill(row)
        return self._decode(row, steps) if row.kind == "decode" else self._run(row, steps)

    def _prefill(self, row: Row) -> Sample:
        self._admit(row, 0, row.size, row.size + 1, cached=0)
        began = time.perf_counter()
        steps = self._drain()
        return Sample(row.size, steps, time.perf_counter() - began, row.size / 2)

    def _decode(self, row: Row, steps: int) -> Sample:
        """What the KV of the context holds does not matter, so it is not computed: every sequence begins at its last token.

        But it is written: pages of a pool that never were are one and the same page of zeros, which no memory is read for.
        """
        for slot in range(row.size):
            self._admit(row, slot, row.context, row.context + WARM_STEPS + steps, cached=row.context - 1)
        for _ in range(WARM_STEPS):
            self.engine.run_once()
        began = time.perf_counter()
        for _ in range(steps - 1):
            self.engine.run_once()
        seconds = time.perf_counter() - began
        self._drain()
        return Sample(row.size * (steps - 1), steps - 1, seconds, row.context + WARM_STEPS + steps / 2)

    def _run(self, row: Row, output: int) -> Sample:
        for slot in range(row.size):
            self._admit(row, slot, row.context, row.context + output, cached=0)
        began = time.perf_counter()
        steps = self._drain()
        return Sample(row.size * output, steps, time.perf_counter() - began, row.context + output / 2)

    def _admit(self, row: Row, slot: int, length: int, end: int, *, cached: int) -> None:
        per_seq = blocks_for(end, self.backend.pool.block_tokens)
        first = 1 + slot * per_seq
        if first + per_seq > self.backend.pool.num_blocks:
            raise OctavoError(
                f"row {row.name} needs {row.size * per_seq + 1} blocks, the pool has {self.backend.pool.num_blocks}; raise --engine.kv_pool_bytes"
            )
        if end > self.backend.max_position:
            raise OctavoError(f"row {row.name} needs {end} positions, the model has {self.backend.max_position}")
        tokens = prompt_of(self._seed * MAX_SEQS + slot, length, self.backend.vocab_size)
        blocks = list(range(first, first + per_seq))
        self._write(blocks)
        sampling = SAMPLED if row.sampled else GREEDY
        self.engine.post(AdmitOrder(slot + 1, slot, tokens, length, cached, blocks, sampling, slot, end))

    def _write(self, blocks: list[int]) -> None:
        for block in blocks:
            if block not in self._written:
                self.backend.pool.write_block(block, bytes(self.backend.pool.block_bytes))
                self._written.add(block)

    def _drain(self) -> int:
        """Steps until nothing is held; how many steps that took."""
        before = self.engine.steps
        self.engine.run_once()
        while self.engine.busy:
            self.engine.run_once()
        for report in self.engine.take_reports(force=True):
            for finish in report.finishes:
                if finish.reason == "failed":
                    raise OctavoError(f"a sequence failed: {finish.message}")
        return self.engine.steps - before


def prompt_of(seed: int, length: int, vocab_size: int) -> list[int]:
    """Token ids drawn from behind the vocabulary's first fiftieth, where the special ones are; other ones for each seed."""
    draw = random.Random(seed)
    return [draw.randrange(vocab_size // 50, vocab_size) for _ in range(length)]
