"""What feeds a worker's instruments; their names stand in instruments.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from octavo.rpc.instruments import Instruments
from prometheus_client import CollectorRegistry

from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.instruments import OBSERVED, OF_A_BACKEND, PREFIX
from octavo_gpuworker.orders import Report
from octavo_gpuworker.stepwork import Peaks, WorkLog, work_of


class WorkerMetrics:
    """Instruments over one registry; `observe` is called with every report, on the asyncio loop."""

    def __init__(
        self,
        registry: CollectorRegistry,
        blocks: int,
        kernel_calls: Callable[[], Mapping[tuple[str, str, str], int]],
        gauges: Mapping[str, tuple[str, Callable[[], float]]],
        limits: Limits | None = None,
    ) -> None:
        self._of = Instruments(registry, OBSERVED)
        self._own = Instruments(registry, [item for item in OF_A_BACKEND if item.name.removeprefix(PREFIX) in gauges])
        self._of.gauge(PREFIX + "blocks").set(blocks - 1)
        for name, (_help, value) in gauges.items():  # read when they are scraped
            self._own.gauge(PREFIX + name).set_function(value)
        self._kernel_calls = kernel_calls
        self._seen: dict[tuple[str, str, str], int] = {}
        self.limits = limits
        self.peaks: Peaks | None = None
        self.work = WorkLog()

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
        of = self._of
        of.counter(PREFIX + "steps").inc(report.steps)
        of.counter(PREFIX + "prefill_tokens").inc(report.prefill_tokens)
        of.counter(PREFIX + "decode_tokens").inc(sum(map(len, report.tokens)))
        if report.steps:
            self._step(report)
        of.counter(PREFIX + "starved").inc(len(report.starved))
        of.counter(PREFIX + "failed_allocations").inc(report.failed_allocations)
        for done in report.transfers_done:
            of.counter(PREFIX + "transfers").inc()
            of.counter(PREFIX + "transfer_bytes").inc(done.bytes)
            of.histogram(PREFIX + "transfer_seconds").observe(done.transfer_us / 1e6)

    def _step(self, report: Report) -> None:
        of = self._of
        parts = of.counter(PREFIX + "step_seconds")
        parts.labels("forward").inc(report.forward_us / 1e6)
        parts.labels("sample").inc(report.sample_us / 1e6)
        parts.labels("host").inc(max(0, report.wall_us - report.forward_us - report.sample_us) / 1e6)
        kind = "decode" if not report.prefill_tokens else "mixed" if report.decode_seqs else "prefill"
        of.counter(PREFIX + "busy_seconds").labels(kind).inc(report.wall_us / 1e6)
        of.histogram(PREFIX + "step_duration_seconds").labels(kind).observe(report.wall_us / report.steps / 1e6)
        if self.limits is not None:
            work = work_of(report, self.limits)
            self.work.add(time.time_ns(), work)
            of.counter(PREFIX + "step_bytes").inc(work.bytes)
            of.counter(PREFIX + "step_flops").inc(work.flops)
            if self.peaks is not None:
                self.peaks = self.peaks.raised_by(work)
                of.counter(PREFIX + "bound_seconds").labels(work.bound(self.peaks)).inc(report.wall_us / 1e6)
        for key, calls in self._kernel_calls().items():
            of.counter(PREFIX + "kernel_calls").labels(*key).inc(calls - self._seen.get(key, 0))
            self._seen[key] = calls
