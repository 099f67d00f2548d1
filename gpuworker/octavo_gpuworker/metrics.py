"""What feeds a worker's instruments; their names stand in instruments.py."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping

from octavo.rpc.instruments import Booking, Instruments
from prometheus_client import CollectorRegistry

from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.instruments import OBSERVED, OF_A_BACKEND, PREFIX
from octavo_gpuworker.orders import Report
from octavo_gpuworker.stepwork import Peaks, Work, WorkLog, work_of


class Counts(defaultdict[str | tuple[str, str], float]):
    """Counter (and label value) -> what is added to it."""

    def __init__(self) -> None:
        super().__init__(float)


class WorkerMetrics:
    """Instruments over one registry; `observe` is called with every report."""

    def __init__(
        self,
        registry: CollectorRegistry,
        blocks: int,
        kernel_calls: Callable[[], Mapping[tuple[str, str, str], int]],
        gauges: Mapping[str, tuple[str, Callable[[], float]]],
        limits: Limits | None = None,
    ) -> None:
        self._pending: deque[tuple[int, Report]] = deque()
        self._booking = threading.Lock()
        registry.register(Booking(self.book))
        self._of = Instruments(registry, OBSERVED)
        durations = self._of.histogram(PREFIX + "step_duration_seconds")
        self._durations = {kind: durations.labels(kind) for kind in ("prefill", "decode", "mixed")}
        self._own = Instruments(registry, [item for item in OF_A_BACKEND if item.name.removeprefix(PREFIX) in gauges])
        self._of.gauge(PREFIX + "blocks").set(blocks - 1)
        for name, (_help, value) in gauges.items():  # read when they are scraped
            self._own.gauge(PREFIX + name).set_function(value)
        self._kernel_calls = kernel_calls
        self._seen: dict[tuple[str, str, str], int] = {}
        self.limits = limits
        self.peaks: Peaks | None = None
        self._work = WorkLog()

    def measure_peaks(self) -> None:
        """Measures what the machine reaches, with the backend's own threads; blocks for some tenths of a second."""
        limits = self.limits
        if limits is None:
            return
        self.peaks = Peaks(limits.stream_bytes_per_s(), 2 * limits.peak_macs_per_s())
        self._of.gauge(PREFIX + "peak_bytes_per_second").set(self.peaks.bytes_per_s)
        self._of.gauge(PREFIX + "peak_flops_per_second").set(self.peaks.flops_per_s)
        self._of.gauge(PREFIX + "weight_bytes").set(limits.weight_bytes)

    def watch_memory(self, beyond_pool_bytes: Callable[[], float]) -> None:
        """Read when it is scraped."""
        self._of.gauge(PREFIX + "beyond_pool_bytes").set_function(beyond_pool_bytes)

    def started(self, part: str, seconds: float) -> None:
        """A part of the start took so long."""
        self._of.gauge(PREFIX + "start_seconds").labels(part).set(seconds)

    def observe(self, report: Report) -> None:
        """Takes a report, for `book` to count: a step pays for one append, not for a dozen instruments. From any thread."""
        self._pending.append((time.time_ns(), report))

    def book(self) -> None:
        """Brings the instruments up to date; call it about once a second. A scrape, on a thread of its own, does it too."""
        with self._booking:
            pending = [self._pending.popleft() for _ in range(len(self._pending))]
            sums = Counts()
            for at_ns, report in pending:
                self._book_one(at_ns, report, sums)
            if pending:
                self._book_sums(sums)

    def work_between(self, start_ns: int, end_ns: int) -> Work:
        """WorkLog.between, with every report that was observed."""
        self.book()
        return self._work.between(start_ns, end_ns)

    def _book_one(self, at_ns: int, report: Report, sums: Counts) -> None:
        of = self._of
        sums["prefill_tokens"] += report.prefill_tokens
        sums["decode_tokens"] += sum(map(len, report.tokens))
        sums["starved"] += len(report.starved)
        sums["failed_allocations"] += report.failed_allocations
        for done in report.transfers_done:
            sums["transfers"] += 1
            sums["transfer_bytes"] += done.bytes
            of.histogram(PREFIX + "transfer_seconds").observe(done.transfer_us / 1e6)
        if not report.steps:
            return
        sums["steps"] += report.steps
        sums["step_seconds", "forward"] += report.forward_us / 1e6
        sums["step_seconds", "sample"] += report.sample_us / 1e6
        sums["step_seconds", "host"] += max(0, report.wall_us - report.forward_us - report.sample_us) / 1e6
        kind = "decode" if not report.prefill_tokens else "mixed" if report.decode_seqs else "prefill"
        sums["busy_seconds", kind] += report.wall_us / 1e6
        self._durations[kind].observe(report.wall_us / report.steps / 1e6)
        if self.limits is not None:
            work = work_of(report, self.limits)
            self._work.add(at_ns, work)
            sums["step_bytes"] += work.bytes
            sums["step_flops"] += work.flops
            if self.peaks is not None:
                self.peaks = self.peaks.raised_by(work)
                sums["bound_seconds", work.bound(self.peaks)] += report.wall_us / 1e6

    def _book_sums(self, sums: Counts) -> None:
        of = self._of
        for key, value in sums.items():
            if isinstance(key, str):
                of.counter(PREFIX + key).inc(value)
            else:
                of.counter(PREFIX + key[0]).labels(key[1]).inc(value)
        if sums["steps"]:
            for call, calls in self._kernel_calls().items():
                of.counter(PREFIX + "kernel_calls").labels(*call).inc(calls - self._seen.get(call, 0))
                self._seen[call] = calls
