"""What a step costs at least, and which peak it came closer to."""

from __future__ import annotations

import pytest
from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.metrics import WorkerMetrics
from octavo_gpuworker.orders import Report
from octavo_gpuworker.stepwork import Peaks, Work, WorkLog, work_of
from prometheus_client import CollectorRegistry

MODEL = Limits(
    weight_bytes=2000, kv_token_bytes=10, token_macs=800, head_macs=200, threads=1, stream_bytes_per_s=lambda: 100.0,
    peak_macs_per_s=lambda: 50.0, pair_macs=16,
)  # fmt: skip


def decode(context: int, steps: int = 1, seqs: int = 1) -> Report:
    return Report(
        steps=steps, slots=list(range(seqs)), tokens=[[1] * steps] * seqs, computed_len=[context] * seqs,
        decode_seqs=seqs, forward_us=1000 * steps,
    )  # fmt: skip


def test_a_decode_step_reads_all_weights_and_its_context() -> None:
    work = work_of(decode(100), MODEL)
    assert work.bytes == 2000 + 10 * 100
    assert work.flops == 2 * 800 + 2 * 200 + 4 * 8 * 100
    assert work.seconds == pytest.approx(1e-3)


def test_steps_and_sequences_multiply_what_they_must() -> None:
    one, many = work_of(decode(100), MODEL), work_of(decode(100, steps=5, seqs=4), MODEL)
    assert many.bytes == 5 * (2000 + 4 * 10 * 100), "weights once per step, however many sequences"
    assert many.flops == 5 * 4 * one.flops


def test_a_prefill_multiplies_without_reading_more_weights() -> None:
    report = Report(steps=1, slots=[0], tokens=[[1]], computed_len=[64], prefill_tokens=64, forward_us=1000)
    work = work_of(report, MODEL)
    assert work.bytes == 2000 + 10 * 64
    assert work.flops == 2 * 800 * 64 + 2 * 200 + 4 * 8 * 64 * 64 / 2


@pytest.mark.parametrize(
    ("read_bytes", "flops", "bound"), [(90, 10, "memory"), (30, 60, "compute"), (19, 10, "host"), (0, 0, "host")]
)
def test_the_bound_is_the_larger_share_of_a_peak(read_bytes: float, flops: float, bound: str) -> None:
    assert Work(1.0, read_bytes, flops).bound(Peaks(100, 100)) == bound


def test_the_log_tells_the_work_within_a_time() -> None:
    log = WorkLog()
    for at in (10, 20, 30):
        log.add(at, Work(1.0, at, 2 * at))
    assert log.between(10, 30) == Work(2.0, 50, 100)
    assert log.between(0, 10) == Work(1.0, 10, 20)
    assert log.between(30, 99) == Work()
    assert log.between(11, 19) == Work()


def test_what_steps_achieve_raises_a_peak_that_was_measured_too_low() -> None:
    peaks = Peaks(100, 100)
    assert peaks.raised_by(Work(1.0, 90, 90)) is peaks
    assert peaks.raised_by(Work(1.0, 250, 90)) == Peaks(250, 100)
    assert peaks.raised_by(Work(0.001, 250, 90)) is peaks, "too short to tell"


def test_metrics_hold_steps_against_the_measured_peaks() -> None:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry, 9, dict, {}, MODEL)
    metrics.measure_peaks()
    assert metrics.peaks == Peaks(100.0, 100.0)
    metrics.observe(decode(100))
    assert registry.get_sample_value("octavo_worker_step_bytes_total") == 3000
    assert registry.get_sample_value("octavo_worker_peak_flops_per_second") == 100
    assert registry.get_sample_value("octavo_worker_bound_seconds_total", {"bound": "compute"}) == 0
    assert registry.get_sample_value("octavo_worker_busy_seconds_total", {"kind": "decode"}) == 0
    assert registry.get_sample_value("octavo_worker_steps_total") == 1


def test_reports_are_booked_by_a_scrape_and_by_the_clock_and_never_twice() -> None:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry, 9, lambda: {("step", "native", "chosen"): calls}, {}, MODEL)
    calls = 2
    metrics.observe(decode(100))
    metrics.observe(decode(100))
    metrics.book()
    assert registry.get_sample_value("octavo_worker_steps_total") == 2
    calls = 3
    metrics.observe(decode(100))
    assert registry.get_sample_value("octavo_worker_steps_total") == 3, "a scrape books what waits"
    labels = {"op": "step", "impl": "native", "reason": "chosen"}
    assert registry.get_sample_value("octavo_worker_kernel_calls_total", labels) == 3
    assert registry.get_sample_value("octavo_worker_step_duration_seconds_count", {"kind": "decode"}) == 3
    assert metrics.work_between(0, 2**63).bytes == 3 * 3000
