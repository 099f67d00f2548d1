"""traceparent in and out, and the OTLP JSON files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from octavo.rpc.tracing import OpenSpan, format_traceparent, parse_traceparent, record_span, start_tracing
from opentelemetry.trace import NoOpTracer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans_of(folder: Path) -> list[dict[str, object]]:
    found = []
    for file in folder.glob("traces-*.jsonl"):
        for line in file.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    found += scope["spans"]
    return found


def test_round_trip() -> None:
    header = f"00-{TRACE}-{SPAN}-01"
    parsed = parse_traceparent(header)
    assert parsed is not None
    assert format_traceparent(parsed) == header


@pytest.mark.parametrize(
    "header",
    [
        "",
        "junk",
        f"00-{TRACE}-{SPAN}",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
    ],
)
def test_malformed_headers_start_a_new_trace(header: str) -> None:
    assert parse_traceparent(header) is None


def test_recorded_span_lands_in_the_file_with_hex_ids(tmp_path: Path) -> None:
    provider = start_tracing("worker", "1", otlp_endpoint="", trace_dir=tmp_path, sample=1.0)
    record_span(
        provider.get_tracer("t"),
        "queue",
        f"00-{TRACE}-{SPAN}-01",
        10,
        30,
        {"octavo.n": 3},
        events=[("chunk", 20, {"tokens": 5})],
        error="lost",
    )
    provider.shutdown()
    (span,) = spans_of(tmp_path)
    assert (span["traceId"], span["parentSpanId"], span["name"]) == (TRACE, SPAN, "queue")
    assert (span["startTimeUnixNano"], span["endTimeUnixNano"]) == ("10", "30")
    assert span["status"] == {"code": "STATUS_CODE_ERROR", "message": "lost"}


def test_an_unsampled_parent_is_honoured(tmp_path: Path) -> None:
    provider = start_tracing("worker", "1", otlp_endpoint="", trace_dir=tmp_path, sample=1.0)
    record_span(provider.get_tracer("t"), "queue", f"00-{TRACE}-{SPAN}-00", 10, 30)
    provider.shutdown()
    assert spans_of(tmp_path) == []


def test_the_file_says_what_protobuf_would_say(tmp_path: Path) -> None:
    """Against the SDK's own encoder: links, events, arrays, errors, a root without a parent."""
    from base64 import b64decode

    from google.protobuf.json_format import MessageToDict
    from octavo.rpc.otlp_json import export_line
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    provider = start_tracing("gateway", "1", otlp_endpoint="", trace_dir=None, sample=1.0)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("t", "2")
    first = record_span(tracer, "attempt", f"00-{TRACE}-{SPAN}-01", 10, 30, {"a": 1, "b": 1.5, "c": True, "d": "x"})
    record_span(
        tracer, "next", "", 5, 6, {"list": ["a", "b"]}, links=[first], events=[("e", 6, {"n": 2})], error="lost"
    )
    spans = kept.get_finished_spans()

    def plain(node: object) -> object:
        if isinstance(node, dict):
            hexed = {
                key: b64decode(value).hex() if key.endswith("Id") and len(str(value)) in (12, 24) else value
                for key, value in node.items()
            }
            return {key: plain(value) for key, value in hexed.items() if key != "flags"}
        return [plain(item) for item in node] if isinstance(node, list) else node

    assert plain(json.loads(export_line(spans))) == plain(MessageToDict(encode_spans(spans)))
    provider.shutdown()


@pytest.mark.parametrize(
    ("sample", "parent", "recorded"), [(0.0, "01", True), (1.0, "00", False), (0.0, "", False), (1.0, "", True)]
)
def test_sampling_honours_the_parent_and_its_word_travels_on(
    tmp_path: Path, sample: float, parent: str, recorded: bool
) -> None:
    provider = start_tracing("gateway", "1", otlp_endpoint="", trace_dir=tmp_path, sample=sample)
    tracer = provider.get_tracer("t")
    given = f"00-{TRACE}-{SPAN}-{parent}" if parent else ""
    root = OpenSpan(tracer, "request", parse_traceparent(given), 5)
    assert root.recording == recorded
    travels = format_traceparent(root.context)
    assert int(travels[-2:], 16) & 1 == recorded and (not given or TRACE in travels)
    record_span(tracer, "queue", travels, 10, 30)
    root.end(40)
    provider.shutdown()
    assert {str(span["name"]) for span in spans_of(tmp_path)} == ({"request", "queue"} if recorded else set())


def test_a_tracer_of_the_api_alone_records_nothing_and_passes_its_parent_on() -> None:
    span = OpenSpan(NoOpTracer(), "request", parse_traceparent(f"00-{TRACE}-{SPAN}-01"), 5)
    span.end(6)
    assert not span.recording and format_traceparent(span.context) == f"00-{TRACE}-{SPAN}-01"
    assert format_traceparent(OpenSpan(NoOpTracer(), "request", None, 5).context) == ""
