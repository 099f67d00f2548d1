"""The gateway's spans: `request` (SERVER), and under it `tokenize` and `detokenize`. Never a word of a prompt in them.

The request span is started and ended by hand and never made current: it outlives any one task.
"""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Final

from octavo.errors import OctavoError
from octavo.rpc.tracing import OpenSpan, format_traceparent, parse_traceparent
from opentelemetry.trace import SpanKind, Tracer

from octavo_gateway.admission import AdmittedRequest
from octavo_gateway.live import LiveRequest
from octavo_gateway.requests import Cost, Finished
from octavo_gateway.ttft import TtftParts

_SERVER_FAULTS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""The statuses that are errors of a SERVER span (RPC semantic conventions); a cancel or a bad request is none."""

_COST: Final = tuple((f"octavo.cost.{item.name}", item.name) for item in fields(Cost))
_PARTS: Final = tuple((f"octavo.ttft.{item.name}", item.name) for item in fields(TtftParts))
"""(attribute, field): asdict copies deeply, at 20 us a request."""


class RequestSpan:
    """One `request` span; ended once, on every outcome."""

    def __init__(self, tracer: Tracer, edge: str, operation: str, model: str, traceparent: str, start_ns: int) -> None:
        self._tracer = tracer
        self._span = OpenSpan(tracer, "request", parse_traceparent(traceparent), start_ns, SpanKind.SERVER)
        self._span.attributes.update(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "octavo",
                "gen_ai.request.model": model,
                "octavo.edge": edge,
            }
        )
        context = self._span.context
        self.traceparent = format_traceparent(context)
        self.trace_id = f"{context.trace_id:032x}"
        self.ended = False

    def child(self, name: str, start_ns: int, end_ns: int, **attributes: int | float | str) -> None:
        """Records a finished child with wall-clock nanoseconds; keyword `a_b` becomes attribute `octavo.a_b`."""
        if not self._span.recording:
            return
        span = OpenSpan(self._tracer, name, self._span.context, start_ns)
        span.attributes.update({f"octavo.{key}": value for key, value in attributes.items()})
        span.end(end_ns)

    def admitted(self, admitted: AdmittedRequest) -> None:
        """What was asked for."""
        self._span.attributes.update(
            {
                "gen_ai.request.id": admitted.request_id,
                "gen_ai.request.n": admitted.n,
                "gen_ai.request.max_tokens": admitted.max_tokens,
                "gen_ai.request.temperature": admitted.sampling.temperature,
                "gen_ai.request.top_p": admitted.sampling.top_p,
                "gen_ai.request.seed": str(admitted.seed),
                "octavo.tenant": admitted.tenant,
                "octavo.priority": admitted.priority,
                **({"octavo.beam_width": admitted.beams.width} if admitted.beams is not None else {}),
            }
        )

    def finish(self, live: LiveRequest, finished: Finished) -> None:
        """The client has the whole answer."""
        if not self._span.recording:
            return
        usage = finished.usage
        attributes: dict[str, int | float | str] = {
            "octavo.outcome": "finished",
            "gen_ai.response.model": live.admitted.model if live.admitted else "",
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.prompt_tokens": usage.prompt_tokens,
            "gen_ai.usage.completion_tokens": usage.completion_tokens,
            "gen_ai.usage.cached_tokens": usage.cached_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.num_sequences": len(live.choices),
        }
        self._span.attributes.update(attributes)
        self.latencies(live)
        reasons = tuple(choice.finish_reason for choice in finished.choices)
        self._span.attributes["gen_ai.response.finish_reasons"] = reasons
        self._end(0)

    def latencies(self, live: LiveRequest) -> None:
        """What is known of where the time went and what it cost, on every outcome: seconds, parts of the TTFT in microseconds."""
        if not self._span.recording:
            return
        times, received = live.times, live.received
        prefill_s, decode_s = times.prefill_us / 1e6, times.decode_us / 1e6
        attributes: dict[str, int | float | str] = {
            "gen_ai.latency.time_in_queue": times.queue_us / 1e6,
            "gen_ai.latency.time_in_scheduler": times.scheduler_us / 1e6,
            "gen_ai.latency.time_in_model_prefill": prefill_s,
            "gen_ai.latency.time_in_model_decode": decode_s,
            "gen_ai.latency.time_in_model_inference": prefill_s + decode_s,
            "octavo.preemptions": times.preemptions,
            "octavo.attempts": times.attempts,
            **({"octavo.blended_tokens": live.blended_tokens} if live.blended_tokens else {}),
            **({"octavo.degraded": live.degraded} if live.degraded else {}),
            "octavo.longest_stall_us": int(live.longest_gap_s * 1e6),
            **{f"octavo.cached.{tier}_tokens": tokens for tier, tokens in live.cached_by_tier.items()},
        }
        if live.admitted is not None and live.error is not None:
            attributes["gen_ai.usage.input_tokens"] = len(live.admitted.prompt_ids)
            attributes["gen_ai.usage.output_tokens"] = live.completion_tokens
        if live.ended:
            attributes |= {key: getattr(live.cost, name) for key, name in _COST}
        if live.completed:
            attributes["gen_ai.latency.e2e"] = live.completed - received
        if live.first_token:
            attributes["gen_ai.latency.time_to_first_token"] = live.first_token - received
        if (measured := live.ttft_parts()) is not None:
            attributes |= {key: getattr(measured[0], name) for key, name in _PARTS}
        self._span.attributes.update(attributes)

    def fail(self, error: OctavoError) -> None:
        """The request ended otherwise; a cancel is recorded as a cancel."""
        status = error.status.name
        self._span.attributes.update(
            {"octavo.outcome": error.default_reason, "octavo.reason": error.reason, "error.type": status}
        )
        if status == "CANCELLED":
            self._span.attributes["octavo.cancel.reason"] = error.reason
        if status in _SERVER_FAULTS:
            self._span.fail(error.message)
        self._end(error.status.value[0])

    def _end(self, code: int) -> None:
        if not self.ended:
            self.ended = True
            self._span.attributes["rpc.grpc.status_code"] = code
            self._span.end(time.time_ns())


def wall_ns(monotonic_s: float, now_s: float) -> int:
    """Wall-clock nanoseconds of a moment on a monotonic clock that shows `now_s` now."""
    return time.time_ns() - int((now_s - monotonic_s) * 1e9)
