"""Engine: standing orders in, steps over granted blocks, reports out. One thread owns it; it never waits for the network.

Rules that hold here (each a test):
- Orders apply in order at the iteration boundary; one for an unknown sequence is a no-op.
- A sequence steps only on granted blocks; without one it is reported starved and keeps its place.
- `released` leaves only when no launched step can touch the sequence's blocks; steps are synchronous, so that is the
  boundary at which it stops.
- One forward per step: all decodes and the prefill chunks that compose() picked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from octavo.step import Chunk, Step, StepBudget, compose

from octavo_gpuworker.batch import BlockTables, build_inputs, views
from octavo_gpuworker.labels import Labels
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.inputs import StepInputs
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import (
    AdmitOrder,
    FirstToken,
    GrantOrder,
    LabelOrder,
    LoadOrder,
    OffloadOrder,
    Order,
    PolicyOrder,
    Released,
    Report,
    SeqFinish,
    StopOrder,
    TransferDone,
    UpdateOrder,
)
from octavo_gpuworker.sampler import Sampled, sample
from octavo_gpuworker.sequence import Sequence, from_admit

MERGE_NS = 5_000_000
"""Steps within this time of the last report share the next one, if nothing else happened."""
ENDED_TRANSFERS_KEPT = 4096


class Forward(Protocol):
    """What the engine needs of a decoder."""

    config: ModelConfig
    device: torch.device

    def forward(self, inputs: StepInputs, pool: KvPool) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class LoadedBlock:
    """One block of a running load, to be written at the next boundary."""

    xfer_id: int
    block: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """What the spans of a sequence are made of; nanoseconds are wall clock."""

    sequence: Sequence
    reason: str
    end_ns: int


class Engine:
    """State of the step thread. `run_once` does one iteration and is all that a test needs."""

    def __init__(
        self,
        decoder: Forward,
        pool: KvPool,
        *,
        budget: StepBudget,
        start_transfer: Callable[[OffloadOrder | LoadOrder], None],
        on_end: Callable[[SequenceEnd], None] = lambda end: None,
    ) -> None:
        self.decoder = decoder
        self.pool = pool
        self.labels = Labels()
        self.budget = budget
        self.steps = 0
        self.mixed_steps = 0
        self._start_transfer = start_transfer
        self._on_end = on_end
        self._tables = BlockTables(pool.block_tokens, 64)
        self._by_seq: dict[int, Sequence] = {}
        self._by_slot: dict[int, Sequence] = {}
        self._leader_of: dict[int, int] = {}  # sibling not split yet -> its leader
        self._transfers: set[int] = set()
        self._ended: dict[int, int] = {}  # xfer_id -> ok_blocks, for an Admit that comes later
        self._inbox: deque[Order | LoadedBlock | TransferDone] = deque()
        self._report = Report()
        self._report_since_ns = 0

    # --- what other threads may call -------------------------------------------------------------------------------

    def post(self, item: Order | LoadedBlock | TransferDone) -> None:
        """Queues an order, a loaded block or a transfer's end for the next boundary (deque.append is atomic)."""
        self._inbox.append(item)

    # --- one iteration ---------------------------------------------------------------------------------------------

    def run_once(self) -> bool:
        """Applies what was posted, then one step if any sequence can. Returns whether a step ran."""
        self.apply_inbox()
        step = compose(views(self._by_slot.values(), self.pool.block_tokens), self.budget)
        self._report.starved = step.starved
        if not step.chunks:
            return False
        self._run(step)
        return True

    def take_report(self, *, force: bool = False) -> Report | None:
        """The report of all since the last one, when it is due; None while steps of equal composition may still be merged."""
        report = self._report
        due = (
            force
            or report.finishes
            or report.released
            or report.transfers_done
            or report.first_tokens
            or report.starved
        )
        if not due and (not report.steps or time.monotonic_ns() - self._report_since_ns < MERGE_NS):
            return None
        report.step = self.steps
        self._report = Report()
        return report

    @property
    def busy(self) -> bool:
        """It holds sequences (running, waiting for a load, or siblings to come)."""
        return bool(self._by_seq)

    def live(self) -> tuple[list[int], list[int]]:
        """Sequences (siblings to come included) and transfers that are held, for the core's audit."""
        return [*self._by_seq, *self._leader_of], list(self._transfers)

    def reset(self) -> None:
        """A new epoch: forgets every order, sequence and transfer. Labels stay: the pool's content is still valid."""
        self._inbox.clear()
        for seq in self._by_seq.values():
            self._on_end(SequenceEnd(seq, "epoch", time.time_ns()))
            self.labels.forget(seq.blocks[seq.computed // self.pool.block_tokens :])
        self._by_seq.clear()
        self._by_slot.clear()
        self._leader_of.clear()
        self._transfers.clear()
        self._ended.clear()
        self._report = Report()

    # --- orders ----------------------------------------------------------------------------------------------------

    def apply_inbox(self) -> None:
        """Applies everything that was posted before this call, in order."""
        for _ in range(len(self._inbox)):
            self._apply(self._inbox.popleft())

    def _apply(self, item: Order | LoadedBlock | TransferDone) -> None:
        match item:
            case AdmitOrder():
                self._admit(item)
            case GrantOrder():
                self._grant(item)
            case StopOrder():
                self._stop(item)
            case UpdateOrder():
                if seq := self._by_seq.get(item.seq):
                    seq.rank, seq.paused = item.rank, item.paused
            case LoadOrder():
                self.labels.forget(item.blocks)
                self._transfers.add(item.xfer_id)
                self._start_transfer(item)
            case OffloadOrder():
                self._transfers.add(item.xfer_id)
                self._start_transfer(item)
            case LoadedBlock():
                if item.xfer_id in self._transfers:
                    self.pool.write_block(item.block, item.payload)
            case TransferDone():
                self._transfer_done(item)
            case LabelOrder():
                self.labels.set(item.blocks, item.keys)
            case PolicyOrder():
                self.budget = StepBudget(item.budget_with_decodes, item.budget_alone, item.max_seqs)

    def _admit(self, order: AdmitOrder) -> None:
        seq = from_admit(order, time.time_ns())
        size = self.pool.block_tokens
        self.labels.forget(seq.blocks[max(seq.computed, seq.wait_base) // size :])
        for sibling in seq.siblings:
            self._leader_of[sibling.seq] = seq.seq
            self.labels.forget(sibling.blocks[seq.prompt_len // size :])
        self._enter(seq)
        if seq.wait_xfer and seq.wait_xfer in self._ended:
            self._start_after_load(seq, self._ended[seq.wait_xfer])

    def _enter(self, seq: Sequence) -> None:
        self._by_seq[seq.seq] = seq
        self._by_slot[seq.slot] = seq
        self._tables.set(seq.slot, seq.blocks)

    def _grant(self, order: GrantOrder) -> None:
        if seq := self._by_seq.get(order.seq):
            self.labels.forget(order.blocks)
            self._tables.set(seq.slot, order.blocks, start=len(seq.blocks))
            seq.blocks.extend(order.blocks)
        elif (leader := self._leader_of.get(order.seq)) is not None:
            self.labels.forget(order.blocks)
            next(s for s in self._by_seq[leader].siblings if s.seq == order.seq).blocks.extend(order.blocks)

    def _stop(self, order: StopOrder) -> None:
        seq = self._by_seq.get(order.seq)
        if seq is not None:
            self._leave(seq, order.reason)
        elif (leader_seq := self._leader_of.pop(order.seq, None)) is not None:
            leader = self._by_seq[leader_seq]
            leader.siblings = tuple(sibling for sibling in leader.siblings if sibling.seq != order.seq)
            self._report.released.append(Released(order.seq, leader.prompt_len, 0))

    def _leave(self, seq: Sequence, reason: str) -> None:
        """Ends the residency: nothing of it is launched at a boundary, so its hold ends with this report."""
        del self._by_seq[seq.seq], self._by_slot[seq.slot]
        self._report.released.append(Released(seq.seq, len(seq.tokens), seq.computed))
        self._on_end(SequenceEnd(seq, reason, time.time_ns()))
        if seq.siblings:
            self._promote(seq)

    def _promote(self, leader: Sequence) -> None:
        """The leader left before its prefill ended: its first sibling prefills for the others from the shared full blocks."""
        first, *others = leader.siblings
        heir = leader.fork(first)
        size = self.pool.block_tokens
        heir.computed = min(leader.computed, leader.prompt_len // size * size, heir.prompt_len - 1)
        heir.siblings = tuple(others)
        heir.wait_xfer, heir.wait_base = leader.wait_xfer, leader.wait_base
        del self._leader_of[first.seq]
        for other in others:
            self._leader_of[other.seq] = heir.seq
        self._enter(heir)

    def _transfer_done(self, done: TransferDone) -> None:
        if done.xfer_id not in self._transfers:
            return
        self._transfers.discard(done.xfer_id)
        self._report.transfers_done.append(done)
        self._ended[done.xfer_id] = done.ok_blocks
        while len(self._ended) > ENDED_TRANSFERS_KEPT:
            self._ended.pop(next(iter(self._ended)))
        for seq in self._by_seq.values():
            if seq.wait_xfer == done.xfer_id:
                self._start_after_load(seq, done.ok_blocks)

    def _start_after_load(self, seq: Sequence, ok_blocks: int) -> None:
        loaded = seq.wait_base + ok_blocks * self.pool.block_tokens
        seq.computed = min(max(seq.computed, loaded), len(seq.tokens) - 1)
        seq.wait_xfer = 0

    # --- the step --------------------------------------------------------------------------------------------------

    def _run(self, step: Step) -> None:
        started = time.monotonic_ns()
        wall = time.time_ns()
        for chunk in step.chunks:
            seq = self._by_slot[chunk.slot]
            seq.started_ns = seq.started_ns or wall
        try:
            inputs = build_inputs(step.chunks, self._by_slot, self._tables, self.decoder.device)
            logits = self.decoder.forward(inputs, self.pool)
        except (MemoryError, torch.OutOfMemoryError) as error:
            self._shed(step, error)
            return
        forwarded = time.monotonic_ns()
        rows, splits = self._sample_rows(step.chunks, logits)
        sampled = sample(splits, rows)
        ended = time.monotonic_ns()
        self._account(step, started, forwarded, ended)
        for chunk in step.chunks:
            seq = self._by_slot[chunk.slot]
            seq.computed = chunk.start + chunk.count
            if chunk.count > 1 or not seq.first_token_ns:
                seq.chunks.append((wall, chunk.count))
            if not chunk.samples:
                self._commit(seq, None, sampled, -1)
        for index, seq in enumerate(rows):
            if seq.seq not in self._by_seq:  # a sibling that begins to live with its first token
                self._leader_of.pop(seq.seq, None)
                self._enter(seq)
            self._commit(seq, sampled.tokens[index], sampled, index)

    def _sample_rows(self, chunks: list[Chunk], logits: torch.Tensor) -> tuple[list[Sequence], torch.Tensor]:
        """The sequences to sample, and their logits rows; a leader at the end of its prefill brings its siblings."""
        rows: list[Sequence] = []
        source: list[int] = []
        for index, chunk in enumerate(chunk for chunk in chunks if chunk.samples):
            seq = self._by_slot[chunk.slot]
            rows.append(seq)
            source.append(index)
            if seq.siblings:
                seq.computed = chunk.start + chunk.count
                for sibling in seq.siblings:
                    rows.append(self._split(seq, seq.fork(sibling)))
                    source.append(index)
                seq.siblings = ()
        if len(source) != logits.shape[0]:
            logits = logits[torch.tensor(source, device=logits.device)]
        return rows, logits

    def _split(self, leader: Sequence, sibling: Sequence) -> Sequence:
        """Full prompt blocks are shared already; the partial one is copied."""
        partial, rest = divmod(len(leader.tokens), self.pool.block_tokens)
        if rest:
            self.pool.copy_block(leader.blocks[partial], sibling.blocks[partial])
        return sibling

    def _commit(self, seq: Sequence, token: int | None, sampled: Sampled, index: int) -> None:
        """Books one sequence's part of the step into the report; ends the sequence when the token says so."""
        report = self._report
        tokens = [] if token is None or token < 0 else [token]
        if seq.slot in report.slots:
            at = report.slots.index(seq.slot)
            report.tokens[at] += tokens
            report.computed_len[at] = seq.computed
        else:
            at = len(report.slots)
            report.slots.append(seq.slot)
            report.tokens.append(tokens)
            report.computed_len.append(seq.computed)
            report.logprobs.append([])
        if token is None:
            return
        if token < 0:
            message = "the model gave logits that are not finite for this sequence"
            report.finishes.append(SeqFinish(seq.slot, seq.seq, "failed", 0, message))
            self._leave(seq, "failed")
            return
        if (logprobs := sampled.logprobs[index]) is not None:
            report.logprobs[at].append(logprobs)
        seq.tokens.append(token)
        if not seq.first_token_ns:
            seq.first_token_ns = time.time_ns()
            wait_us, prefill_us = (
                (seq.started_ns - seq.admitted_ns) // 1000,
                (seq.first_token_ns - seq.started_ns) // 1000,
            )
            report.first_tokens.append(FirstToken(seq.seq, wait_us, prefill_us, len(seq.chunks)))
        if reason := seq.finish_reason(token):
            report.finishes.append(SeqFinish(seq.slot, seq.seq, reason, token if reason == "stop" else 0))
            self._leave(seq, reason)

    def _account(self, step: Step, started: int, forwarded: int, ended: int) -> None:
        report = self._report
        if not report.steps:
            self._report_since_ns = started
        self.steps += 1
        self.mixed_steps += bool(step.decode_seqs and step.prefill_tokens)
        report.steps += 1
        report.wall_us += (ended - started) // 1000
        report.forward_us += (forwarded - started) // 1000
        report.sample_us += (ended - forwarded) // 1000
        report.prefill_tokens += step.prefill_tokens
        report.decode_seqs += step.decode_seqs

    def _shed(self, step: Step, error: BaseException) -> None:
        """Out of memory: the sequence that ranks last fails alone; the step is tried again without it."""
        last = max((self._by_slot[chunk.slot] for chunk in step.chunks), key=lambda seq: (seq.rank, seq.seq))
        message = f"out of memory in a step of {len(step.chunks)} sequences: {error}"
        self._report.finishes.append(SeqFinish(last.slot, last.seq, "failed", 0, message))
        self._leave(last, "failed")
