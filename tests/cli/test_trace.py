"""octavo trace: tables, filters, exports and the page, from the files of a run folder."""

from __future__ import annotations

import io
import json
import re
import select
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from octavo.rpc.tracing import OpenSpan, format_traceparent, parse_traceparent, record_span, start_tracing
from octavo.ttft import PARTS
from octavo_cli.commands.trace import NARROW, requests_table
from octavo_cli.jaeger import jaeger_json
from octavo_cli.main import app
from octavo_cli.requests_table import COLUMNS, row
from octavo_cli.spans import TraceTail, find_trace, read_spans
from octavo_cli.trace_page import page
from octavo_cli.ttft import ttft_of
from octavo_cli.waterfall import ttft_line
from rich.console import Console
from typer.testing import CliRunner

BASE_NS = 1_700_000_000 * 10**9
PARENT = "00-{trace:032x}-{span:016x}-01"


def ms(value: float) -> int:
    return BASE_NS + int(value * 1e6)


def write_request(folder: Path, number: int, queue_ms: float, tenant: str = "default", evil: str = "") -> str:
    """One request of a gateway, a scheduler and a worker, in a file; returns its trace id."""
    provider = start_tracing("gateway", "1", otlp_endpoint="", trace_dir=folder, sample=1.0)
    tracer = provider.get_tracer("t")
    parts = {"gateway": 1.0, "tokenize": 0.5, "queue": queue_ms, "prefill": 20.0, "sample": 0.5, "transport": 2.0}
    span = OpenSpan(tracer, "request", parse_traceparent(PARENT.format(trace=number, span=9)), ms(0))
    span.attributes.update(
        {
            "gen_ai.request.id": f"req-{number}",
            "octavo.tenant": tenant,
            "octavo.outcome": "finished" + evil,
            "gen_ai.latency.time_to_first_token": sum(parts.values()) / 1e3,
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 3,
            **{f"octavo.ttft.{name}_us": int(parts.get(name, 0) * 1000) for name in PARTS},
        },
    )
    parent = format_traceparent(span.context)
    interrupted = record_span(tracer, "attempt", parent, ms(1), ms(4), {"octavo.reason": "worker-lost"})
    record_span(tracer, "preempted", parent, ms(4), ms(6), links=[interrupted])
    record_span(
        tracer,
        "prefill",
        parent,
        ms(6),
        ms(26),
        {"octavo.prefill.tokens": 7},
        events=[("chunk", ms(7), {"octavo.tokens": 7})],
    )
    record_span(tracer, "decode", parent, ms(26), ms(60), error="worker lost" if evil else "")
    span.end(ms(60))
    provider.shutdown()
    return f"{number:032x}"


def octavo(folder: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["trace", "--run-dir", str(folder), *words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, queue_ms, tenant in ((1, 5.0, "default"), (2, 300.0, "acme"), (3, 50.0, "acme")):
        write_request(tmp_path, number, queue_ms, tenant)
    return tmp_path


def test_the_first_token_is_drawn_in_parts_that_add_up(folder: Path) -> None:
    shown = octavo(folder, "req-2").stdout
    assert (
        "TTFT 324.0 ms = gateway 1.0 + tokenize 0.5 + queue 300.0 + prefill 20.0 + sample 0.5 + transport 2.0" in shown
    )
    assert "octavo.ttft" not in shown and "ttft.queue" not in shown


def test_parts_that_do_not_add_up_are_said_so(folder: Path) -> None:
    (request,) = [span for span in find_trace(read_spans(folder), "req-2") if span.name == "request"]
    request.attributes["octavo.ttft.queue_us"] = 1
    ttft = ttft_of(request)
    assert ttft is not None and not ttft.adds_up
    assert "(they add up to 24.0 ms)" in ttft_line(ttft)


def test_the_slowest_come_first_and_a_tenant_is_a_filter(folder: Path) -> None:
    def ids(*words: str) -> list[str]:
        listed = json.loads(octavo(folder, "--json", *words).stdout)
        return [row["attributes"]["gen_ai.request.id"] for row in listed]

    assert ids("--slowest", "2") == ["req-2", "req-3"]
    assert ids("--slowest", "9") == ["req-2", "req-3", "req-1"]
    assert ids("--slowest", "9", "--tenant", "acme") == ["req-2", "req-3"]
    shown = octavo(folder, "--slowest", "1").stdout
    assert "req-2" in shown and "queue" in shown and "req-1" not in shown


@pytest.mark.parametrize("width", [80, 100, 124, 125, 150])
def test_a_terminal_of_any_width_has_every_figure_whole(folder: Path, width: int) -> None:
    (request,) = [span for span in find_trace(read_spans(folder), "req-2") if span.name == "request"]
    request.attributes["gen_ai.request.id"] = "ab" * 16
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(requests_table([request], width))
    shown = console.export_text()
    assert max(len(line) for line in shown.splitlines()) <= width
    for said in ("abababa", "finished", "324.0", "60.0", "7 > 3", "queue 300.0 ms"):
        assert said in shown
    assert ("acme" in shown) == (width >= NARROW) == (request.trace_id[:12] in shown)


@pytest.mark.parametrize(
    ("outcome", "reason", "shown"),
    [
        ("finished", "", "finished"),
        ("no-tool-call", "no-tool-call", "no-tool-call"),
        ("cancelled", "client_cancel", "cancelled (client_cancel)"),
    ],
)
def test_a_reason_stands_beside_an_outcome_of_another_word(folder: Path, outcome: str, reason: str, shown: str) -> None:
    (request,) = [span for span in find_trace(read_spans(folder), "req-2") if span.name == "request"]
    request.attributes.update({"octavo.outcome": outcome, "octavo.reason": reason})
    assert row(request)[COLUMNS.index("outcome")] == shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--slowest", "2", "--last"), "--slowest"),
        (("--follow", "--html", "x"), "--follow"),
        (("--tenant", "nobody"), "no request of tenant 'nobody'"),
        (("--slowest", "2", "--tenant", "nobody"), "of tenant 'nobody'"),
        (("--export", "/no/such/folder/x.json"), "--export: /no/such/folder/x.json cannot be written"),
    ],
)
def test_what_cannot_be_is_said_with_the_flag(folder: Path, words: tuple[str, ...], said: str) -> None:
    result = octavo(folder, *words)
    assert result.exception is not None and said in str(result.exception)


def test_a_table_of_none_is_refused(folder: Path) -> None:
    result = octavo(folder, "--slowest", "0")
    assert result.exit_code == 2 and "--slowest" in result.stderr


def test_the_export_has_the_shape_that_jaeger_uploads(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "jaeger.json"
    assert octavo(folder, "req-2", "--export", str(target)).exit_code == 0
    content = json.loads(target.read_text())
    assert {"data", "total", "limit", "offset", "errors"} == set(content)
    (trace,) = content["data"]
    assert {"traceID", "spans", "processes", "warnings"} == set(trace)
    spans = {span["operationName"]: span for span in trace["spans"]}
    assert set(spans) == {"request", "attempt", "preempted", "prefill", "decode"}
    for span in trace["spans"]:
        assert {
            "traceID",
            "spanID",
            "operationName",
            "references",
            "startTime",
            "duration",
            "tags",
            "logs",
            "processID",
            "warnings",
        } == set(span)
        assert re.fullmatch(r"[0-9a-f]{32}", span["traceID"]) and re.fullmatch(r"[0-9a-f]{16}", span["spanID"])
        assert isinstance(span["startTime"], int) and isinstance(span["duration"], int)
        assert trace["processes"][span["processID"]]["serviceName"] == "octavo-gateway"
        for tag in span["tags"]:
            kinds = {"string": str, "int64": int, "float64": float, "bool": bool}
            assert set(tag) == {"key", "type", "value"} and isinstance(tag["value"], kinds[tag["type"]])
    assert spans["prefill"]["startTime"] == ms(6) // 1000 and spans["prefill"]["duration"] == 20_000
    assert spans["prefill"]["references"] == [
        {"refType": "CHILD_OF", "traceID": trace["traceID"], "spanID": spans["request"]["spanID"]}
    ]
    assert spans["preempted"]["references"][1] == {
        "refType": "FOLLOWS_FROM", "traceID": trace["traceID"], "spanID": spans["attempt"]["spanID"]
    }  # fmt: skip
    assert spans["prefill"]["logs"][0]["fields"][0] == {"key": "event", "type": "string", "value": "chunk"}


def test_a_table_exports_all_its_traces(folder: Path) -> None:
    content = jaeger_json(read_spans(folder))
    assert content["total"] == 3 and {len(trace["spans"]) for trace in content["data"]} == {5}


class Tags(HTMLParser):
    """Collects tags and what they load; fails on a tag that is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "data") or name.startswith("on")
        ]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    write_request(tmp_path, 5, 300.0, evil="<script>alert(1)</script>")
    text = page(find_trace(read_spans(tmp_path)))
    seen = Tags()
    seen.feed(text)
    assert seen.open == [] and seen.loaded == [] and "script" not in seen.tags
    assert "&lt;script&gt;" in text and "http" not in text and "@import" not in text
    assert "Time to first token: 324.0 ms" in text and "prefers-color-scheme: dark" in text
    assert text.count("<rect") >= 5 + len(PARTS) and "worker lost" in text


def test_the_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    write_request(tmp_path, 1, 5.0)
    tail = TraceTail(tmp_path)
    tail.skip()
    assert tail.read() == []
    write_request(tmp_path, 2, 5.0)
    (file,) = tmp_path.glob("traces-*.jsonl")
    with file.open("a") as out:
        out.write('{"resourceSpans": [')
    assert {span.trace_id for span in tail.read()} == {f"{2:032x}"}
    assert tail.read() == []


def test_follow_prints_requests_as_they_end(tmp_path: Path) -> None:
    write_request(tmp_path, 1, 5.0)
    command = [sys.executable, "-m", "octavo_cli", "trace", "--follow", "--run-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for number in range(2, 600):  # until the reader is there: what ended before it is not shown
            write_request(tmp_path, number, 5.0)
            if select.select([process.stdout], [], [], 0.1)[0]:
                break
        line = process.stdout.readline()
    finally:
        process.kill()
        process.wait()
    assert "request=req-" in line and "outcome=finished" in line and "req-1 " not in line
