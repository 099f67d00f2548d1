"""Traces in the form that Jaeger's UI uploads: the JSON of its query API, times in microseconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo_cli.spans import Span


def jaeger_json(spans: Iterable[Span]) -> dict[str, Any]:
    """One entry per trace; every service is a process of it. A parent that is not here stays a reference, as Jaeger draws it."""
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    return {
        "data": [_trace(trace_id, found) for trace_id, found in traces.items()],
        "total": len(traces),
        "limit": 0,
        "offset": 0,
        "errors": None,
    }


def _trace(trace_id: str, spans: list[Span]) -> dict[str, Any]:
    services = sorted({span.service for span in spans})
    processes = {service: f"p{number}" for number, service in enumerate(services, 1)}
    return {
        "traceID": trace_id,
        "spans": [_span(span, processes[span.service]) for span in sorted(spans, key=lambda item: item.start_ns)],
        "processes": {key: {"serviceName": f"octavo-{service}", "tags": []} for service, key in processes.items()},
        "warnings": None,
    }


def _span(span: Span, process: str) -> dict[str, Any]:
    references = []
    if span.parent_id:
        references.append({"refType": "CHILD_OF", "traceID": span.trace_id, "spanID": span.parent_id})
    references += [{"refType": "FOLLOWS_FROM", "traceID": trace, "spanID": linked} for trace, linked in span.links]
    tags = [_tag(key, value) for key, value in span.attributes.items()]
    if span.error:
        tags += [_tag("error", True), _tag("otel.status_description", span.error)]
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "operationName": span.name,
        "references": references,
        "startTime": span.start_ns // 1000,
        "duration": max(0, span.end_ns - span.start_ns) // 1000,
        "tags": tags,
        "logs": [
            {
                "timestamp": event.at_ns // 1000,
                "fields": [_tag("event", event.name), *(_tag(key, value) for key, value in event.attributes.items())],
            }
            for event in span.events
        ],
        "processID": process,
        "warnings": None,
    }


def _tag(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"key": key, "type": "bool", "value": value}
    if isinstance(value, int):
        return {"key": key, "type": "int64", "value": value}
    if isinstance(value, float):
        return {"key": key, "type": "float64", "value": value}
    return {"key": key, "type": "string", "value": value if isinstance(value, str) else str(value)}
