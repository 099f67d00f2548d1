"""What a step moves and multiplies at least, and which peak of the machine it came closer to (roofline, Williams et al. 2009)."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.orders import Report

Bound = Literal["memory", "compute", "host"]
HOST_SHARE: Final = 0.2
"""Below this share of both peaks neither memory nor arithmetic explains the time."""
KEPT_REPORTS: Final = 20_000
LEAST_S: Final = 0.005
"""Shorter forwards are too short to say what the machine reaches."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the machine reaches, measured at the start."""

    bytes_per_s: float
    flops_per_s: float

    def raised_by(self, work: Work) -> Peaks:
        """A peak that steps exceed was measured on a machine that had other things to do: what was achieved is the peak."""
        if work.seconds < LEAST_S:
            return self
        read, done = work.bytes / work.seconds, work.flops / work.seconds
        if read <= self.bytes_per_s and done <= self.flops_per_s:
            return self
        return Peaks(max(self.bytes_per_s, read), max(self.flops_per_s, done))


@dataclass(slots=True)
class Work:
    """Sums over some steps; seconds of their forward passes."""

    seconds: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0

    def memory_share(self, peaks: Peaks) -> float:
        """Achieved bytes/s over the peak."""
        return self.bytes / self.seconds / peaks.bytes_per_s if self.seconds else 0.0

    def compute_share(self, peaks: Peaks) -> float:
        """Achieved FLOP/s over the peak."""
        return self.flops / self.seconds / peaks.flops_per_s if self.seconds else 0.0

    def bound(self, peaks: Peaks) -> Bound:
        """The larger share, or host when both are small."""
        memory, compute = self.memory_share(peaks), self.compute_share(peaks)
        if max(memory, compute) < HOST_SHARE:
            return "host"
        return "memory" if memory >= compute else "compute"


def work_of(report: Report, model: Limits) -> Work:
    """The least work of a report's steps: weights read once per step, visible KV once per sequence, no intermediate result."""
    context = sum(report.computed_len)
    decoded = report.decode_seqs * report.steps
    tokens = decoded + report.prefill_tokens
    sampled = sum(map(len, report.tokens))
    # each slot's context is read by every decode step, and once by a prefill
    reads = report.steps if report.decode_seqs else 1
    pairs = context * reads if report.decode_seqs else report.prefill_tokens * context / max(1, len(report.slots)) / 2
    return Work(
        seconds=report.forward_us / 1e6,
        bytes=model.weight_bytes * report.steps + model.kv_token_bytes * context * reads,
        flops=2 * (model.token_macs * tokens + model.head_macs * sampled + model.pair_macs * pairs),
    )


class WorkLog:
    """Running sums at the end of each report, so that the work within a span's time can be told later."""

    def __init__(self) -> None:
        self._at_ns: deque[int] = deque(maxlen=KEPT_REPORTS)
        self._sums: deque[tuple[float, float, float]] = deque(maxlen=KEPT_REPORTS)

    def add(self, at_ns: int, work: Work) -> None:
        """The work of a report that ended at `at_ns`, wall clock."""
        before = self._sums[-1] if self._sums else (0.0, 0.0, 0.0)
        self._at_ns.append(at_ns)
        self._sums.append((before[0] + work.seconds, before[1] + work.bytes, before[2] + work.flops))

    def between(self, start_ns: int, end_ns: int) -> Work:
        """The work of the reports that ended in (start_ns, end_ns]; nothing when they are too old or too new."""
        first, last = bisect_left(self._at_ns, start_ns + 1), bisect_left(self._at_ns, end_ns + 1)
        if last <= first:
            return Work()
        begin = self._sums[first - 1] if first else (0.0, 0.0, 0.0)
        end = self._sums[last - 1]
        return Work(end[0] - begin[0], end[1] - begin[1], end[2] - begin[2])
