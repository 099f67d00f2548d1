"""PipelinedEngine: the engine one step ahead of a device. While step n runs, step n + 1 is composed, packed and launched.

Rules beside the Engine's (each a test):
- A launched step's tokens stand as PENDING in their sequences until its result is read; the step after takes them on the device.
- A step that must know them (penalties count them) is launched only after the one before was read.
- A sequence that ends while a later step holds it is dropped there: that row's token is nobody's, and `released` leaves with
  that step's end. So does a stop: `released` never leaves while a launched step can touch the sequence's blocks.
- Everything that copies blocks goes to the device in order of launch, so the step before need not have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from octavo.step import Chunk, Step, StepBudget, compose

from octavo_gpuworker import groups
from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.batch import StepBatch, build_batch, views
from octavo_gpuworker.engine import Engine, SequenceEnd
from octavo_gpuworker.orders import LoadOrder, OffloadOrder
from octavo_gpuworker.sequence import PENDING, Sequence


@dataclass(slots=True)
class _Flight:
    """A launched step."""

    step: Step
    batch: StepBatch
    handle: Any
    began_ns: int
    wall_ns: int
    slots: dict[int, Sequence]
    """Every sequence that it touches, by slot, siblings of an ended prefill included."""
    row_of_slot: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    """Sequences whose rows nobody wants any more."""


class PipelinedEngine(Engine):
    """An Engine whose `run_once` launches the next step before it reads the last one."""

    def __init__(
        self,
        backend: Backend,
        *,
        budget: StepBudget,
        start_transfer: Callable[[OffloadOrder | LoadOrder], None],
        on_end: Callable[[SequenceEnd], None] = lambda end: None,
        abort_transfer: Callable[[int], None] = lambda xfer_id: None,
        merge_ns: int | None = None,
    ) -> None:
        super().__init__(
            backend,
            budget=budget,
            start_transfer=start_transfer,
            on_end=on_end,
            abort_transfer=abort_transfer,
            merge_ns=merge_ns,
        )
        self._flight: _Flight | None = None  # launched and not read
        self._next: _Flight | None = None  # launched behind it; only while that one lands
        self._leaving: dict[int, str] = {}  # seq -> why, for what a launched step still holds

    def run_once(self) -> bool:
        """Applies what was posted, launches a step if one can follow, then reads the step before. Returns whether a step was
        launched or read."""
        began_ns = time.monotonic_ns()
        self.apply_inbox()
        blended = self._blend()
        step = compose(views(self._steppable(), self.pool.block_tokens), self._step_budget)
        flight = self._flight
        if step.chunks and flight is not None and not self._follows(step):
            self._land(flight)
            flight = None
            step = compose(views(self._steppable(), self.pool.block_tokens), self._step_budget)
        self._next = self._launch(step, began_ns, flight) if step.chunks else None
        if flight is not None:
            self._land(flight)
        self._flight, self._next = self._next, None
        self._reporter.starved(step.starved)
        return bool(step.chunks) or flight is not None or blended

    def reset(self) -> None:
        """See Engine; waits for the launched step first."""
        if self._flight is not None:
            self.backend.result(self._flight.handle)
            self._flight = None
        self._leaving.clear()
        super().reset()

    @property
    def has_work(self) -> bool:
        return self._flight is not None or super().has_work

    # --- launch ----------------------------------------------------------------------------------------------------

    def _steppable(self) -> list[Sequence]:
        """Those whose next position is known to be wanted: not what ends with a token that is still drawn."""
        return [
            seq
            for seq in self._by_slot.values()
            if seq.seq not in self._leaving and not (seq.tokens[-1] == PENDING and seq.finish_reason(PENDING))
        ]

    def _follows(self, step: Step) -> bool:
        """Whether the step can be launched before the tokens of the last one are read."""
        for chunk in step.chunks:
            seq = self._by_slot[chunk.slot]
            history = chunk.samples and any(row.sampling.has_penalties for row in seq.drawing)
            if history and seq.tokens[-1] == PENDING:
                return False
        return True

    def _launch(self, step: Step, began_ns: int, before: _Flight | None) -> _Flight | None:
        wall_ns = time.time_ns()
        batch = build_batch(step.chunks, self._by_slot, self._slots)
        if before is not None:
            _mark_pending(batch, step.chunks, before.row_of_slot)
        try:
            handle = self.backend.launch(batch, before.handle if before is not None else None)
        except (MemoryError, RuntimeError) as error:
            if not self.backend.out_of_memory(error):
                raise
            self._shed(step, error)
            return None
        touched = {chunk.slot: self._by_slot[chunk.slot] for chunk in step.chunks}
        touched |= {seq.slot: seq for seq in batch.rows}
        flight = _Flight(step, batch, handle, began_ns, wall_ns, touched)
        self._book_ahead(flight)
        return flight

    def _book_ahead(self, flight: _Flight) -> None:
        """Positions count as computed once they are launched; drawn tokens are PENDING; ended prefills split."""
        for chunk in flight.step.chunks:
            seq = self._by_slot[chunk.slot]
            self._start_chunk(seq, chunk, flight.wall_ns)
            seq.reach(chunk.start + chunk.count)
            if seq.siblings:
                groups.split(seq, self.pool, ended=chunk.samples)
        for row, seq in enumerate(flight.batch.rows):
            if seq.sampling.beam:
                seq.parked = True
                continue
            self._append_pending(seq)
            flight.row_of_slot[seq.slot] = row

    def _append_pending(self, seq: Sequence) -> None:
        self._slots.append(seq.slot, len(seq.tokens), PENDING)
        seq.tokens.append(PENDING)

    # --- landing ---------------------------------------------------------------------------------------------------

    def _land(self, flight: _Flight) -> None:
        """Reads a launched step, books it, and lets go what waited for its end."""
        self.before_wait()
        result = self.backend.result(flight.handle)
        self._relief.ran(self.budget)
        self._reporter.begin_step(flight.step)
        self.steps += 1
        self.mixed_steps += bool(flight.step.decode_seqs and flight.step.prefill_tokens)
        self._flight = None
        for chunk in flight.step.chunks:
            seq = flight.slots[chunk.slot]
            if seq.seq in flight.dropped:
                continue
            if not chunk.samples:
                self._reporter.advance(seq.slot, chunk.start + chunk.count)
            if seq.runs_low(self.pool.block_tokens):
                self._reporter.runs_low()
        ends = {chunk.slot: chunk.start + chunk.count for chunk in flight.step.chunks}
        sampled = result.sampled
        end = 0
        for seq, token, logprobs in zip(flight.batch.rows, sampled.tokens, sampled.logprobs, strict=True):
            end = ends.get(seq.slot, end)  # siblings' rows follow their leader's
            if seq.seq not in flight.dropped:
                self._settle(seq, end, token, logprobs, result.sample_ns)
        for seq in flight.slots.values():
            if seq.seq in self._leaving and not self._held(seq):
                self._let_go(seq)
        wall_ns = time.monotonic_ns() - flight.began_ns
        self._reporter.end_step(flight.step, self.steps, wall_ns, result.forward_ns, result.sample_ns)

    def _settle(self, seq: Sequence, end: int, token: int, logprobs: Any, sample_ns: int) -> None:
        """The drawn token takes the place of PENDING; a later step's PENDING and position are put back if the sequence goes on."""
        if seq.sampling.beam:  # it has no later step: it waits
            self._commit(seq, token, logprobs, sample_ns)
            return
        later = self._next is not None and seq.slot in self._next.row_of_slot
        ahead = seq.computed
        del seq.tokens[-2 if later else -1 :]
        seq.computed = end
        self._commit(seq, token, logprobs, sample_ns)
        if seq.seq not in self._by_seq or seq.seq in self._leaving:
            return
        seq.computed = ahead
        if later:
            self._append_pending(seq)

    # --- leaving ---------------------------------------------------------------------------------------------------

    def _held(self, seq: Sequence) -> bool:
        """Whether a launched step can touch the sequence's blocks."""
        return any(flight is not None and flight.slots.get(seq.slot) is seq for flight in (self._flight, self._next))

    def _leave(self, seq: Sequence, reason: str) -> None:
        """At once, or at the end of the last launched step that holds the sequence. A stop still takes the token that is being
        drawn; what has ended or failed takes none."""
        if not self._held(seq):
            self._leaving.pop(seq.seq, None)
            super()._leave(seq, reason)
            return
        self._leaving.setdefault(seq.seq, reason)
        ended = (self._next,) if reason != "failed" else (self._flight, self._next)
        for flight in ended:
            if flight is not None and flight.slots.get(seq.slot) is seq:
                flight.dropped.add(seq.seq)

    def _let_go(self, seq: Sequence) -> None:
        while seq.tokens[-1] == PENDING:
            seq.tokens.pop()
        seq.computed = min(seq.computed, len(seq.tokens))
        super()._leave(seq, self._leaving.pop(seq.seq))


def _mark_pending(batch: StepBatch, chunks: list[Chunk], row_of_slot: Mapping[int, int]) -> None:
    """Names the rows of the step before whose tokens the batch lacks, and puts token 0 in their places."""
    lacking = batch.token_ids == PENDING
    if lacking.any():
        rows = np.array([row_of_slot.get(chunk.slot, -1) for chunk in chunks], np.int64)
        batch.pending = np.where(lacking, np.repeat(rows, np.diff(batch.query_start)), -1)
        batch.token_ids = np.where(lacking, np.int32(0), batch.token_ids)
