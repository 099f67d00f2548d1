"""Prometheus instruments of a worker, declared in one place and fed by reports; nothing else knows their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from octavo_gpuworker.orders import Report


class WorkerMetrics:
    """Instruments over one registry; `observe` is called with every report, on the asyncio loop."""

    def __init__(
        self,
        registry: CollectorRegistry,
        blocks: int,
        kernel_calls: Callable[[], Mapping[tuple[str, str, str], int]],
        gauges: Mapping[str, tuple[str, Callable[[], float]]],
    ) -> None:
        self._steps = Counter("octavo_worker_steps", "Forward passes.", registry=registry)
        self._prefill = Counter("octavo_worker_prefill_tokens", "Prompt tokens computed.", registry=registry)
        self._decode = Counter("octavo_worker_decode_tokens", "Output tokens sampled.", registry=registry)
        self._time = Counter("octavo_worker_step_seconds", "Time of steps by part.", ["part"], registry=registry)
        self._transfers = Counter("octavo_worker_transfers", "Transfers ended.", registry=registry)
        self._transfer_bytes = Counter(
            "octavo_worker_transfer_bytes", "Bytes moved between pool and kvstore.", registry=registry
        )
        self._starved = Counter(
            "octavo_worker_starved", "Times a sequence lacked a block for its next token.", registry=registry
        )
        Gauge("octavo_worker_blocks", "Blocks in the KV pool, the null block not counted.", registry=registry).set(
            blocks - 1
        )
        self._kernels = Counter(
            "octavo_worker_kernel_calls",
            "Calls of each operation by implementation and why: chosen, or the reason of a fallback.",
            ["op", "impl", "reason"],
            registry=registry,
        )
        for name, (help_text, value) in gauges.items():  # read when they are scraped
            Gauge(f"octavo_worker_{name}", help_text, registry=registry).set_function(value)
        self._kernel_calls = kernel_calls
        self._seen: dict[tuple[str, str, str], int] = {}

    def observe(self, report: Report) -> None:
        self._steps.inc(report.steps)
        self._prefill.inc(report.prefill_tokens)
        self._decode.inc(sum(map(len, report.tokens)))
        self._time.labels("forward").inc(report.forward_us / 1e6)
        self._time.labels("sample").inc(report.sample_us / 1e6)
        self._time.labels("host").inc(max(0, report.wall_us - report.forward_us - report.sample_us) / 1e6)
        self._transfers.inc(len(report.transfers_done))
        self._transfer_bytes.inc(sum(done.bytes for done in report.transfers_done))
        self._starved.inc(len(report.starved))
        if report.steps:
            for key, calls in self._kernel_calls().items():
                self._kernels.labels(*key).inc(calls - self._seen.get(key, 0))
                self._seen[key] = calls
