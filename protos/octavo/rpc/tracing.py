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
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
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


def context_from(traceparent: str) -> Context:
    """A Context whose current span is the remote parent; an empty one (a new root) without a valid header."""
    parent = parse_traceparent(traceparent) if traceparent else None
    return trace.set_span_in_context(NonRecordingSpan(parent), Context()) if parent else Context()


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
    span = tracer.start_span(
        name,
        context=context_from(traceparent),
        kind=SpanKind.INTERNAL,
        start_time=start_ns,
        attributes=dict(attributes or {}),
        links=[trace.Link(linked) for linked in links],
    )
    for event_name, at_ns, event_attributes in events:
        span.add_event(event_name, dict(event_attributes), timestamp=at_ns)
    if error:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(end_time=max(start_ns, end_ns))
    return span.get_span_context()
