"""Reads the OTLP-JSON trace files of a run folder (one ExportTraceServiceRequest per line, ids in hex)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import OctavoError

from octavo_cli.exits import FAILED

REQUEST_SPAN = "request"
_REQUEST_ID_KEYS = ("gen_ai.request.id", "octavo.request.id", "octavo.request_id", "request.id")
_SERVICE_PREFIX = "octavo-"


class NoTrace(OctavoError):
    """No trace of that name in the run folder."""

    exit_code = FAILED
    default_reason = "no-trace"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    at_ns: int
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span; times are wall-clock nanoseconds since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: tuple[SpanEvent, ...]
    error: str
    links: tuple[tuple[str, str], ...] = ()
    """(trace id, span id) of what it follows from: the interrupted residency before it."""

    @property
    def request_id(self) -> str:
        """The request's id when the span carries one."""
        return next((str(self.attributes[key]) for key in _REQUEST_ID_KEYS if key in self.attributes), "")


def read_spans(run_dir: Path, say: Callable[[str], None] = lambda line: None) -> list[Span]:
    """Every span in the run folder. A damaged line is left out and told; one still being written is only left out."""
    spans: list[Span] = []
    for path in sorted(run_dir.glob("traces-*.jsonl")):
        *lines, unfinished = path.read_bytes().split(b"\n")
        damaged = []
        for number, line in enumerate(lines, 1):
            found = _spans_in(line)
            spans += found or ()
            if found is None:
                damaged.append(number)
        spans += _spans_in(unfinished) or ()
        if damaged:
            say(f"{path}: left out {len(damaged)} damaged lines, the first is line {damaged[0]}")
    return spans


class TraceTail:
    """What was appended to the trace files of a run folder since the last look; `skip` passes over what is there now."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._offsets: dict[Path, int] = {}

    def skip(self) -> None:
        """Begins at the files' present ends."""
        self._offsets = {path: path.stat().st_size for path in self._run_dir.glob("traces-*.jsonl")}

    def read(self) -> list[Span]:
        """The spans of whole new lines."""
        spans: list[Span] = []
        for path in sorted(self._run_dir.glob("traces-*.jsonl")):
            with path.open("rb") as file:
                if path.stat().st_size < self._offsets.get(path, 0):
                    self._offsets[path] = 0  # another cluster began the file anew
                file.seek(self._offsets.get(path, 0))
                whole, _newline, _rest = file.read().rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole) + bool(whole)
            for line in whole.split(b"\n"):
                spans += _spans_in(line) or ()
        return spans


def find_trace(spans: Iterable[Span], wanted: str = "") -> list[Span]:
    """The spans of one trace: the one whose trace id or request id begins with `wanted`, else the latest request's.

    Raises NoTrace when there is none, or when several fit.
    """
    listed = list(spans)
    requests = [span for span in listed if span.name == REQUEST_SPAN] or [span for span in listed if not span.parent_id]
    if wanted:
        word = wanted.lower()
        found = {span.trace_id for span in listed if span.trace_id.startswith(word) or span.request_id == wanted}
        found = found or {span.trace_id for span in listed if span.request_id.startswith(wanted)}
        if len(found) > 1:
            raise NoTrace(f"{wanted!r} stands for {len(found)} traces ({', '.join(sorted(found)[:3])}, ...); give more")
        if not found:
            raise NoTrace(f"no trace or request {wanted!r} here; traces are kept in the run folder of their cluster")
        trace_id = found.pop()
    else:
        if not requests:
            raise NoTrace("no trace here yet; ask something first (`octavo chat hello`)")
        trace_id = max(requests, key=lambda span: span.start_ns).trace_id
    return [span for span in listed if span.trace_id == trace_id]


def _spans_in(line: bytes) -> list[Span] | None:
    """The spans of one line; none in an empty one, None when it is damaged."""
    if not line.strip():
        return []
    try:
        return list(_spans_of(json.loads(line)))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # whatever does not have OTLP's form
        return None


def _spans_of(content: dict[str, Any]) -> Iterator[Span]:
    for resource in content.get("resourceSpans", []):
        named = _attributes(resource.get("resource", {}).get("attributes", []))
        service = str(named.get("service.name", "?")).removeprefix(_SERVICE_PREFIX)
        for scope in resource.get("scopeSpans", []):
            for item in scope.get("spans", []):
                yield _span(item, service)


def _span(item: dict[str, Any], service: str) -> Span:
    status = item.get("status", {})
    failed = status.get("code") in (2, "STATUS_CODE_ERROR")
    events = tuple(
        SpanEvent(event.get("name", ""), int(event.get("timeUnixNano", 0)), _attributes(event.get("attributes", [])))
        for event in item.get("events", [])
    )
    return Span(
        trace_id=item["traceId"],
        span_id=item["spanId"],
        parent_id=item.get("parentSpanId", ""),
        name=item.get("name", ""),
        service=service,
        start_ns=int(item.get("startTimeUnixNano", 0)),
        end_ns=max(int(item.get("startTimeUnixNano", 0)), int(item.get("endTimeUnixNano", 0))),  # 0: unfinished
        attributes=_attributes(item.get("attributes", [])),
        events=events,
        links=tuple((link.get("traceId", ""), link.get("spanId", "")) for link in item.get("links", [])),
        error=(status.get("message") or "error") if failed else "",
    )


def _attributes(listed: list[dict[str, Any]]) -> dict[str, Any]:
    return {item["key"]: _value(item.get("value", {})) for item in listed}


def _value(value: dict[str, Any]) -> Any:
    """An OTLP AnyValue; 64-bit integers come as strings."""
    for kind, content in value.items():
        if kind == "intValue":
            return int(content)
        if kind == "arrayValue":
            return [_value(item) for item in content.get("values", [])]
        return content
    return None
