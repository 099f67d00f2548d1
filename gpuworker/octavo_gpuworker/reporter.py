"""Reporter: collects what steps did into reports, and says when one is due.

A report may cover k steps of equal composition (pure decodes of the same slots). It leaves at the first of: the merge time, a step
with prefill, a first token, a finish, a release, an ended transfer, a starved slot, a table that runs low.
"""

from __future__ import annotations

import time

from octavo.step import Step

from octavo_gpuworker.orders import BeamRow, FirstToken, Released, Report, SeqFinish, TokenLogprobs, TransferDone

MERGE_NS = 5_000_000
"""Steps within this time of the report's first one may share it, unless the worker's settings say another one."""


class Reporter:
    """The report in the making, and those before it that were closed because the composition changed."""

    def __init__(self, merge_ns: int | None = None) -> None:
        self._merge_ns = merge_ns
        self._report = Report()
        self._at: dict[int, int] = {}  # slot -> its place in the report's arrays
        self._composition: tuple[int, ...] | None = None
        self._since_ns = 0
        self._flush = False
        self._closed: list[Report] = []

    def begin_step(self, step: Step) -> None:
        """A step is about to be booked; what was booked before for other slots gets a report of its own."""
        composition = None if step.prefill_tokens else tuple([chunk.slot for chunk in step.chunks])
        report = self._report
        if report.steps and composition != self._composition:
            self._close()
        self._composition = composition
        self._flush = self._flush or composition is None

    def end_step(self, step: Step, number: int, wall_ns: int, forward_ns: int, sample_ns: int) -> None:
        """Books the step's totals; times in nanoseconds."""
        report = self._report
        if not report.steps:
            self._since_ns = time.monotonic_ns() - wall_ns
        report.step = number
        report.steps += 1
        report.wall_us += wall_ns // 1000
        report.forward_us += forward_ns // 1000
        report.sample_us += sample_ns // 1000
        report.prefill_tokens += step.prefill_tokens
        report.decode_seqs = step.decode_seqs

    def advance(self, slot: int, computed: int, token: int = -1, logprobs: TokenLogprobs | None = None) -> None:
        """The slot's KV is written up to `computed`; `token`, unless negative, was sampled."""
        report = self._report
        at = self._at.get(slot)
        if at is None:
            at = self._at[slot] = len(report.slots)
            report.slots.append(slot)
            report.tokens.append([])
            report.computed_len.append(computed)
            report.logprobs.append([])
        else:
            report.computed_len[at] = computed
        if token >= 0:
            report.tokens[at].append(token)
            if logprobs is not None:
                report.logprobs[at].append(logprobs)

    def repeat(self, slots: list[int], at: dict[int, int], tokens: list[int], computed: list[int]) -> None:
        """A step of the very composition of the last one: `advance` for all its slots, which lie at `at`, with a token each."""
        report = self._report
        if not report.slots:
            report.slots, report.computed_len = slots.copy(), computed.copy()
            report.tokens, report.logprobs = [[token] for token in tokens], [[] for _ in tokens]
            self._at = at.copy()
            return
        for slot, token, position in zip(slots, tokens, computed, strict=True):
            self.advance(slot, position, token)

    def first_token(self, first: FirstToken) -> None:
        self._report.first_tokens.append(first)
        self._flush = True

    def finish(self, finish: SeqFinish) -> None:
        self._report.finishes.append(finish)
        self._flush = True

    def beam_row(self, row: BeamRow) -> None:
        """A beam waits until the scheduler has heard of this."""
        self._report.beam_rows.append(row)
        self._flush = True

    def release(self, released: Released) -> None:
        self._report.released.append(released)
        self._flush = True

    def transfer_done(self, done: TransferDone) -> None:
        self._report.transfers_done.append(done)
        self._flush = True

    def starved(self, slots: list[int]) -> None:
        """The slots that lacked a block at this boundary."""
        self._report.starved = slots
        self._flush = self._flush or bool(slots)

    def allocation_failed(self) -> None:
        """A step did not run for lack of memory: the scheduler makes room."""
        self._report.failed_allocations += 1
        self._flush = True

    def runs_low(self) -> None:
        """A table is nearly full: the scheduler should hear of it before it is."""
        self._flush = True

    @property
    def pending(self) -> bool:
        """Something was booked that has not left."""
        return bool(self._closed) or self._flush or self._report.steps > 0

    def take(self, number: int, *, force: bool) -> tuple[list[Report], Report | None]:
        """The closed reports, and the current one when it is due; `force` takes an empty one too."""
        closed, self._closed = self._closed, []
        report = self._report
        merge_ns = MERGE_NS if self._merge_ns is None else self._merge_ns
        merging = report.steps and time.monotonic_ns() - self._since_ns < merge_ns
        if not (force or self._flush) and (merging or not report.steps):
            return closed, None
        report.step = number
        self._begin()
        return closed, report

    def clear(self) -> None:
        """Forgets everything: a new epoch."""
        self._begin()
        self._closed = []
        self._composition = None

    def _close(self) -> None:
        self._closed.append(self._report)
        self._begin()

    def _begin(self) -> None:
        self._report = Report()
        self._at = {}
        self._flush = False
