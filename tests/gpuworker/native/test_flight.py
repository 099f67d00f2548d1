"""Flights: the library goes on by itself with the same rows, says every step's tokens once, and stops where it must."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
from octavo.step import StepBudget
from octavo_gpuworker.backends.native_backend import NativeBackend
from octavo_gpuworker.backends.native_pool import NativePool
from octavo_gpuworker.engine import Engine
from octavo_gpuworker.native.batch import StepArrays
from octavo_gpuworker.native.flight import NativeFlight
from octavo_gpuworker.native.library import Library
from octavo_gpuworker.native.model import NativeModel, StepError, new_pool
from octavo_gpuworker.native.packing import Packed
from octavo_gpuworker.orders import AdmitOrder, GrantOrder, OffloadOrder, Sampling, StopOrder, TransferDone, UpdateOrder

from .conftest import TINY, Checkpoint

BLOCK_TOKENS, NUM_BLOCKS, COLUMNS = 4, 2600, 30
POISON = 0xAB


@pytest.fixture
def make(
    library: Library, checkpoints: Callable[[str], Checkpoint], packed: Callable[[Checkpoint, str], Packed]
) -> Callable[..., NativeModel]:
    def model(threads: int = 1) -> NativeModel:
        return NativeModel(
            library, TINY, packed(checkpoints("llama"), "bf16"), kv_dtype="bf16",
            pool=new_pool(TINY, "bf16", NUM_BLOCKS, BLOCK_TOKENS), block_tokens=BLOCK_TOKENS, threads=threads, deterministic=True,
        )  # fmt: skip

    return model


def decodes(model: NativeModel) -> tuple[StepArrays, int]:
    """Two rows at their first token."""
    arrays = model.arrays()
    arrays.reserve(tokens=2, sequences=2, rows=2, columns=COLUMNS)
    arrays.token_ids[:2] = 5, 9
    arrays.query_start[:3] = 0, 1, 2
    arrays.context_len[:2] = arrays.positions[:2] = 1
    arrays.block_tables[0, :COLUMNS] = range(1, 1 + COLUMNS)
    arrays.block_tables[1, :COLUMNS] = range(50, 50 + COLUMNS)
    arrays.sample_rows[:2] = 0, 1
    arrays.greedy(2)
    arrays.temperature[:2], arrays.seeds[:2] = 1.0, (7, 8)
    return arrays, 2


def one_by_one(model: NativeModel, steps: int) -> list[list[int]]:
    arrays, rows = decodes(model)
    found = []
    for _ in range(steps):
        model.step(arrays, tokens=rows, sequences=rows, rows=rows)
        found.append(arrays.out_tokens[:rows].tolist())
        arrays.token_ids[:rows] = arrays.out_tokens[:rows]
        arrays.context_len[:rows] += 1
        arrays.positions[:rows] += 1
    return found


def begin(model: NativeModel, flight: NativeFlight, most: int, stops: tuple[int, ...] = ()) -> StepArrays:
    arrays, rows = decodes(model)
    flight.begin_run(arrays, rows, most, stops)
    return arrays


def rest(flight: NativeFlight) -> list[list[int]]:
    """What is left of it once no more steps may begin."""
    flight.halt()
    found = []
    while (step := flight.take()) is not None:
        found.append(step[0])
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("room", [1, 3, 32])
def test_a_flight_draws_what_single_steps_draw(make, threads: int, room: int) -> None:
    model = make(threads)
    expected = one_by_one(model, 40)
    flight = NativeFlight(model, room)
    begin(model, flight, 1)
    found = []
    for left in range(40, 0, -1):
        flight.extend(left)
        step = flight.take()
        assert step is not None and step[1] > 0
        found.append(step[0])
    assert found == expected
    assert rest(flight) == []
    assert not flight.on and not flight.ahead


def test_it_ends_behind_a_token_that_stops_it_and_at_a_halt(make) -> None:
    model = make()
    expected = one_by_one(model, 40)
    stop = expected[12][1]
    first = next(at for at, tokens in enumerate(expected) if stop in tokens)
    flight = NativeFlight(model)
    begin(model, flight, 32, (stop, 300))
    found = []
    while (step := flight.take()) is not None:
        found.append(step[0])
    assert found == expected[: first + 1]
    begin(model, flight, 32)
    assert flight.take() is not None
    done = 1 + len(rest(flight))
    assert 1 <= done <= 32
    begin(model, flight, 5)
    assert len(rest(flight)) <= 5


def test_what_holds_it_lets_one_step_through(make) -> None:
    model = make()
    expected = one_by_one(model, 3)
    flight = NativeFlight(model)
    flight.hold()
    begin(model, flight, 32)
    assert flight.take()[0] == expected[0]
    assert flight.take() is None
    flight.release()
    begin(model, flight, 3)
    assert [flight.take()[0] for _ in range(3)] == expected


def test_a_second_one_is_refused_while_one_is_on(make) -> None:
    model = make()
    flight = NativeFlight(model)
    arrays = begin(model, flight, 4)
    with pytest.raises(RuntimeError, match="a flight is on"):
        flight.begin(arrays, tokens=2, sequences=2, rows=2)
    other = NativeFlight(model)  # another view of the same model, which knows nothing of the first
    with pytest.raises(StepError, match="a flight is on"):
        other.begin(arrays, tokens=2, sequences=2, rows=2)
    rest(flight)
    begin(model, flight, 1)
    assert flight.take() is not None


def test_a_step_that_cannot_run_is_told_after_those_that_did(make) -> None:
    model = make()
    expected = one_by_one(model, 2)
    flight = NativeFlight(model)
    arrays = begin(model, flight, 2)
    assert [flight.take()[0] for _ in range(2)] == expected  # it waits at its limit
    arrays.block_tables[0, :] = NUM_BLOCKS
    flight.extend(5)
    with pytest.raises(StepError, match="block_tables"):
        flight.take()
    assert not flight.on and flight.take() is None
    begin(model, flight, 1)
    assert flight.take()[0] == expected[0]


def test_a_model_that_is_closed_ends_its_flight(make) -> None:
    model = make(2)
    arrays = weakref.ref(begin(model, NativeFlight(model), 3))
    gc.collect()
    assert arrays() is not None, "whoever lets go of a flight that is on leaves its memory to the model"
    closing = threading.Thread(target=model.close)
    closing.start()
    closing.join(timeout=20)
    assert not closing.is_alive()


def test_only_its_first_step_rings(make) -> None:
    model = make()
    bell = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        flight = NativeFlight(model)
        model.ring_at_start(bell)
        begin(model, flight, 6)
        for _ in range(6):
            assert flight.take() is not None
        assert os.eventfd_read(bell) == 1
        rest(flight)
    finally:
        os.close(bell)


# -- an engine whose backend is ahead ----------------------------------------------------------------------------------


def engine_over(model: NativeModel, room: int) -> Engine:
    backend = NativeBackend(
        model, NativePool(model.pool, BLOCK_TOKENS), fingerprint=bytes(32), limits=lambda: None, room=room
    )
    return Engine(backend, budget=StepBudget(64, 64, 16), start_transfer=lambda order: None)


class Requests:
    """Random requests, each with its blocks, as a scheduler has them that hands a block on as soon as it was released."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.free = list(range(1, NUM_BLOCKS))
        self.blocks: dict[int, list[int]] = {}
        self.made: dict[int, AdmitOrder] = {}
        self.lengths: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.slot_of: dict[int, int] = {}
        self.ended: dict[int, str] = {}
        self.poisoned: set[int] = set()

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        self.poisoned.difference_update(taken)
        return taken

    def admit(self) -> AdmitOrder:
        rng, seq = self.rng, len(self.made) + 1
        length, new = rng.randrange(1, 30), rng.choice((2, 20, 60, 90))
        stops = frozenset(rng.sample(range(TINY.vocab_size), rng.choice((0, 1, 6))))
        sampling = Sampling(temperature=rng.choice((0.0, 1.0)), top_p=rng.choice((1.0, 0.9)), stop_ids=stops)
        slot = next(slot for slot in range(40) if slot not in self.slot_of.values())
        blocks = self.take(-(-(length + rng.choice((1, 4, 90))) // BLOCK_TOKENS))
        order = AdmitOrder(
            seq, slot, [rng.randrange(TINY.vocab_size) for _ in range(length)], length, 0, blocks, sampling,
            rng.randrange(2**63), length + new,
        )  # fmt: skip
        self.made[seq], self.blocks[seq], self.slot_of[seq] = order, list(blocks), slot
        self.tokens[seq], self.lengths[seq] = [], length
        return order

    def orders(self) -> list:
        rng, found = self.rng, []
        if len(self.slot_of) < 5 and rng.random() < 0.2:
            found.append(self.admit())
        for seq in list(self.slot_of):
            short = len(self.blocks[seq]) * BLOCK_TOKENS - self.lengths[seq] < 6
            if rng.random() < (0.5 if short else 0.05):
                more = self.take(rng.choice((1, 2, 9)))
                self.blocks[seq] += more
                found.append(GrantOrder(seq, more))
            if rng.random() < 0.004:
                found.append(StopOrder(seq, "cancelled"))
            if rng.random() < 0.02:
                found.append(UpdateOrder(seq, rng.randrange(5), rng.random() < 0.3))
        if rng.random() < 0.1:
            found += [OffloadOrder(len(self.made) + 1, [1], [bytes(32)]), TransferDone(len(self.made) + 1, 1)]
        return found

    def book(self, engine: Engine) -> None:
        for report in engine.take_reports(force=engine.report_pending):
            seqs = {slot: seq for seq, slot in self.slot_of.items()}
            for slot, tokens, computed in zip(report.slots, report.tokens, report.computed_len, strict=True):
                seq = seqs[slot]
                self.tokens[seq] += tokens
                self.lengths[seq] = computed + 1
            self.ended |= {finish.seq: finish.reason for finish in report.finishes}
            for released in report.released:
                assert released.length == len(self.made[released.seq].tokens) + len(self.tokens[released.seq])
                blocks = self.blocks.pop(released.seq)
                del self.slot_of[released.seq]
                engine.pool.array[blocks] = POISON
                self.poisoned.update(blocks)
                self.free += blocks


@pytest.mark.parametrize("seed", range(6))
def test_an_engine_that_is_ahead_draws_the_same_and_touches_no_released_block(make, seed: int) -> None:
    """Orders come while steps that nobody has taken run or are done: what a sequence draws depends on it alone."""
    requests, engine = Requests(seed), engine_over(make(2), 8)
    pauses = random.Random(seed)
    ahead = 0
    for step in range(700):
        for order in requests.orders() if step < 600 else []:
            engine.post(order)
        ahead += engine.backend._flight._told > engine.backend._flight.taken
        engine.run_once()
        if pauses.random() < 0.3:
            time.sleep(0.0005)  # in which it goes on
        if pauses.random() < 0.5:
            requests.book(engine)
    for seq in list(requests.slot_of):
        engine.post(StopOrder(seq, "cancelled"))
    engine.run_once()
    requests.book(engine)
    assert ahead > 20
    assert not requests.slot_of and not engine.busy
    assert (engine.pool.array[sorted(requests.poisoned)] == POISON).all()
    whole = [seq for seq, reason in requests.ended.items() if reason in ("stop", "length")]
    assert len(whole) > 10
    alone = engine_over(make(1), 1)
    for seq, order in requests.made.items():
        alone.post(replace(order, blocks=list(range(1, 60))))
        tokens: list[int] = []
        while not tokens or alone.busy:
            alone.run_once()
            for report in alone.take_reports(force=True):
                tokens += [token for row in report.tokens for token in row]
        drawn = requests.tokens[seq]
        assert tokens[: len(drawn)] == drawn
        assert seq not in whole or len(tokens) == len(drawn)


def test_an_order_is_applied_behind_the_step_that_runs(make) -> None:
    """However far ahead it might go: who is admitted does not wait for it."""
    engine = engine_over(make(), 32)
    engine.post(AdmitOrder(1, 0, [3], 1, 0, list(range(1, 400)), Sampling(temperature=0.0), 1, 1500))
    for _ in range(5):
        engine.run_once()
    while engine.backend._flight._told < 20:
        engine.run_once()
        time.sleep(0.001)
    engine.post(AdmitOrder(2, 1, [4], 1, 0, list(range(500, 510)), Sampling(temperature=0.0), 1, 9))
    engine.take_reports(force=True)
    before = len(engine._by_seq[1].tokens)
    engine.run_once()
    assert len(engine._by_seq[2].tokens) == 2
    assert len(engine._by_seq[1].tokens) > before + 1, "what was done ahead is booked"
