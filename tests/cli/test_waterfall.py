"""Spans read from OTLP-JSON files, found by id, and drawn."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from octavo_cli.spans import NoTrace, Span, find_trace, read_spans
from octavo_cli.waterfall import bar, draw, first_token_ms, headline, ordered
from rich.console import Console


def span(name: str, start_ms: float, end_ms: float, *, id: str, parent: str = "", **more: Any) -> Span:
    values = {"trace_id": "ab" * 16, "service": "gateway", "attributes": {}, "events": (), "error": ""} | more
    return Span(
        span_id=id, parent_id=parent, name=name, start_ns=int(start_ms * 1e6), end_ns=int(end_ms * 1e6), **values
    )


REQUEST = span(
    "request",
    100,
    300,
    id="r",
    parent="clients-own",
    attributes={
        "gen_ai.request.id": "req-42",
        "gen_ai.latency.time_to_first_token": 0.05,
        "octavo.outcome": "finished",
    },
)
QUEUE = span("queue", 102, 110, id="q", parent="r", service="scheduler")
PREFILL = span("prefill", 110, 150, id="p", parent="r", service="gpuworker", attributes={"octavo.cached_tokens": 16})
DECODE = span("decode", 150, 299, id="d", parent="r", service="gpuworker", error="worker lost")
CANCEL = span("cancel", 200, 204, id="c", parent="r", attributes={"octavo.cancel.reason": "client_disconnect"})
TREE = [DECODE, PREFILL, CANCEL, QUEUE, REQUEST]


def plain(spans: list[Span]) -> str:
    out = io.StringIO()
    draw(spans, Console(file=out, width=120))
    return out.getvalue()


def test_parents_come_first_and_siblings_by_start() -> None:
    assert [(depth, item.name) for depth, item in ordered(TREE)] == [
        (0, "request"),
        (1, "queue"),
        (1, "prefill"),
        (1, "decode"),
        (1, "cancel"),
    ]


def test_spans_that_are_their_own_parent_end() -> None:
    assert len(ordered([span("x", 0, 1, id="a", parent="a"), span("y", 0, 1, id="b", parent="gone")])) == 2


def test_the_drawing_is_plain_off_a_terminal() -> None:
    text = plain(TREE)
    lines = text.splitlines()
    assert "\x1b" not in text
    assert lines[0] == f"trace {'ab' * 16}  request req-42"
    assert "TTFT 50.0 ms" in lines[1] and "total 200.0 ms" in lines[1] and "outcome finished" in lines[1]
    assert any("cancelled: client_disconnect" in line and "4.0 ms" in line for line in lines)
    prefill = next(line for line in lines if line.lstrip().startswith("prefill"))
    assert "gpuworker" in prefill and " 10.0 ms" in prefill and " 40.0 ms" in prefill and "cached_tokens=16" in prefill
    assert "request_id=" not in text and "outcome=" not in text  # the headline says them
    assert "error: worker lost" in next(line for line in lines if line.lstrip().startswith("decode"))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_on_a_terminal_what_a_line_has_no_room_for_stands_below_it_in_whole_words(width: int) -> None:
    said = {f"octavo.figure_{number}": number for number in range(30)}
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    draw([REQUEST, span("prefill", 110, 150, id="p", parent="r", attributes=said)], console)
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    assert max(len(line) for line in lines) <= width
    at = next(i for i, line in enumerate(lines) if line.lstrip().startswith("prefill"))
    assert "figure" not in lines[at] and all(line.startswith(" " * 9) for line in lines[at + 1 :])
    assert " ".join(lines[at + 1 :]).split() == [f"figure_{number}={number}" for number in range(30)]


def test_ttft_without_the_gateways_figure_is_the_prefills_end() -> None:
    bare = span("request", 100, 300, id="r")
    assert first_token_ms([bare, PREFILL], bare) == pytest.approx(50.0)
    assert first_token_ms([bare], bare) is None
    assert "TTFT" not in " ".join(headline([bare]))


@pytest.mark.parametrize(
    ("start", "end", "drawn"),
    [
        (0, 100, "##########"),
        (0, 0, "#         "),
        (99, 100, "         #"),
        (100, 100, "         #"),
        (25, 50, "  ###     "),
    ],
)
def test_a_bar_is_never_empty_and_never_wider(start: int, end: int, drawn: str) -> None:
    assert bar(start, end, 100, 10, "#") == drawn


def otlp(trace_id: str, name: str, start_ns: int, **attributes: Any) -> dict[str, Any]:
    listed = [{"key": key.replace("__", "."), "value": {"stringValue": value}} for key, value in attributes.items()]
    item = {
        "traceId": trace_id,
        "spanId": "01" * 8,
        "name": name,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + 5),
        "attributes": [*listed, {"key": "n", "value": {"intValue": "7"}}],
        "events": [{"name": "chunk", "timeUnixNano": str(start_ns + 1)}],
        "status": {"code": "STATUS_CODE_ERROR", "message": "broken"},
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "octavo-gateway"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [item]}]}]}


def test_files_are_read_and_half_written_lines_left_out(tmp_path: Path) -> None:
    first, second = "aa" * 16, "ab" * 16
    lines = [
        json.dumps(otlp(first, "request", 10, gen_ai__request__id="req-1")),
        json.dumps(otlp(second, "request", 20, gen_ai__request__id="req-10")),
    ]
    (tmp_path / "traces-gateway-1.jsonl").write_text("\n".join(lines) + '\n{"resourceSpans": [{"res')
    (tmp_path / "other.jsonl").write_text("not ours")
    spans = read_spans(tmp_path)
    assert [item.name for item in spans] == ["request", "request"]
    assert spans[0].service == "gateway" and spans[0].attributes["n"] == 7
    assert spans[0].error == "broken" and spans[0].events[0].name == "chunk"
    assert find_trace(spans)[0].trace_id == second
    assert find_trace(spans, "req-1")[0].trace_id == first  # the whole id wins over a beginning
    assert find_trace(spans, "AB")[0].trace_id == second
    for wanted in ("a", "req", "zz"):
        with pytest.raises(NoTrace):
            find_trace(spans, wanted)
    with pytest.raises(NoTrace, match="ask something"):
        find_trace([])


def test_what_the_services_export_is_what_we_read(tmp_path: Path) -> None:
    from octavo.rpc.tracing import record_span, start_tracing

    provider = start_tracing("scheduler", "1", otlp_endpoint="", trace_dir=tmp_path, sample=1.0)
    parent = f"00-{'0a' * 16}-{'0b' * 8}-01"
    record_span(provider.get_tracer("t"), "queue", parent, 1_000, 2_000, {"octavo.depth": 3}, events=[("e", 1_500, {})])
    provider.shutdown()
    found = find_trace(read_spans(tmp_path), "0a0a")
    assert [(item.name, item.service, item.start_ns, item.end_ns) for item in found] == [
        ("queue", "scheduler", 1_000, 2_000)
    ]
    assert found[0].parent_id == "0b" * 8 and found[0].attributes["octavo.depth"] == 3 and found[0].error == ""
