"""Engine: standing orders in, steps over granted blocks, reports out. One thread owns it; it never waits for the network.

Rules that hold here (each a test):
- Orders apply in order at the iteration boundary; one for an unknown sequence is a no-op.
- A sequence steps only on granted blocks; without one it is reported starved and keeps its place.
- `released` leaves only when no launched step can touch the sequence's blocks; steps are synchronous, so that is the
  boundary at which it stops.
- One forward per step: all decodes and the prefill chunks that compose() picked.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.step import Chunk, Step, StepBudget, compose

from octavo_gpuworker import beams, groups
from octavo_gpuworker.backends.backend import Backend, StepResult
from octavo_gpuworker.batch import build_batch, views
from octavo_gpuworker.blending.blend_queue import BlendQueue
from octavo_gpuworker.labels import Labels
from octavo_gpuworker.orders import (
    AbortOrder,
    AdmitOrder,
    FirstToken,
    ForkOrder,
    GrantOrder,
    LabelOrder,
    LoadOrder,
    OffloadOrder,
    Order,
    PolicyOrder,
    Released,
    Report,
    SeqFinish,
    SiblingOrder,
    StopOrder,
    TokenLogprobs,
    TransferDone,
    UpdateOrder,
)
from octavo_gpuworker.refusal import admit_fault, blocks_fault
from octavo_gpuworker.relief import Relief
from octavo_gpuworker.reporter import Reporter
from octavo_gpuworker.sequence import PENDING, Sequence, from_admit
from octavo_gpuworker.slots import SlotTable
from octavo_gpuworker.steady import UNDISTURBING, SteadyRun, is_steady

ENDED_TRANSFERS_KEPT = 4096
LONGEST_STEP_NS = 60_000_000_000
"""An Admit waits for the step that runs, before its sequence is there."""
MOST_FAILURES = 50
"""A sequence whose step of one token fails so often in a row has failed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedBlock:
    """One block of a running load, to be written at the next boundary."""

    xfer_id: int
    block: int
    payload: bytes


COPIED = (LoadedBlock, TransferDone)


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
        backend: Backend,
        *,
        budget: StepBudget,
        start_transfer: Callable[[OffloadOrder | LoadOrder], None],
        on_end: Callable[[SequenceEnd], None] = lambda end: None,
        abort_transfer: Callable[[int], None] = lambda xfer_id: None,
        merge_ns: int | None = None,
    ) -> None:
        self.backend = backend
        self.pool = backend.pool
        self.labels = Labels()
        self.budget = budget
        self.steps = 0
        self.mixed_steps = 0
        self.before_wait: Callable[[], None] = lambda: None
        """Called when everything is ready for a step, right before the thread leaves the interpreter to others for its time."""
        self._start_transfer = start_transfer
        self._abort_transfer = abort_transfer
        self._on_end = on_end
        self._slots = SlotTable(self.pool.block_tokens)
        self._by_seq: dict[int, Sequence] = {}
        self._by_slot: dict[int, Sequence] = {}
        self._transfers: set[int] = set()
        self._ended: dict[int, int] = {}  # xfer_id -> ok_blocks, for an Admit that comes later
        self._applied = 0  # orders of this epoch
        self._inbox: deque[Order | LoadedBlock | TransferDone] = deque()
        self._reporter = Reporter(merge_ns)
        self._relief = Relief()
        self._backed_blocks = 0  # of the pool, from the first on; 0: all
        self._blends = BlendQueue(backend)
        self._steady: SteadyRun | None = None

    # --- what other threads may call -------------------------------------------------------------------------------

    def post(self, item: Order | LoadedBlock | TransferDone) -> None:
        """Queues an order, a loaded block or a transfer's end for the next boundary (deque.append is atomic)."""
        self._inbox.append(item)
        if self.backend.repeats and not isinstance(item, UNDISTURBING + COPIED):
            self.backend.hold()  # what is copied disturbs only who waits for it, and beside those no step runs ahead

    def hold_back(self, backed_blocks: int) -> None:
        """Memory is short: blocks behind so many have none yet, and the scheduler is to use none of them. 0: all have."""
        self._backed_blocks = backed_blocks

    # --- one iteration ---------------------------------------------------------------------------------------------

    def run_once(self) -> bool:
        """Applies what was posted, then one step if any sequence can. Returns whether a step ran."""
        began_ns = time.monotonic_ns()
        self.apply_inbox()
        steady = self._steady
        if steady is not None:
            if steady.left > 0:
                self._run_again(steady)
                return True
            self.end_run()
        blended = self._blend()
        step = compose(views(self._by_slot.values(), self.pool.block_tokens), self._step_budget)
        if step.chunks:
            self._run(step, began_ns)
        self._reporter.starved(step.starved)
        return bool(step.chunks) or blended

    def take_reports(self, *, force: bool = False, live: bool = False) -> list[Report]:
        """The reports that are due, oldest first; steps of equal composition may still be merged into the next one.

        `force` gives the current one in any case, also empty; `live` adds to it what is held, for the core's audit.
        """
        reports, current = self._reporter.take(self.steps, force=force)
        if current is not None:
            if live:
                current.live_seqs, current.live_transfers = list(self._by_seq), list(self._transfers)
                current.orders_applied = self._applied
                current.backed_blocks = self._backed_blocks
            reports.append(current)
        return reports

    @property
    def report_pending(self) -> bool:
        """Something happened that no report has told yet."""
        return self._reporter.pending

    @property
    def busy(self) -> bool:
        """It holds sequences (running, paused, waiting for a load or for their leader)."""
        return bool(self._by_seq)

    @property
    def has_work(self) -> bool:
        """A sequence should be stepping: neither paused nor waiting. Only for the step thread."""
        return any(not (seq.paused or seq.waiting) for seq in self._by_seq.values())

    @property
    def blending(self) -> bool:
        """Chunks are being put together, in pieces that are no step of the backend. Only for the step thread."""
        return self._blends.first is not None

    def reset(self) -> None:
        """A new epoch: forgets every order, sequence and transfer. Labels stay: the pool's content is still valid."""
        self._inbox.clear()
        self.end_run()
        for seq in self._by_seq.values():
            self._on_end(SequenceEnd(seq, "epoch", time.time_ns()))
        self._by_seq.clear()
        self._by_slot.clear()
        self._blends.clear()
        self._transfers.clear()
        self._ended.clear()
        self._applied = 0
        self._reporter.clear()

    # --- orders ----------------------------------------------------------------------------------------------------

    def apply_inbox(self) -> None:
        """Applies everything that was posted before this call, in order."""
        if self.backend.repeats:
            self.backend.release()  # before the look: what is posted from now on holds again
        for _ in range(len(self._inbox)):
            self._apply(self._inbox.popleft())

    def _apply(self, item: Order | LoadedBlock | TransferDone) -> None:
        if not isinstance(item, LoadedBlock | TransferDone):
            self._applied += 1
            if self._steady is not None and not isinstance(item, UNDISTURBING):
                self.end_run()
        match item:
            case AdmitOrder():
                self._admit(item)
            case GrantOrder():
                self._grant(item)
            case ForkOrder():
                beams.fork(item, self._by_seq, self.pool, self._slots)
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
            case AbortOrder():
                if item.xfer_id in self._transfers:
                    self._abort_transfer(item.xfer_id)
            case LoadedBlock():
                if item.xfer_id in self._transfers:
                    self.pool.write_block(item.block, item.payload)
            case TransferDone():
                self._transfer_done(item)
            case LabelOrder():
                self.labels.set(item.blocks, item.keys, item.parents)
                self.labels.forget(item.blocks[len(item.keys) :])
            case PolicyOrder():
                self.budget = StepBudget(item.budget_with_decodes, item.budget_alone, item.max_seqs)

    def _admit(self, order: AdmitOrder) -> None:
        fault = (
            admit_fault(order, self.pool, self.backend.vocab_size)
            or self._slot_fault(order)
            or self._blends.fault(order)
        )
        if order.seq in self._by_seq:
            log.error("seq %d was admitted twice; the second Admit is passed over", order.seq)
            return
        if fault:
            log.error("seq %d cannot run: %s", order.seq, fault)
            group: tuple[AdmitOrder | SiblingOrder, ...] = (order, *order.siblings)
            for refused in group:
                self._reporter.finish(SeqFinish(refused.slot, refused.seq, "failed", 0, fault))
                self._reporter.release(Released(refused.seq, len(order.tokens), 0))
            return
        leader = from_admit(order, time.time_ns())
        size = self.pool.block_tokens
        # what is blended is written anew, and is nobody else's
        self.labels.forget(leader.blocks[0 if order.blend_parts else leader.computed // size :])
        for sibling in leader.siblings:
            self.labels.forget(sibling.blocks[sibling.shared_blocks(leader) :])
        for seq in (leader, *leader.siblings):
            self._by_seq[seq.seq] = self._by_slot[seq.slot] = seq
            self._slots.admit(seq)
        if leader.wait_xfer and leader.wait_xfer not in self._transfers:
            self._start_after_load(leader, self._ended.get(leader.wait_xfer, 0))
        if order.blend_parts:
            self._blends.add(leader, order)

    def _slot_fault(self, order: AdmitOrder) -> str:
        slots = (order.slot, *(sibling.slot for sibling in order.siblings))
        taken = [slot for slot in slots if slot in self._by_slot]
        return f"slot: {taken[0]} is taken by seq {self._by_slot[taken[0]].seq}" if taken else ""

    def _grant(self, order: GrantOrder) -> None:
        seq = self._by_seq.get(order.seq)
        if seq is None:
            return
        if fault := blocks_fault(order.blocks, self.pool):
            self.end_run()
            if order.seq in self._by_seq:  # or a step ahead has ended it
                self._fail(seq, fault)
            return
        self.labels.forget(order.blocks)
        self._slots.grant(seq.slot, order.blocks, start=len(seq.blocks))
        seq.blocks.extend(order.blocks)
        if self._steady is not None:
            self._steady.measure(self.pool.block_tokens)

    def _stop(self, order: StopOrder) -> None:
        if seq := self._by_seq.get(order.seq):
            self._leave(seq, order.reason)

    def _leave(self, seq: Sequence, reason: str) -> None:
        """Ends the residency: nothing of it is launched at a boundary, so its hold ends with this report."""
        del self._by_seq[seq.seq], self._by_slot[seq.slot]
        self._blends.drop(seq)
        self._reporter.release(Released(seq.seq, len(seq.tokens), seq.computed))
        self._on_end(SequenceEnd(seq, reason, time.time_ns()))
        if seq.leader:
            self._by_seq[seq.leader].siblings.remove(seq)
        if seq.siblings:
            groups.promote(seq, self.pool.block_tokens)

    def _fail(self, seq: Sequence, message: str) -> None:
        log.error("seq %d failed: %s", seq.seq, message)
        self._reporter.finish(SeqFinish(seq.slot, seq.seq, "failed", 0, message))
        self._leave(seq, "failed")

    def _transfer_done(self, done: TransferDone) -> None:
        if done.xfer_id not in self._transfers:
            return
        self._transfers.discard(done.xfer_id)
        self._reporter.transfer_done(done)
        self._ended[done.xfer_id] = done.ok_blocks
        if len(self._ended) > ENDED_TRANSFERS_KEPT:
            self._ended.pop(next(iter(self._ended)))
        for seq in [seq for seq in self._by_seq.values() if seq.wait_xfer == done.xfer_id]:
            self._start_after_load(seq, done.ok_blocks)

    def _start_after_load(self, seq: Sequence, ok_blocks: int) -> None:
        self.end_run()
        seq.load_ended(seq.wait_base + ok_blocks * self.pool.block_tokens)
        seq.loaded_ns = time.time_ns()

    # --- the step --------------------------------------------------------------------------------------------------

    def _run(self, step: Step, began_ns: int) -> None:
        wall = time.time_ns()
        self._reporter.begin_step(step)
        batch = build_batch(step.chunks, self._by_slot, self._slots)
        ran = self._compute(step, self.backend.launch, batch)
        if ran is None:
            return
        launched, result = ran
        self.mixed_steps += bool(step.decode_seqs and step.prefill_tokens)
        self._advance(step.chunks, wall)
        for seq, token, logprobs in zip(batch.rows, result.sampled.tokens, result.sampled.logprobs, strict=True):
            self._commit(seq, token, logprobs, result.sample_ns)
        if self.backend.repeats and self._blends.first is None and is_steady(step, batch.rows, self._by_seq):
            self._steady = SteadyRun(batch.rows, step, launched, self.pool.block_tokens)
        wall_ns = time.monotonic_ns() - began_ns
        self._reporter.end_step(step, self.steps, wall_ns, result.forward_ns, result.sample_ns)

    def _run_again(self, run: SteadyRun) -> None:
        """The last step's decodes once more; the backend may be ahead, up to where something must be decided."""
        most = run.left if len(run.seqs) == len(self._by_seq) else 1  # who waits may begin at any boundary
        ran = self._compute(run.step, lambda launched: self.backend.again(launched, most, run.stops), run.launched)
        if ran is not None:
            run.launched, result = ran
            self._take(run, result)

    def _take(self, run: SteadyRun, result: StepResult) -> None:
        """Books a repeated step."""
        tokens = result.sampled.tokens
        if run.takes(tokens):
            run.add(tokens)
            self._reporter.repeat(run.slots, run.at, tokens, run.computed)
        else:
            self._close_steady()
            self._reporter.begin_step(run.step)
            for seq, token in zip(run.seqs, tokens, strict=True):
                seq.reach(seq.computed + 1)
                self._commit(seq, token, None, result.sample_ns)
        self._reporter.end_step(run.step, self.steps, result.forward_ns, result.forward_ns, result.sample_ns)

    def _compute(self, step: Step, launch: Callable[[Any], Any], given: Any) -> tuple[Any, StepResult] | None:
        """Launches a step and waits for it: the backend's handle and what it came to. None: there was no memory, and it is shed."""
        self.before_wait()
        try:
            launched = launch(given)
            result = self.backend.result(launched)
        except (MemoryError, RuntimeError) as error:
            if not self.backend.out_of_memory(error):
                raise
            self.end_run()
            self._shed(step, error)
            return None
        self._ran()
        return launched, result

    def _ran(self) -> None:
        self._relief.ran(self.budget)
        self.steps += 1

    def end_run(self) -> None:
        """Before anybody looks at the sequences of a steady run, or no step may be on: takes what the backend has done ahead."""
        run = self._steady
        if run is None:
            return
        for result in self.backend.land():
            self._ran()
            self._take(run, result)
        self._close_steady()

    def _close_steady(self) -> None:
        if self._steady is not None:
            self._steady.book(self._slots)
            self._steady = None

    def _blend(self) -> bool:
        """One step of the blend that is under way, if there is one: booked as a prefill of the tokens that it is worth."""
        seq = self._blends.first
        if seq is None:
            return False
        began_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        budget = self._step_budget
        try:
            tokens = self._blends.run(budget.with_decodes if len(self._by_seq) > 1 else budget.alone)
        except (MemoryError, RuntimeError) as error:
            if not self.backend.out_of_memory(error):
                raise
            self.backend.relieve()
            self._fail(seq, f"out of memory while chunks were blended: {error}")
            return True
        seq.started_ns = seq.started_ns or wall_ns
        if tokens:
            seq.chunks.append((wall_ns, tokens))
            step = Step(prefill_tokens=tokens)
            self._reporter.begin_step(step)
            self.steps += 1
            self._reporter.advance(seq.slot, seq.computed)
            took_ns = time.monotonic_ns() - began_ns
            self._reporter.end_step(step, self.steps, took_ns, took_ns, 0)
        return True

    def _advance(self, chunks: list[Chunk], wall_ns: int) -> None:
        """Books the computed positions, and splits the groups whose prefill has ended."""
        for chunk in chunks:
            seq = self._by_slot[chunk.slot]
            self._start_chunk(seq, chunk, wall_ns)
            seq.reach(chunk.start + chunk.count)
            if seq.runs_low(self.pool.block_tokens):
                self._reporter.runs_low()
            if not chunk.samples:
                self._reporter.advance(seq.slot, seq.computed)
            if seq.siblings:
                groups.split(seq, self.pool, ended=chunk.samples)

    def _start_chunk(self, seq: Sequence, chunk: Chunk, wall_ns: int) -> None:
        """Notes a prefill chunk for the span; a decode behind a token that is still drawn is none."""
        if chunk.count > 1 or not (seq.first_token_ns or seq.tokens[chunk.start] == PENDING):
            seq.started_ns = seq.started_ns or wall_ns
            seq.chunks.append((wall_ns, chunk.count))

    def _commit(self, seq: Sequence, token: int, logprobs: TokenLogprobs | None, sample_ns: int) -> None:
        """Books one sampled token; ends the sequence when the token says so. A negative one: the row was not finite."""
        if seq.sampling.beam and token >= 0 and logprobs is not None:
            self._offer(seq, logprobs, sample_ns)
            return
        self._reporter.advance(seq.slot, seq.computed, token, logprobs)
        if token < 0:
            self._fail(seq, "the model gave logits that are not finite for this sequence")
            return
        self._slots.append(seq.slot, len(seq.tokens), token)
        seq.tokens.append(token)
        seq.steps += 1
        if not seq.first_token_ns:
            self._first_token(seq, sample_ns)
        if reason := seq.finish_reason(token):
            self._reporter.finish(SeqFinish(seq.slot, seq.seq, reason, token if reason == "stop" else 0))
            self._leave(seq, reason)

    def _offer(self, seq: Sequence, logprobs: TokenLogprobs, sample_ns: int) -> None:
        """A beam takes no token: the scheduler chooses among what all of its group offer."""
        self._reporter.advance(seq.slot, seq.computed)
        self._reporter.beam_row(beams.row_of(seq, logprobs))
        seq.parked = True
        seq.steps += 1
        if not seq.first_token_ns:
            self._first_token(seq, sample_ns)

    def _first_token(self, seq: Sequence, sample_ns: int) -> None:
        seq.first_token_ns = time.time_ns()
        # wall clock, since spans need it; it may be set, and a duration is neither negative nor longer than what has passed
        passed_ns = time.monotonic_ns() - seq.taken_ns + LONGEST_STEP_NS
        wait_us = min(passed_ns, max(0, seq.started_ns - seq.admitted_ns)) // 1000
        prefill_us = min(passed_ns, max(0, seq.first_token_ns - seq.started_ns)) // 1000
        load_us = min(wait_us, max(0, seq.loaded_ns - seq.admitted_ns) // 1000)
        sample_us = min(prefill_us, sample_ns // 1000)
        self._reporter.first_token(
            FirstToken(
                seq.seq, wait_us, prefill_us, len(seq.chunks), load_us, sample_us, seq.dispatch_us, seq.first_token_ns
            )
        )

    def _shed(self, step: Step, error: BaseException) -> None:
        """Out of memory: the step did not run, and nothing of it is lost. The scheduler is told, and the step is tried again
        with half the tokens, down to one sequence alone; only what fails all alone again and again has failed.
        """
        tokens = sum(chunk.count for chunk in step.chunks)
        self._relief.failed(tokens, len(step.chunks))
        self._reporter.allocation_failed()
        self.backend.relieve()
        if self._relief.failures == 1:
            log.warning("out of memory in a step of %d sequences, %d tokens: %s", len(step.chunks), tokens, error)
        if tokens == 1 and self._relief.failures >= MOST_FAILURES:
            self._fail(self._by_slot[step.chunks[0].slot], f"out of memory in a step of one token: {error}")

    @property
    def _step_budget(self) -> StepBudget:
        """The scheduler's, or less after an allocation failed."""
        return self._relief.of(self.budget)
