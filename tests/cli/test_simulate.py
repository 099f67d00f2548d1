"""octavo simulate: workloads and traces in, the same figures for the same seed, a picture, replays, errors by option."""

from __future__ import annotations

import json
import sys
import xml.dom.minidom
from pathlib import Path
from typing import Any

import pytest
from octavo.errors import OctavoError
from octavo.figures import read_figures
from octavo_cli.bench.plots import Series
from octavo_cli.bench.work import BadPlan, Piece, Session, Turn, Workload
from octavo_cli.exits import USAGE, exit_code
from octavo_cli.main import app
from octavo_cli.simulate.picture import Panel, draw, svg
from octavo_cli.simulate.rows import rows_of
from typer.testing import CliRunner

MOONCAKE = [
    {"timestamp": 0, "input_length": 1024, "output_length": 4, "hash_ids": [1, 2]},
    {"timestamp": 900, "input_length": 1100, "output_length": 4, "hash_ids": [1, 2, 3]},
    {"timestamp": 2000, "input_length": 600, "output_length": 3, "hash_ids": [7, 8]},
]


def octavo(*words: str) -> str:
    """Runs `octavo simulate`; its output, or the error it raised."""
    result = CliRunner().invoke(app, ["simulate", *words], catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    words = ["--workers", "3", "--requests", "40", "--rate", "20,60", "--hardware", "h200-8b", "--tenants", "2"]
    texts = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        path = tmp_path / f"{name}.json"
        octavo(*words, "--seed", seed, "--json", str(path), "--plot", str(tmp_path / f"{name}.svg"))
        texts.append((path.read_bytes(), (tmp_path / f"{name}.svg").read_bytes()))
    assert texts[0] == texts[1] and texts[0][0] != texts[2][0]
    figures = read_figures(tmp_path / "a.json")
    assert figures.value("finished/r20") == figures.value("finished/r60") == 40
    assert figures.config["workers"] == 3 and figures.config["hardware"]["name"] == "h200-8b"
    picture = xml.dom.minidom.parseString(texts[0][1])
    titles = [node.getAttribute("aria-label") for node in picture.getElementsByTagName("svg")]
    assert "Goodput over the offered rate" in titles and "Latency over time, r60" in titles


def test_a_trace_is_replayed_with_its_shared_blocks_and_its_times(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    trace.write_text("\n".join(json.dumps(row) for row in MOONCAKE))
    octavo("--trace", str(trace), "--json", str(out), "--speed", "2")
    figures = read_figures(out)
    assert figures.value("finished/replay") == 3
    assert figures.value("cached_share_of_prompts/replay") == pytest.approx(1024 / 2724)
    assert 1.0 < figures.value("duration/replay") < 1.2


def test_the_schedulers_settings_count(tmp_path: Path) -> None:
    words = ["--requests", "12", "--rate", "1000", "--json"]
    octavo(*words, str(tmp_path / "a.json"), "--scheduler.max_num_seqs", "1")
    octavo(*words, str(tmp_path / "b.json"))
    one, many = read_figures(tmp_path / "a.json"), read_figures(tmp_path / "b.json")
    assert one.value("running_max/r1000") == 1 < many.value("running_max/r1000")
    assert one.value("ttft_p99/r1000") > many.value("ttft_p99/r1000")


def test_goodput_is_told_by_slo_class(tmp_path: Path) -> None:
    classes = '{"chat": {"ttft_ms": 1.0}, "batch": {"ttft_ms": 60000.0}, "default": {}}'
    words = ["--requests", "20", "--rate", "50", "--slo-classes", "chat,batch", "--json", str(tmp_path / "a.json")]
    octavo(*words, "--scheduler.slo_classes", classes)
    figures = read_figures(tmp_path / "a.json")
    shares = [figures.value(f"slo_attainment/{name}r50") for name in ("", "chat/", "batch/")]
    assert shares == [0.5, 0.0, 1.0]


def test_turns_follow_each_other_and_tenants_take_turns() -> None:
    turns = (Turn(4, (Piece("a", 5), Piece("b", 6))), Turn(3, (Piece("c", 7),), pause_s=0.5))
    text = Session("t", (Turn(9, text="x" * 40),))
    workload = Workload("w", (Session("s", turns), text))
    assert list(rows_of(workload, [0.25, 1.0], tenants=2)) == [
        {"at_us": 250_000, "pieces": [["a", 5], ["b", 6]], "output_tokens": 4, "tenant": "tenant0"},
        {"at_us": 500_000, "pieces": [["c", 7]], "output_tokens": 3, "tenant": "tenant0", "after": 0},
        {"at_us": 1_000_000, "pieces": [["t/0", 10]], "output_tokens": 9, "tenant": "tenant1"},
    ]


def test_a_log_is_replayed_or_its_difference_told(tmp_path: Path) -> None:
    header = {"octavo_event_log": 1, "now_us": 0, "policy": {}}
    tick = ["event", {"": "Tick", "now_us": 5}, []]
    log = tmp_path / "log"
    log.write_text("\n".join(json.dumps(item) for item in (header, tick)))
    assert "1 events, 0 orders\nevery order is byte-equal" in octavo("--replay", str(log))
    tick[2] = [[1, []]]  # type: ignore[list-item]
    log.write_text("\n".join(json.dumps(item) for item in (header, tick)))
    result = CliRunner().invoke(app, ["simulate", "--replay", str(log)])
    assert result.exit_code == 1 and "the orders differ at event 1 (Tick)" in result.output


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "--rate: is missing"),
        (["--rate", "0"], "--rate: 0 must be above 0"),
        (["--rate", "-2"], "--rate: -2 must be above 0"),
        (["--rate", "fast"], "--rate: 'fast' is no number"),
        (["--rate", "5,5"], "--rate: 5,5 names a rate twice"),
        (["--rate", "5", "--requests", "-1"], "--requests: -1 is too few"),
        (["--rate", "5", "--arrivals", "sometimes"], "--arrivals: 'sometimes' is unknown"),
        (["--rate", "5", "--arrivals", "replay"], "--rate: a replay has the trace's own times"),
        (["--arrivals", "replay"], "--arrivals: replay needs a trace"),
        (["--rate", "5", "--requests", "3", "--workers", "0"], "workers: 0 must lie in"),
        (
            ["--rate", "5", "--requests", "3", "--hardware", "abacus"],
            "hardware: 'abacus' is unknown; use one of h200-8b",
        ),
        (["--rate", "5", "--hardware", "./nowhere.json"], "--hardware: ./nowhere.json cannot be read"),
        (["--rate", "5", "--plot", "a.gif"], "--plot: a.gif must end in .svg or .png"),
        (["--rate", "5", "--schedular.policy", "fcfs"], "--schedular.policy"),
        (["--rate", "5", "--requests", "3", "--slo-classes", "gold"], "requests[0].slo_class: 'gold' is unknown"),
        (["--replay", "./nowhere"], "--replay: nowhere cannot be read"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], what: str) -> None:
    with pytest.raises(OctavoError) as caught:
        octavo(*words)
    assert str(caught.value).startswith(what) and exit_code(caught.value) == USAGE


def test_a_malformed_line_of_a_trace_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps(MOONCAKE[0]) + '\n{"timestamp": 3, "input_length": "long", "output_length": 4}\n')
    with pytest.raises(BadPlan, match=r"trace\.jsonl:2: input_length: 'long' must be"):
        octavo("--trace", str(trace))


def test_a_file_that_is_no_cost_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text("nonsense")
    with pytest.raises(BadPlan, match="is neither JSON nor an event log"):
        octavo("--rate", "5", "--hardware", str(path))
    path.write_text('{"octavo_event_log": 1, "now_us": 0, "policy": {}}\n')
    with pytest.raises(BadPlan, match="hardware: the log has 0 reports with steps"):
        octavo("--rate", "5", "--hardware", str(path))


def test_a_png_is_drawn_or_its_library_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [Panel("Latency <over> time", "s", "ms", (Series("p50", ((0.0, 1.0), (1.0, 2.0))),))]
    assert xml.dom.minidom.parseString(svg(drawn)).documentElement.tagName == "svg"
    calls: list[Any] = []

    class Pyplot:
        """What of matplotlib.pyplot is used."""

        def __getattr__(self, name: str) -> Any:
            def call(*words: Any, **options: Any) -> Any:
                calls.append((name, words))
                return (self, [[self]]) if name == "subplots" else self

            return call

    monkeypatch.setitem(sys.modules, "matplotlib", Pyplot())
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", Pyplot())
    draw(tmp_path / "a.png", drawn)
    assert ("plot", ([0.0, 1.0], [1.0, 2.0])) in calls and calls[-2][0] == "savefig"

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot")
    with pytest.raises(BadPlan, match=r"--plot: \.png needs matplotlib"):
        octavo("--rate", "5", "--requests", "1", "--plot", str(tmp_path / "b.png"))


def test_autoscale_compares_rules(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    words = ["--requests", "60", "--rate", "20", "--autoscale", "queue,slo", "--scale-delay", "4m", "--spare", "1"]
    octavo(*words, "--cost-per-hour", "3", "--json", str(path))
    figures = read_figures(path)
    for rule in ("queue", "slo"):
        assert figures.value(f"workers_max/{rule}/r20") == 2
        assert figures.value(f"goodput/{rule}/r20") > 0 and figures.value(f"cost_per_good_request/{rule}/r20") > 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--autoscale", "magic"], "autoscale"),
        (["--autoscale", "slo", "--scale-delay", "soon"], "--scale-delay"),
        (["--autoscale", "slo", "--spare", "-1"], "spare"),
        (["--autoscale", "slo", "--roles", "aggregated"], "--autoscale"),
    ],
)
def test_bad_scaling_is_refused_by_option(words: list[str], named: str) -> None:
    with pytest.raises(BadPlan, match=named):
        octavo("--requests", "5", "--rate", "5", *words)
