"""traceparent in and out, and the OTLP JSON files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from octavo.rpc.tracing import context_from, format_traceparent, parse_traceparent, record_span, start_tracing

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
    assert not context_from(header)


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
