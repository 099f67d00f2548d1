"""chat, complete, trace, bench and demo as a person uses them, against a running cluster of stand-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from octavo.errors import DeadlineExceeded, InvalidRequest, Unauthenticated, UnknownModel
from octavo_cli.exits import exit_code

pytestmark = pytest.mark.usefixtures("running")


@pytest.fixture(scope="module")
def running(make_octavo: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    command = make_octavo(tmp_path_factory.mktemp("ask") / "run")
    done = command.up_detached()
    assert done.returncode == 0, done.stderr
    yield command
    command("down")
    command.end_everything()


def test_only_the_text_is_on_stdout(running: Any) -> None:
    for words in (("chat", "hello big world"), ("complete", "hello big world", "--temperature", "0", "--seed", "7")):
        done = running(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello big world \n", "")
    assert running("complete", "a b c d", "--max-tokens", "2").stdout == "a b \n"
    assert running("chat", "-", stdin="from a pipe").stdout == "from a pipe \n"


def test_json_holds_the_whole_answer(running: Any) -> None:
    answer = json.loads(running("chat", "a b", "--json").stdout)
    assert answer["choices"][0]["text"] == "a b " and answer["usage"]["completion_tokens"] == 2
    assert len(answer["trace_id"]) == 32


def test_a_refused_request_is_one_line_and_code_2(running: Any) -> None:
    done = running("complete", "refuse")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "say something else" in done.stderr
    for words in (("chat", ""), ("complete", ""), ("chat", "-")):
        done = running(*words)
        assert done.returncode == 2 and "TEXT" in done.stderr and done.stderr.count("\n") == 1, words


def test_class_priority_and_preload_are_sent(running: Any) -> None:
    said = ("context", "--slo-class", "chat", "--priority", "-2", "--preload", "handbook")
    for verb in ("chat", "complete"):
        assert running(verb, *said).stdout == "chat -2 handbook \n", verb


def test_a_missing_key_names_the_flag(running: Any) -> None:
    done = running("chat", "locked")
    assert done.returncode == 2 and done.stderr == "octavo: an API key is needed (--api-key)\n"


def test_errors_that_the_caller_must_mend_are_code_2() -> None:
    assert [exit_code(kind("no")) for kind in (InvalidRequest, UnknownModel, Unauthenticated)] == [2, 2, 2]
    assert exit_code(DeadlineExceeded("late")) == 1


def test_another_gateway_by_url(running: Any) -> None:
    url = running.status()["urls"]["grpc"]
    assert running("chat", "hi", "--url", url, "--run-dir", "/nowhere").stdout == "hi \n"
    done = running("chat", "hi", "--url", "grpc://127.0.0.1:9")
    assert done.returncode == 4 and "127.0.0.1:9" in done.stderr and done.stderr.count("\n") == 1
    done = running("chat", "hi", "--url", "http://127.0.0.1:9")
    assert done.returncode == 2 and "grpc://host:port" in done.stderr
    assert running("chat", "hi", "--run-dir", "/nowhere").returncode == 4


def test_the_interactive_chat(running: Any) -> None:
    lines = [
        "one two three",
        "/set max_tokens 2",
        "one two three",
        "/set nonsense 1",
        "/set",
        "/show",
        "refuse",
        "/bye",
        "x",
    ]
    done = running("chat", stdin="\n".join(lines) + "\n")
    assert done.returncode == 0
    assert done.stdout == "one two three \none two \n"
    assert "max_tokens = 2" in done.stderr and "nonsense cannot be set" in done.stderr
    assert "say something else" in done.stderr and "NAME is one of system" in done.stderr
    assert running("chat", stdin="").returncode == 0


def test_trace_by_request_id_and_last(running: Any, eventually: Any) -> None:
    answer = json.loads(running("complete", "a b c", "--json").stdout)

    def drawn() -> str:
        done = running("trace", answer["request_id"][:12])
        return done.stdout if done.returncode == 0 else ""

    text = eventually(drawn)
    assert answer["trace_id"] in text and "request" in text and "gateway" in text and "\x1b" not in text
    assert answer["trace_id"] in running("trace", "--last").stdout
    assert answer["trace_id"] in running("trace", answer["trace_id"][:10]).stdout
    spans = json.loads(running("trace", "--json").stdout)
    assert spans[0]["trace_id"] == answer["trace_id"] and spans[0]["end_ns"] >= spans[0]["start_ns"]
    done = running("trace", "feedbeefnothere")
    assert done.returncode == 1 and "feedbeefnothere" in done.stderr


def test_bench_serve_writes_form_page_and_comparison(running: Any, tmp_path: Path) -> None:
    path, html = tmp_path / "serve.json", tmp_path / "serve.html"
    words = ("--concurrency", "3", "--requests", "7", "--prompt-tokens", "5", "--max-tokens", "4")
    done = running("bench", "serve", *words, "--slo", "ttft=10s", "--json", str(path), "--html", str(html))
    assert done.returncode == 0, done.stderr
    form = json.loads(path.read_text())
    results = {item["name"]: item for item in form["results"]}
    assert form["benchmark"] == "serve" and form["config"]["loop"] == {"loop": "closed", "concurrency": 3, "seed": 0}
    assert results["ttft_p50"]["n"] == 7 and results["itl_p99"]["n"] == 7 * 3
    named = ("goodput", "itl_max", "tpot_p50", "e2e_p50", "errors", "rejected", "cancelled")
    named += tuple(f"throughput/{kind}" for kind in ("request", "input", "output", "total"))
    assert set(named) <= set(results) and results["errors"]["value"] == 0 and len(form["samples"]["ttft"]) == 7
    assert "ttft_p95" in done.stdout and "<svg" in html.read_text()
    again = running("bench", "serve", *words, "--slo", "ttft=10s", "--json", "-")
    (tmp_path / "again.json").write_text(again.stdout)
    compared = running("bench", "compare", str(path), str(tmp_path / "again.json"), "--json", "-")
    assert json.loads(compared.stdout)["ratios"][0]["pairs"] == 7
    other = running("bench", "serve", "--requests", "2", "--json", "-")
    (tmp_path / "other.json").write_text(other.stdout)
    refused = running("bench", "compare", str(path), str(tmp_path / "other.json"))
    assert refused.returncode == 2 and "only equal workloads can be compared" in refused.stderr


def test_bench_serve_names_what_is_wrong(running: Any) -> None:
    done = running("bench", "serve", "--arrivals", "poison", "--rate", "3")
    assert done.returncode == 2 and "--arrivals: 'poison' is unknown" in done.stderr
    done = running("bench", "serve", "--url", "http://127.0.0.1:9/v1")
    assert done.returncode == 4 and "no answer from http://127.0.0.1:9/v1" in done.stderr


def test_demo_shows_answer_and_trace_and_leaves_nothing(running: Any) -> None:
    done = running("demo", *running.up_flags, "--question", "is anybody there")
    assert done.returncode == 0, done.stderr
    assert "> is anybody there\nis anybody there \n" in done.stdout
    assert "trace " in done.stdout and "gateway" in done.stdout and "stopped" in done.stdout
    assert not [name for name in running.status()["services"] if name["state"] != "serving"]


def test_demo_fails_when_no_answer_comes(running: Any) -> None:
    done = running("demo", *running.up_flags, "--question", "refuse")
    assert done.returncode == 2 and "say something else" in done.stderr
    done = running("demo", "--module=gateway=no_such_module", *running.up_flags[:3])
    assert done.returncode == 1 and "gateway did not start" in done.stderr


def test_help_of_every_command(running: Any) -> None:
    for words in (
        (),
        ("up",),
        ("chat",),
        ("trace",),
        ("doctor",),
        ("bench", "serve"),
        ("bench", "matrix"),
        ("check",),
        ("manifest", "fingerprint"),
    ):
        done = running(*words, "--help")
        assert done.returncode == 0 and "Usage: octavo" in done.stdout, (words, done.stderr)
    assert running("--version").stdout.startswith("octavo ")
    assert running("no-such-command").returncode == 2
