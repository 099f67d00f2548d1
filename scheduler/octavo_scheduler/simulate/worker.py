"""A simulated worker: standing orders in, steps of a predicted length, reports out. It follows the real engine's rules.

Composition is `octavo.step.compose`; orders apply at iteration boundaries; a finished sequence is released with its
last token; a report may cover several steps of equal composition and leaves as the real worker's does.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Sequence

from octavo.step import Step, StepBudget, compose

from octavo_scheduler.events import Finish, FirstToken, Released, Reported, TransferDone, WorkerJoined
from octavo_scheduler.orders import (
    Abort,
    Admit,
    Grant,
    Label,
    Leave,
    Load,
    Offload,
    Order,
    SiblingAdmit,
    StepPolicy,
    Stop,
    Update,
)
from octavo_scheduler.simulate.decoding import Quiet, SimSequence
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.store import SimulatedStore

MERGE_US = 5000
LOW_WATER = 2
BUSY_REPORT_US = 100_000
IDLE_REPORT_US = 1_000_000
LIVE_LIST_US = 1_000_000
"""The real worker's constants: its reporter, its engine and its step loop."""


class SimulatedWorker:
    """One worker on the cell's clock. The loop calls `boundary` whenever a step ends or a wake-up is due."""

    __slots__ = (
        "_applied",
        "_by_seq",
        "_by_slot",
        "_flush",
        "_last_live_us",
        "_last_report_us",
        "_order",
        "_quiet",
        "_report",
        "_since_us",
        "_steady",
        "_step",
        "_step_us",
        "_transfers",
        "budget",
        "busy_us",
        "epoch",
        "hardware",
        "inbox",
        "leaving",
        "link_bytes",
        "link_free_us",
        "link_us",
        "peak_running",
        "role",
        "steps",
        "store",
        "tokens_of",
        "wake_us",
        "worker_id",
    )

    def __init__(
        self, worker_id: str, epoch: int, hardware: Hardware, store: SimulatedStore | None = None, role: str = "both"
    ) -> None:
        self.role = role
        self.link_free_us = 0.0  # when the payload of all transfers so far has passed
        self.link_us = 0.0
        self.link_bytes = 0
        self.worker_id = worker_id
        self.epoch = epoch
        self.hardware = hardware
        self.store = store
        self.budget = StepBudget(512, 2048, hardware.max_num_seqs)
        self.inbox: deque[tuple[int, Sequence[Order]]] = deque()  # (arrives_us, orders)
        self.steps = 0
        self.busy_us = 0.0
        self.wake_us = 0  # when the loop is to call boundary next
        self.tokens_of: list[str] = []  # request of each slot of the report at hand, as its `slots`
        self._applied = 0
        self._by_seq: dict[int, SimSequence] = {}
        self._by_slot: dict[int, SimSequence] = {}
        self._transfers: list[tuple[int, int, Load | Offload, int, int]] = []
        """Heap of (ends_us, xfer_id, order, took_us, the part of it that waited for the link)."""
        self._step: Step | None = None
        self._steady: Step | None = None  # what compose would give again: nothing but decodes, nobody came or left
        self._quiet: Quiet | None = None  # the sequences of `_steady`, while nothing can happen to them
        self._step_us = 0
        self._order: tuple[int, ...] | None = None
        self._report = Reported(0, epoch)
        self._flush = False
        self._since_us = 0
        self._last_report_us = self._last_live_us = 0
        self.peak_running = 0
        self.leaving = False

    def hello(self, now_us: int) -> WorkerJoined:
        """Its first message."""
        self._last_report_us = self._last_live_us = now_us
        hardware = self.hardware
        return WorkerJoined(
            now_us,
            self.epoch,
            self.worker_id,
            hardware.num_blocks,
            hardware.block_tokens,
            hardware.max_num_seqs,
            hardware.max_model_len,
            block_bytes=hardware.block_bytes,
            store_id=self.store.store_id if self.store is not None else "",
            root_key=bytes(32),
            model=hardware.name,
            calibration=hardware.calibration,
            role=self.role,
        )

    # -- one iteration -----------------------------------------------------------------------------------------------

    def boundary(self, now_us: int) -> list[tuple[Reported, list[str]]]:
        """Ends the running step, applies what has arrived, starts the next; returns the reports that leave now.

        Each comes with the request of every slot in it. `wake_us` is then the time of the next boundary.
        """
        leaving: list[tuple[Reported, list[str]]] = []
        stepped = self._step is not None
        if self._step is not None:
            if self._quiet is not None:
                self._end_quiet_step(self._step, self._quiet, now_us)
            else:
                self._end_step(self._step, now_us)
            self._step = None
        while self.inbox and self.inbox[0][0] <= now_us:
            arrived_us, orders = self.inbox.popleft()
            self._applied += len(orders)
            for order in orders:
                # what goes out is computed and held: its copy began when the order came, whatever ran then
                self._apply(order, arrived_us if isinstance(order, Offload) else now_us)
        while self._transfers and self._transfers[0][0] <= now_us:
            _ends, _xfer_id, order, took_us, queue_us = heapq.heappop(self._transfers)
            self._end_transfer(order, took_us, queue_us)
        if stepped and (self._flush or now_us - self._since_us >= MERGE_US):
            leaving.append(self._take(now_us))
        step, self._steady = self._steady or compose(self._by_seq.values(), self.budget), None
        if step.starved:
            self._report.starved = step.starved
            self._flush = True
        if step.chunks:
            self._start_step(step, now_us, leaving)
            return leaving
        limit_us = BUSY_REPORT_US if self._by_seq else IDLE_REPORT_US
        if self._flush or self._report.steps or now_us - self._last_report_us >= limit_us:
            leaving.append(self._take(now_us))
        self.wake_us = self._last_report_us + limit_us
        if self._transfers:
            self.wake_us = min(self.wake_us, self._transfers[0][0])
        if self.inbox:
            self.wake_us = min(self.wake_us, self.inbox[0][0])
        return leaving

    @property
    def stepping(self) -> bool:
        """A step runs: orders that arrive now wait for its end."""
        return self._step is not None

    def _start_step(self, step: Step, now_us: int, leaving: list[tuple[Reported, list[str]]]) -> None:
        by_slot = self._by_slot
        if self._quiet is not None:
            context = self._quiet.context
        else:
            order = None if step.prefill_tokens else tuple([chunk.slot for chunk in step.chunks])
            if self._report.steps and (order is None or order != self._order):
                leaving.append(self._take(now_us))
            self._order = order
            context = sum([chunk.start + chunk.count for chunk in step.chunks])
            if order is not None and not step.starved:
                self._calm_down([by_slot[slot] for slot in order])
        self._step = step
        wall_us = self.hardware.step_us(step.prefill_tokens, step.decode_seqs, context)
        self._step_us = max(1, int(wall_us))
        self.busy_us += wall_us
        if step.prefill_tokens:
            for chunk in step.chunks:
                sequence = by_slot[chunk.slot]
                if sequence.started_us < 0:
                    sequence.started_us = now_us
        self.peak_running = max(self.peak_running, len(step.chunks))
        self.wake_us = now_us + max(1, int(wall_us + self.hardware.gap_us))

    def _end_step(self, step: Step, now_us: int) -> None:
        self.steps += 1
        report = self._report
        fresh = not report.steps
        if fresh:
            self._since_us = now_us - self._step_us
        report.steps += 1
        report.wall_us += self._step_us
        report.prefill_tokens += step.prefill_tokens
        report.decode_seqs = step.decode_seqs
        if step.prefill_tokens:
            self._flush = True
        slots, counts, computed, owners = report.slots, report.counts, report.computed_len, self.tokens_of
        by_slot, running = self._by_slot, len(self._by_seq)
        low = False
        for index, chunk in enumerate(step.chunks):
            slot = chunk.slot
            sequence = by_slot[slot]
            sequence.computed = done = chunk.start + chunk.count
            if sequence.hidden:
                sequence.join()
                sequence.settle_pause()
                done = sequence.computed
            if sequence.capacity + sequence.hidden - done <= LOW_WATER:
                low = True
            said = chunk.samples
            if fresh:
                slots.append(slot)
                counts.append(1 if said else 0)
                computed.append(done)
                owners.append(sequence.request_id)
            else:  # a merged step decodes the slots of the one before, in their order
                counts[index] += 1
                computed[index] = done
            if said:
                sequence.length = length = sequence.length + 1
                if not sequence.spoke:
                    self._first(sequence, now_us)
                    if sequence.siblings:
                        self._split(sequence, now_us)
                if length >= sequence.end_len:
                    self._finish(sequence)
        self._flush = self._flush or low
        if len(step.chunks) == running and self._by_seq:
            self._go_on(step)

    def _go_on(self, step: Step) -> None:
        """All that were there were in the step: with a token from each, the next step is theirs again, less who has left."""
        by_slot = self._by_slot
        if len(self._by_seq) != len(step.chunks):
            step.chunks = [chunk for chunk in step.chunks if chunk.slot in by_slot]
        if step.prefill_tokens:
            slots = [chunk.slot for chunk in step.chunks]
            if not all([chunk.samples for chunk in step.chunks]) or slots != list(by_slot):
                return
            step.prefill_tokens = 0
        step.decode_seqs = len(step.chunks)
        for chunk in step.chunks:
            chunk.start, chunk.count = chunk.start + chunk.count, 1
            if by_slot[chunk.slot].capacity <= chunk.start:
                return  # it starves
        self._steady = step

    def _calm_down(self, sequences: list[SimSequence]) -> None:
        """Whether the decodes that begin now, and the steps after them, need only be counted."""
        rooms = [sequence.capacity - sequence.computed for sequence in sequences]
        # as long as it is the same ones that are short of room
        left = min([room - 1 if room <= LOW_WATER else room - LOW_WATER - 1 for room in rooms])
        left = min(left, min([sequence.end_len - sequence.length for sequence in sequences]) - 1)
        if left > 0 and all([sequence.spoke and not sequence.hidden for sequence in sequences]):
            self._quiet = Quiet(sequences, left, min(rooms) <= LOW_WATER)

    def _end_quiet_step(self, step: Step, quiet: Quiet, now_us: int) -> None:
        self.steps += 1
        report = self._report
        if not report.steps:
            self._since_us = now_us - self._step_us
            report.slots, report.counts, self.tokens_of = quiet.slots, [1] * len(quiet.slots), quiet.owners
        else:
            report.counts = [count + 1 for count in report.counts]
        report.steps += 1
        report.wall_us += self._step_us
        report.decode_seqs = step.decode_seqs
        report.computed_len = quiet.pass_step()
        self._flush = self._flush or quiet.low
        self._steady = step
        if not quiet.left:
            self._stir()

    def _stir(self) -> None:
        """Something may happen: books what has only been counted."""
        quiet, self._quiet = self._quiet, None
        if quiet is None or not quiet.passed:
            return
        for sequence in quiet.sequences:
            sequence.computed += quiet.passed
            sequence.length += quiet.passed
        for chunk in self._steady.chunks if self._steady is not None else ():
            chunk.start += quiet.passed

    def _first(self, sequence: SimSequence, now_us: int) -> None:
        sequence.spoke = True
        started_us = sequence.started_us if sequence.started_us >= 0 else now_us
        wait_us = started_us - sequence.admitted_us
        self._report.first_tokens.append(FirstToken(sequence.seq, wait_us, now_us - started_us, 1))
        self._flush = True

    def _finish(self, sequence: SimSequence) -> None:
        self._report.finishes.append(Finish(sequence.slot, sequence.seq, sequence.ends_by))
        self._leave(sequence)

    def _split(self, leader: SimSequence, now_us: int) -> None:
        """The end of the leader's prefill: its siblings begin to live, each with a first token of its own."""
        siblings, leader.siblings = leader.siblings, []
        report = self._report
        for sibling in siblings:
            sibling.computed, sibling.unsplit, sibling.started_us = leader.computed, False, leader.started_us
            sibling.settle_pause()
            sibling.length += 1
            report.slots.append(sibling.slot)
            report.counts.append(1)
            report.computed_len.append(sibling.computed)
            self.tokens_of.append(sibling.request_id)
            self._first(sibling, now_us)
            if sibling.length >= sibling.end_len:
                self._finish(sibling)

    def _leave(self, sequence: SimSequence) -> None:
        del self._by_seq[sequence.seq]
        del self._by_slot[sequence.slot]
        self._report.released.append(Released(sequence.seq, sequence.length, sequence.computed))
        self._flush = True
        for leader in self._by_seq.values() if sequence.unsplit else ():
            if sequence in leader.siblings:
                leader.siblings.remove(sequence)
        if sequence.siblings:
            self._promote(sequence)

    def _promote(self, leader: SimSequence) -> None:
        """The leader left before its prefill ended: its first sibling goes on from the full blocks that they share."""
        heir, *others = leader.siblings
        size = self.hardware.block_tokens
        heir.computed = min(leader.computed, heir.prompt_len // size * size, heir.length - 1)
        heir.siblings, heir.unsplit = others, False
        heir.wait_xfer, heir.wait_base = leader.wait_xfer, leader.wait_base
        heir.settle_pause()

    def _take(self, now_us: int) -> tuple[Reported, list[str]]:
        """The current report, ready to leave."""
        report, owners = self._report, self.tokens_of
        report.step = self.steps
        report.draining = self.leaving
        report.tokens = array("I", bytes(4 * sum(report.counts)))
        if now_us - self._last_live_us >= LIVE_LIST_US:
            self._last_live_us = now_us
            report.live_seqs = list(self._by_seq)
            report.live_transfers = [entry[1] for entry in self._transfers]
            report.orders_applied = self._applied
        self._last_report_us = now_us
        self._report = Reported(0, self.epoch)
        self.tokens_of = []
        self._flush = False
        return report, owners

    def _unsteady(self) -> None:
        self._stir()
        self._steady = None

    # -- orders ------------------------------------------------------------------------------------------------------

    def _apply(self, order: Order, now_us: int) -> None:
        if isinstance(order, Grant):
            granted = self._by_seq.get(order.seq)
            if granted is not None:
                granted.grow(len(order.block_ids) * self.hardware.block_tokens)
                if self._quiet is not None and self._quiet.low:
                    self._stir()  # it may be the one that was short
            return
        if isinstance(order, Label):
            return  # names of blocks are for its next Hello
        self._unsteady()
        if isinstance(order, Admit):
            self._admit(order, now_us)
        elif isinstance(order, Stop):
            stopped = self._by_seq.get(order.seq)
            if stopped is not None:
                self._leave(stopped)
        elif isinstance(order, Leave):
            self.leaving = self._flush = True
        elif isinstance(order, StepPolicy):
            self.budget = StepBudget(order.budget_with_decodes, order.budget_alone, order.max_seqs)
        elif isinstance(order, Update):
            updated = self._by_seq.get(order.seq)
            if updated is not None:
                updated.rank, updated.held = order.rank, order.paused
                updated.settle_pause()
        elif isinstance(order, Load | Offload):
            self._start_transfer(order, now_us)
        elif isinstance(order, Abort):
            self._abort(order.xfer_id, now_us)

    def _admit(self, order: Admit, now_us: int) -> None:
        size = self.hardware.block_tokens
        leader = SimSequence(order, order.seq, order.slot, len(order.block_ids), size, now_us)
        family: list[Admit | SiblingAdmit] = [order, *order.siblings]
        for member in family[1:]:
            sibling = SimSequence(order, member.seq, member.slot, len(member.block_ids), size, now_us)
            sibling.computed, sibling.unsplit, sibling.wait_xfer = 0, True, 0
            leader.siblings.append(sibling)
        for sequence in (leader, *leader.siblings):
            self._by_seq[sequence.seq] = self._by_slot[sequence.slot] = sequence
            sequence.settle_pause()
        if leader.wait_xfer and all(entry[1] != leader.wait_xfer for entry in self._transfers):
            self._start_after_load(leader, 0)

    def _start_transfer(self, order: Load | Offload, now_us: int) -> None:
        """Payloads share the worker's link, one after another; their fixed parts overlap."""
        size = len(order.block_ids) * self.hardware.block_bytes
        payload_us = size / self.hardware.tier_bytes_per_us
        if isinstance(order, Load) and order.limit_us:  # what has not come by then is left
            most_us = order.limit_us - max(0.0, self.link_free_us - now_us) - self.hardware.tier_fixed_us
            payload_us = min(payload_us, max(0.0, most_us))
        queue_us = max(0, int(self.link_free_us) - now_us)
        self.link_free_us = max(float(now_us), self.link_free_us) + payload_us
        self.link_us += payload_us
        self.link_bytes += size
        took_us = int(self.link_free_us + self.hardware.tier_fixed_us) - now_us
        heapq.heappush(self._transfers, (now_us + took_us, order.xfer_id, order, took_us, queue_us))

    def _abort(self, xfer_id: int, now_us: int) -> None:
        """The copy ends here with nothing of it, and leaves the link to the others."""
        found = next((entry for entry in self._transfers if entry[1] == xfer_id), None)
        if found is None:
            return
        self._transfers.remove(found)
        heapq.heapify(self._transfers)
        ends_us, _xfer_id, order, took_us, queue_us = found
        payload_us = took_us - queue_us - self.hardware.tier_fixed_us
        left_us = max(0.0, min(payload_us, ends_us - self.hardware.tier_fixed_us - now_us))
        self.link_free_us -= left_us
        self.link_us -= left_us
        self._report.transfers_done.append(TransferDone(xfer_id, 0, 0, 0, 1, ""))
        self._flush = True
        for sequence in self._by_seq.values() if isinstance(order, Load) else ():
            if sequence.wait_xfer == xfer_id:
                self._start_after_load(sequence, 0)

    def _end_transfer(self, order: Load | Offload, took_us: int, queue_us: int) -> None:
        ok = len(order.keys)
        if self.store is None:
            ok = 0
        elif isinstance(order, Load):
            payload_us = max(0.0, took_us - queue_us - self.hardware.tier_fixed_us)
            passed = int((payload_us + 1) * self.hardware.tier_bytes_per_us / self.hardware.block_bytes)
            ok = min(self.store.held_run(order.keys), passed)
        else:
            self.store.put(order.keys)
        size = ok * self.hardware.block_bytes
        lookup_us = int(self.hardware.tier_fixed_us)
        self._report.transfers_done.append(
            TransferDone(order.xfer_id, ok, size, lookup_us, max(1, took_us - lookup_us - queue_us), "dram", queue_us)
        )
        self._flush = True
        if isinstance(order, Load):
            self._unsteady()
            for sequence in self._by_seq.values():
                if sequence.wait_xfer == order.xfer_id:
                    self._start_after_load(sequence, ok)

    def _start_after_load(self, sequence: SimSequence, ok_blocks: int) -> None:
        loaded = sequence.wait_base + ok_blocks * self.hardware.block_tokens
        sequence.wait_xfer = 0
        if sequence.hidden:
            sequence.joins_len = loaded
            sequence.join()
        else:
            sequence.computed = min(max(sequence.computed, loaded), sequence.length - 1)
        sequence.settle_pause()
