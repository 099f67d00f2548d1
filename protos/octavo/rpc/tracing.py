"""OpenTelemetry in every service: provider, exporters, and explicit contexts that cross queues.

Spans are never made current across awaits: an async generator closed from another task would detach in a foreign
context (opentelemetry-python issue 2606). Parents travel as W3C traceparent strings instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.util.types import AttributeValue

from octavo.errors import OctavoError
from octavo.rpc.otlp_json import export_line


class JsonFileExporter(SpanExporter):
    """One OTLP ExportTraceServiceRequest as JSON per line (the OTLP file format: ids in hex)."""

    def __init__(self, path: Path) -> None:
        """Makes the folder. Raises OctavoError when the file cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise OctavoError(
                f"deployment.run_dir {path.parent}: {error.strerror}; give a folder that can be written, "
                "or set observability.trace_files to false",
                field="deployment.run_dir",
            ) from error
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        line = export_line(spans)
        with self._lock:
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except OSError:  # a full disk costs traces, never requests
                return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        with self._lock:
            self._file.close()


def start_tracing(
    service: str, version: str, *, otlp_endpoint: str, trace_dir: Path | None, sample: float
) -> TracerProvider:
    """A provider of this process; call it after the process started. Spans reach disk or the endpoint within 200 ms."""
    resource = Resource.create(
        {"service.name": f"octavo-{service}", "service.version": version, "process.pid": os.getpid()}
    )
    provider = TracerProvider(resource=resource, sampler=ParentBased(TraceIdRatioBased(sample)), shutdown_on_exit=False)
    if trace_dir is not None:
        exporter = JsonFileExporter(trace_dir / f"traces-{service}-{os.getpid()}.jsonl")
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=200))
    if otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        insecure = not otlp_endpoint.startswith("https://")
        provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint=otlp_endpoint, insecure=insecure, timeout=5), schedule_delay_millis=200
            )
        )
    return provider


def parse_traceparent(header: str) -> SpanContext | None:
    """The span context of a W3C traceparent header, or None when it is absent or malformed (then a new trace begins)."""
    parts = header.strip().lower().split("-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2] or parts[0] == "ff":
        return None
    try:
        trace_id, span_id, flags = int(parts[1], 16), int(parts[2], 16), int(parts[3], 16)
    except ValueError:
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags & 1))
    return context if context.is_valid else None


def format_traceparent(context: SpanContext) -> str:
    """`00-<trace id>-<span id>-<flags>`; an empty string for an invalid context."""
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


class OpenSpan:
    """A span under way. Its attributes are a plain dict until it ends: the SDK's own span checks and locks each of them (42 us, not 18).

    Sampling honours the parent, and asks the sampler for a root alone; an unsampled span costs its ids alone, and `recording` says so before anybody
    builds attributes for it.
    """

    __slots__ = ("_kind", "_name", "_parent", "_start_ns", "_status", "_tracer", "attributes", "context", "recording")

    def __init__(
        self,
        tracer: trace.Tracer,
        name: str,
        parent: SpanContext | None,
        start_ns: int,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        self._name, self._kind, self._start_ns, self._parent = name, kind, start_ns, parent
        self._status: Status | None = None
        self._tracer = tracer if isinstance(tracer, Tracer) else None
        self.attributes: dict[str, AttributeValue] = {}
        self.context, self.recording = self._begin()

    def _begin(self) -> tuple[SpanContext, bool]:
        parent, tracer = self._parent, self._tracer
        if tracer is None:  # a tracer of the API alone records nothing and passes its parent on
            return parent or INVALID_SPAN_CONTEXT, False
        if parent is not None:
            trace_id, sampled = parent.trace_id, parent.trace_flags.sampled
        else:
            trace_id = tracer.id_generator.generate_trace_id()
            decision = tracer.sampler.should_sample(Context(), trace_id, self._name, self._kind).decision
            sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return SpanContext(trace_id, tracer.id_generator.generate_span_id(), False, flags), sampled

    def fail(self, message: str) -> None:
        """It ends as an error."""
        self._status = Status(StatusCode.ERROR, message)

    def end(self, end_ns: int, events: Sequence[Event] = (), links: Sequence[trace.Link] = ()) -> None:
        """Hands it to the exporters; once."""
        tracer = self._tracer
        if tracer is None or not self.recording:
            return
        tracer.span_processor.on_end(
            ReadableSpan(
                self._name,
                self.context,
                self._parent,
                tracer.resource,
                self.attributes,
                events,
                links,
                self._kind,
                status=self._status or Status(StatusCode.UNSET),
                start_time=self._start_ns,
                end_time=max(self._start_ns, end_ns),
                instrumentation_scope=tracer._instrumentation_scope,
            )
        )


def record_span(
    tracer: trace.Tracer,
    name: str,
    traceparent: str,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, AttributeValue] | None = None,
    *,
    events: Sequence[tuple[str, int, Mapping[str, AttributeValue]]] = (),
    links: Sequence[SpanContext] = (),
    error: str = "",
) -> SpanContext:
    """Records a finished span with given wall-clock nanoseconds under a remote parent; returns what others may link to."""
    span = OpenSpan(tracer, name, parse_traceparent(traceparent) if traceparent else None, start_ns)
    if span.recording:
        span.attributes.update(attributes or {})
        if error:
            span.fail(error)
        span.end(
            end_ns,
            [Event(event_name, event_attributes, at_ns) for event_name, at_ns, event_attributes in events],
            [trace.Link(linked) for linked in links],
        )
    return span.context
