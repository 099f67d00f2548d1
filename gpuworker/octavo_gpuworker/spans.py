"""Spans of a sequence, `prefill` and `decode`, recorded once it ended: never one per token, never on the step thread."""

from __future__ import annotations

from collections.abc import Callable

from octavo.rpc.tracing import record_span
from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

from octavo_gpuworker.engine import SequenceEnd


def span_recorder(tracer: trace.Tracer, worker_id: str, block_tokens: int) -> Callable[[SequenceEnd], None]:
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
                "octavo.worker_wait_us": max(0, seq.started_ns - seq.admitted_ns) // 1000,
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
                },
            )

    return record
