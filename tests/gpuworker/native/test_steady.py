"""Steady runs: an engine whose backend repeats steps reports, step by step, what one does that makes each of them anew.

With room for one step the backend is never ahead, so that both have the same orders before each step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from octavo.step import StepBudget
from octavo_gpuworker import reporter
from octavo_gpuworker.backends.native_backend import NativeBackend
from octavo_gpuworker.backends.native_pool import NativePool
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.native.library import Library
from octavo_gpuworker.native.model import NativeModel, new_pool
from octavo_gpuworker.native.packing import Packed
from octavo_gpuworker.orders import (
    AbortOrder,
    AdmitOrder,
    BeamRow,
    ForkOrder,
    GrantOrder,
    LabelOrder,
    LoadOrder,
    OffloadOrder,
    PolicyOrder,
    Report,
    Sampling,
    SiblingOrder,
    StopOrder,
    TransferDone,
    UpdateOrder,
)

from .conftest import TINY, Checkpoint

BLOCK_TOKENS, NUM_BLOCKS, VOCAB = 4, 900, TINY.vocab_size
GREEDY = Sampling(temperature=0.0)
KINDS = (
    GREEDY,
    Sampling(temperature=1.3, top_p=0.95, top_k=40),
    Sampling(temperature=1.0, stop_ids=frozenset(range(0, VOCAB, 9))),
    Sampling(temperature=1.0, stop_ids=frozenset(range(0, VOCAB, 3)), min_tokens=6),
    Sampling(temperature=0.9, repetition_penalty=1.2),
    Sampling(temperature=0.7, logprobs=2),
    Sampling(temperature=1.0, bias=((3, 5.0), (7, -9.0))),
    Sampling(temperature=0.0, logprobs=4, beam=True),
)


class Anew(NativeBackend):
    """The same kernels; every step is launched by itself."""

    repeats = False


class Counting(NativeBackend):
    """Counts the steps that repeat."""

    repeated = 0

    def again(self, launched, most, stops):
        self.repeated += 1
        return super().again(launched, most, stops)


class ShortOfMemory:
    """Has a backend's next step find no memory, when it is asked for."""

    def __init__(self, backend: NativeBackend) -> None:
        self.next = False
        self._launch, self._again = backend.launch, backend.again
        backend.launch = lambda batch: self._run(self._launch, batch)
        backend.again = lambda *given: self._run(self._again, *given)

    def _run(self, begin, *given):
        if self.next:
            self.next = False
            raise MemoryError("out of memory for this step")
        return begin(*given)


Make = Callable[..., Engine]


@pytest.fixture
def make(
    library: Library,
    checkpoints: Callable[[str], Checkpoint],
    packed: Callable[[Checkpoint, str], Packed],
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    monkeypatch.setattr(reporter, "MERGE_NS", 10**12)
    checkpoint = checkpoints("llama")

    def engine(kind: type[NativeBackend], kv="bf16", deterministic=False, room=1, threads=1) -> Engine:
        pool = new_pool(TINY, kv, NUM_BLOCKS, BLOCK_TOKENS)
        pool[1:] = 0xFF  # what is not written must not be read
        model = NativeModel(
            library,
            TINY,
            packed(checkpoint, "bf16"),
            kv_dtype=kv,
            pool=pool,
            block_tokens=BLOCK_TOKENS,
            threads=threads,
            deterministic=deterministic,
        )
        backend = kind(model, NativePool(pool, BLOCK_TOKENS), fingerprint=bytes(32), limits=lambda: None, room=room)
        return Engine(backend, budget=StepBudget(64, 64, 16), start_transfer=lambda order: None)

    return engine


def without_times(report: Report) -> Report:
    first_tokens = [
        replace(first, wait_us=0, prefill_us=0, load_us=0, sample_us=0, sampled_ns=0) for first in report.first_tokens
    ]
    return replace(report, wall_us=0, forward_us=0, sample_us=0, first_tokens=first_tokens)


class Orders:
    """A scheduler that asks for anything at any time; it knows of the sequences what their reports say."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.free = list(range(1, NUM_BLOCKS))
        self.rng.shuffle(self.free)
        self.live: dict[int, int] = {}  # seq -> blocks
        self.slot_of: dict[int, int] = {}
        self.next_seq, self.next_xfer = 1, 1
        self.loads: list[tuple[int, int]] = []
        self.waiting: list[BeamRow] = []

    def take(self, count: int) -> list[int]:
        return [self.free.pop() for _ in range(count)]

    def book(self, report: Report) -> None:
        self.waiting += report.beam_rows
        for released in report.released:
            self.live.pop(released.seq, None)
            self.slot_of.pop(released.seq, None)

    def next(self) -> list:
        rng, orders = self.rng, []
        if len(self.live) < 6 and len(self.free) > 150 and rng.random() < 0.12:
            orders.append(self.admit())
        for seq in list(self.live):
            if rng.random() < 0.3 and self.free:
                count = min(rng.choice((1, 1, 4)), len(self.free))
                orders.append(GrantOrder(seq, self.take(count)))
            if rng.random() < 0.02:
                orders.append(StopOrder(seq, "cancelled"))
            if rng.random() < 0.03:
                orders.append(UpdateOrder(seq, rng.randrange(5), rng.random() < 0.2))
        if self.waiting and rng.random() < 0.5:
            rows, self.waiting = [row for row in self.waiting if row.seq in self.live], []
            chosen = [rng.choice(row.tokens) for row in rows]
            orders.append(ForkOrder([row.seq for row in rows], list(range(len(rows))), chosen))
        if rng.random() < 0.03:
            orders.append(AbortOrder(rng.randrange(1, 50)))
        if rng.random() < 0.1 and self.free:
            orders.append(LabelOrder([self.free[0]], [rng.randbytes(32)], [bytes(32)]))
        if rng.random() < 0.1:
            orders.append(OffloadOrder(self.next_xfer, [1], [bytes(32)]))
            orders.append(TransferDone(self.next_xfer, 1))
            self.next_xfer += 1
        if rng.random() < 0.03:
            orders.append(PolicyOrder(rng.choice((4, 64)), 64, rng.choice((2, 16, 16))))
        if self.loads and rng.random() < 0.3:
            xfer, blocks = self.loads.pop(0)
            orders.append(TransferDone(xfer, rng.randrange(blocks + 1)))
        rng.shuffle(orders)
        return orders

    def forget(self) -> None:
        """A new epoch: nothing of the old one runs."""
        self.live.clear()
        self.slot_of.clear()
        self.loads.clear()
        self.waiting.clear()

    def admit(self) -> AdmitOrder:
        rng, seq = self.rng, self.next_seq
        group = 1 if rng.random() < 0.8 else rng.randrange(2, 4)
        self.next_seq += group
        length, new = rng.randrange(1, 40), rng.choice((1, 3, 30, 60))
        tokens = [rng.randrange(VOCAB) for _ in range(length)]
        count = -(-(length + min(new, 6)) // BLOCK_TOKENS)
        blocks, full = self.take(count), length // BLOCK_TOKENS
        sampling = rng.choices(KINDS, (6, 6, 4, 1, 1, 1, 1, 1 if group == 1 else 0))[0]
        prompt_len = length if rng.random() < 0.8 else rng.randrange(1, length + 1)  # the rest it had drawn elsewhere
        slots = [slot for slot in range(24) if slot not in self.slot_of.values()][:group]
        for member, slot in zip(range(seq, seq + group), slots, strict=True):
            self.live[member], self.slot_of[member] = count, slot
        siblings = tuple(
            SiblingOrder(seq + i, slots[i], 50 + i, blocks[:full] + self.take(count - full)) for i in range(1, group)
        )
        load = {}
        if group == 1 and length > 3 * BLOCK_TOKENS and rng.random() < 0.3:
            # its content is what an earlier owner left: zeros here, the same for both engines
            load = {"wait_xfer": 10_000 + self.next_xfer, "wait_base": 0}
            self.loads.append((10_000 + self.next_xfer, 0))
            self.next_xfer += 1
        stop_after = rng.choice((0, 0, 0, 5))
        return AdmitOrder(
            seq,
            slots[0],
            tokens,
            prompt_len,
            0,
            blocks,
            sampling,
            rng.randrange(2**63),
            length + new,
            siblings=siblings,
            stop_after=stop_after,
            **load,
        )


@pytest.mark.parametrize("first_seed", range(0, 40, 5))
def test_steps_that_repeat_report_what_steps_made_anew_do(make: Make, first_seed: int) -> None:
    """Under admits, grants, stops, pauses, forks, loads, policies, labels, new epochs and want of memory at any time, and
    reports taken at any time."""
    repeated = sum(_in_lockstep(make, seed) for seed in range(first_seed, first_seed + 5))
    assert repeated > 100


def _in_lockstep(make: Make, seed: int) -> int:
    """How many steps of the one engine repeated."""
    kv, deterministic = ("bf16", "int8", "f32")[seed % 3], seed % 2 == 1
    engines = [make(kind, kv, deterministic) for kind in (Counting, Anew)]
    short = [ShortOfMemory(engine.backend) for engine in engines]
    orders, taking = Orders(seed), random.Random(seed)
    for _ in range(220):
        batch = orders.next()
        force, live = taking.random() < 0.7, taking.random() < 0.2
        fails, anew = taking.random() < 0.03, taking.random() < 0.004
        said = []
        for engine, memory in zip(engines, short, strict=True):
            if anew:
                engine.reset()
            memory.next = fails
            for order in batch:
                if isinstance(order, AdmitOrder) and order.wait_xfer:
                    engine.post(LoadOrder(order.wait_xfer, [], [], 10**6))
                engine.post(order)
            engine.run_once()
            memory.next = False
            said.append([without_times(report) for report in engine.take_reports(force=force, live=live)])
        assert said[0] == said[1]
        if anew:
            orders.forget()
        for report in said[0]:
            orders.book(report)
    for engine in engines:
        engine.reset()
    assert (engines[0]._slots.tokens == engines[1]._slots.tokens).all()
    repeats: int = engines[0].backend.repeated
    return repeats


def test_most_steps_of_a_quiet_batch_repeat_and_its_ends_are_seen(make: Make) -> None:
    engine = make(Counting)
    blocks = iter(range(1, NUM_BLOCKS))
    for seq in range(1, 5):
        table = [next(blocks) for _ in range(30)]
        engine.post(AdmitOrder(seq, seq, [seq] * 5, 5, 0, table, GREEDY, 1, 5 + 20 * seq))
    ended: dict[int, int] = {}
    for iteration in range(1, 90):
        engine.run_once()
        for report in engine.take_reports(force=True):
            ended |= {finish.seq: iteration for finish in report.finishes}
            assert all(item.length == 5 + 20 * item.seq for item in report.released)
    assert ended == {1: 20, 2: 40, 3: 60, 4: 80}
    assert (
        engine.backend.repeated == 17 + 3 * 18
    )  # two are made anew at each change: the one that ends a sequence, and the next


def test_memory_that_fails_in_a_repeated_step_loses_no_token(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [make(Counting), make(Anew)]
    tokens: list[list[int]] = [[], []]
    for engine in engines:
        engine.post(AdmitOrder(1, 0, [3, 1, 4], 3, 0, list(range(1, 20)), GREEDY, 1, 3 + 40))
    again = engines[0].backend.again
    failing = iter([False] * 5 + [True] + [False] * 100)

    def short_of_memory(launched, most, stops):
        if next(failing):
            raise MemoryError("out of memory for this step")
        return again(launched, most, stops)

    monkeypatch.setattr(engines[0].backend, "again", short_of_memory)
    failures = 0
    for engine, mine in zip(engines, tokens, strict=True):
        for _ in range(60):
            engine.run_once()
            for report in engine.take_reports(force=True):
                failures += report.failed_allocations
                mine += [token for per_slot in report.tokens for token in per_slot]
    assert failures == 1
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 40


def test_a_row_that_is_not_finite_in_a_repeated_step_fails_alone(make: Make) -> None:
    engine = make(Counting)
    for seq in (1, 2):
        table = list(range(20 * seq, 20 * seq + 15))
        engine.post(AdmitOrder(seq, seq, [seq] * 5, 5, 0, table, GREEDY, 1, 45))
    for _ in range(6):
        engine.run_once()
    repeated = engine.backend.repeated
    engine.pool.array[20] = 0xFF  # NaN where the first one looks back
    engine.run_once()
    assert engine.backend.repeated == repeated + 1
    finishes = [finish for report in engine.take_reports(force=True) for finish in report.finishes]
    assert [(finish.seq, finish.reason) for finish in finishes] == [(1, "failed")]
    assert "not finite" in finishes[0].message
    while engine.busy:
        engine.run_once()
    reports = engine.take_reports(force=True)
    assert [finish.reason for report in reports for finish in report.finishes] == ["length"]
