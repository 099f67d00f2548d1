"""Spans of a sequence, `prefill` and `decode`, recorded once it ended: never one per token, never on the step thread."""

from __future__ import annotations

from collections.abc import Callable

from octavo.rpc.tracing import record_span
from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from octavo_gpuworker.engine import SequenceEnd
from octavo_gpuworker.metrics import WorkerMetrics

REPORT_LAG_NS = 8_000_000
"""A report is booked up to so much later than its last step ended."""


def roofline(metrics: WorkerMetrics | None, start_ns: int, end_ns: int) -> dict[str, AttributeValue]:
    """What the worker's steps achieved within a span's time, against the calibrated peaks; empty when it is not known."""
    if metrics is None or metrics.peaks is None:
        return {}
    work = metrics.work_between(start_ns, end_ns + REPORT_LAG_NS)
    if not work.seconds:
        return {}
    return {
        "octavo.step.bound": work.bound(metrics.peaks),
        "octavo.step.memory_share": round(work.memory_share(metrics.peaks), 4),
        "octavo.step.compute_share": round(work.compute_share(metrics.peaks), 4),
        "octavo.step.bytes_per_s": round(work.bytes / work.seconds),
        "octavo.step.flops_per_s": round(work.flops / work.seconds),
    }


def span_recorder(
    tracer: trace.Tracer, worker_id: str, block_tokens: int, metrics: WorkerMetrics | None = None
) -> Callable[[SequenceEnd], None]:
    """A function that records the spans of one ended sequence under its request's span."""

    def record(end: SequenceEnd) -> None:
        seq = end.sequence
        if not seq.traceparent or not seq.started_ns:
            return
        computed = sum(tokens for _, tokens in seq.chunks)
        common: dict[str, AttributeValue] = {
            "octavo.worker_id": worker_id,
            "octavo.seq": seq.seq,
            "octavo.request_id": seq.request_id,
        }
        prefill_end = seq.first_token_ns or end.end_ns
        record_span(
            tracer,
            "prefill",
            seq.traceparent,
            seq.started_ns,
            prefill_end,
            {
                **common,
                "octavo.prefill.tokens": computed,
                "octavo.prefill.cached_tokens": max(0, seq.resumed_len - computed),
                "octavo.prefill.chunks": len(seq.chunks),
                "octavo.kv.blocks": len(seq.blocks),
                "octavo.worker_wait_us": max(0, seq.started_ns - max(seq.admitted_ns, seq.loaded_ns)) // 1000,
                "octavo.prefill.resumed_tokens": seq.resumed_len - seq.prompt_len,
                **({} if seq.first_token_ns else {"octavo.finish.reason": end.reason}),
                **roofline(metrics, seq.started_ns, prefill_end),
            },
            events=[("chunk", at_ns, {"octavo.tokens": tokens}) for at_ns, tokens in seq.chunks],
        )
        if seq.first_token_ns:
            record_span(
                tracer,
                "decode",
                seq.traceparent,
                seq.first_token_ns,
                end.end_ns,
                {
                    **common,
                    "octavo.decode.tokens": len(seq.tokens) - seq.resumed_len,
                    "octavo.decode.steps": seq.steps,
                    "octavo.kv.blocks": -(-seq.computed // block_tokens),
                    "octavo.finish.reason": end.reason,
                    **roofline(metrics, seq.first_token_ns, end.end_ns),
                },
            )

    return record
