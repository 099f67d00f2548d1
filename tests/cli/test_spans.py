"""Trace files as they are found after a crash: damaged lines, unfinished spans, spans that are each other's parents."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from octavo_cli.jaeger import jaeger_json
from octavo_cli.requests_table import slowest
from octavo_cli.spans import TraceTail, read_spans
from octavo_cli.trace_page import page
from octavo_cli.waterfall import MAX_DEPTH, draw, ordered
from rich.console import Console

TRACE = "ab" * 16


def otlp(**more: Any) -> dict[str, Any]:
    return {
        "traceId": TRACE, "spanId": "01", "name": "request", "startTimeUnixNano": "1000", "endTimeUnixNano": "9000",
    } | more  # fmt: skip


def line(*spans: dict[str, Any]) -> str:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}) + "\n"


DAMAGED = [
    "5", "null", '"text"', "[1]", "{nope", "[" * 100_000, '{"resourceSpans": 5}', '{"resourceSpans": [5]}',
    line({"name": "no ids"}).strip(), line(otlp(startTimeUnixNano="soon")).strip(), line(otlp(attributes=None)).strip(),
    line(otlp(attributes=[{"value": {}}])).strip(), line(otlp(status=5)).strip(), "\ufffd\x00",
]  # fmt: skip


@pytest.mark.parametrize("bad", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_is_told_and_costs_no_other(bad: str, tmp_path: Path) -> None:
    (tmp_path / "traces-gateway.jsonl").write_text(
        line(otlp()) + bad + "\n" + line(otlp(spanId="02")), encoding="utf-8"
    )
    told: list[str] = []
    assert [span.span_id for span in read_spans(tmp_path, told.append)] == ["01", "02"]
    assert len(told) == 1 and told[0].endswith("left out 1 damaged lines, the first is line 2")
    tail = TraceTail(tmp_path)
    assert [span.span_id for span in tail.read()] == ["01", "02"]


def test_a_line_still_being_written_is_no_damage_and_a_file_begun_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "traces-gateway.jsonl"
    path.write_text(line(otlp()) + line(otlp(spanId="02"))[:-40])
    told: list[str] = []
    assert len(read_spans(tmp_path, told.append)) == 1 and not told
    tail = TraceTail(tmp_path)
    tail.skip()
    path.write_text(line(otlp(spanId="03")))
    assert [span.span_id for span in tail.read()] == ["03"]


def test_an_unfinished_span_has_no_negative_length(tmp_path: Path) -> None:
    (tmp_path / "traces-gateway.jsonl").write_text(line(otlp(endTimeUnixNano="0")))
    (span,) = read_spans(tmp_path)
    assert (span.start_ns, span.end_ns) == (1000, 1000)
    assert jaeger_json([span])["data"][0]["spans"][0]["duration"] == 0


@pytest.mark.parametrize(
    "spans",
    [
        [otlp(spanId="01", parentSpanId="02"), otlp(spanId="02", parentSpanId="01")],
        [otlp(spanId="01", parentSpanId="01")],
        [otlp(), otlp()],
        [otlp(spanId=f"{i:04x}", parentSpanId=f"{i - 1:04x}" if i else "") for i in range(3000)],
    ],
    ids=["circle", "self", "twins", "deep"],
)
def test_every_span_is_drawn_once_whatever_its_parents_are(spans: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "traces-gateway.jsonl").write_text(line(*spans))
    found = read_spans(tmp_path)
    rows = ordered(found)
    assert sorted(span.span_id for _depth, span in rows) == sorted(span["spanId"] for span in spans)
    assert max(depth for depth, _span in rows) <= MAX_DEPTH
    out = io.StringIO()
    draw(found, Console(file=out, width=120))
    assert out.getvalue().count("request") >= len(spans)
    assert page(found).count("<rect") == len(spans)


def test_a_part_of_the_first_token_that_is_no_number_is_no_decomposition(tmp_path: Path) -> None:
    said = [
        {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.1}},
        {"key": "octavo.ttft.transport_us", "value": {"stringValue": "much"}},
    ]
    (tmp_path / "traces-gateway.jsonl").write_text(line(otlp(attributes=said)))
    assert len(slowest(read_spans(tmp_path), 3)) == 1
