"""What `octavo up` shows on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from octavo_cli.console import ConsoleWatcher
from octavo_cli.json_watcher import JsonWatcher
from octavo_cli.service_log import Record
from octavo_cli.state import Process, ServiceState
from rich.console import Console

WORKER = ServiceState("gpuworker-0", "gpuworker", "127.0.0.1:5", process=Process(7, "boot/1"))


def shown(terminal: bool, width: int = 100) -> tuple[io.StringIO, ConsoleWatcher]:
    out = io.StringIO()
    return out, ConsoleWatcher(Console(file=out, force_terminal=terminal, width=width))


def play(watcher: ConsoleWatcher) -> None:
    for message in ("loading weights: 10%", "loading weights: 100%", "listening"):
        watcher.record("gpuworker-0", Record("info", message))
    watcher.record("gpuworker-0", Record("info", "setting engine.kernels = 'torch' (flag)"))
    watcher.record(
        "gpuworker-0", Record("info", "settings at their default: engine.kernels='auto' release_gate.skip=()")
    )
    watcher.record("gateway", Record("info", "loading the tokenizer"))
    watcher.record("gateway", Record("warning", "the scheduler does not answer yet"))
    watcher.record("gateway", Record("error", "cannot start: no model"))
    watcher.record("gateway", Record("error", "ended with exit code 3: cannot start: no model"))
    watcher.record("gpuworker-0", Record("", '  File "load.py", line 3'))
    watcher.changed(WORKER, replace(WORKER, state="serving"), 2.34)
    watcher.ready({"grpc": "grpc://127.0.0.1:1", "http": "http://127.0.0.1:2"}, 3.21)


def test_plain_lines_off_a_terminal() -> None:
    out, watcher = shown(terminal=False)
    play(watcher)
    lines = out.getvalue().splitlines()
    assert lines == [
        "gpuworker-0: loading weights: 10%",
        "gpuworker-0: loading weights: 100%",
        "gateway: the scheduler does not answer yet",
        "gpuworker-0  ready  127.0.0.1:5  pid 7  2.3 s",
        "page         ready  http://127.0.0.1:2/  chat and the live view, for a browser",
        "octavo is ready in 3.2 s: grpc grpc://127.0.0.1:1  http http://127.0.0.1:2",
    ]


def test_a_bar_on_a_terminal_that_goes_away() -> None:
    out, watcher = shown(terminal=True)
    play(watcher)
    text = out.getvalue()
    assert "100%" in text and "\x1b[" in text
    assert text.rstrip().endswith("octavo is ready in 3.2 s: grpc grpc://127.0.0.1:1  http http://127.0.0.1:2")


def test_progress_in_the_reason_of_a_worker_that_is_starting() -> None:
    out, watcher = shown(terminal=False)
    watcher.changed(WORKER, replace(WORKER, why="loading weights 3/12"), 0.5)
    watcher.changed(replace(WORKER, state="serving"), replace(WORKER, state="not_serving", why="no progress"), 9.0)
    watcher.died("kvstore", "killed by signal 9", 0.1)
    assert out.getvalue().splitlines() == [
        "gpuworker-0: loading weights 3/12",
        "gpuworker-0  not_serving: no progress",
        "kvstore      died: killed by signal 9; starting it again in 0.1 s",
    ]


def test_a_default_address_that_is_taken_is_told_with_the_one_in_its_place() -> None:
    out, watcher = shown(terminal=False)
    watcher.moved("gateway.http_listen", "127.0.0.1:8000", "127.0.0.1:4")
    assert out.getvalue() == "gateway.http_listen: 127.0.0.1:8000 is taken, 127.0.0.1:4 is used instead\n"
    lines = io.StringIO()
    JsonWatcher(lines).moved("gateway.http_listen", "127.0.0.1:8000", "127.0.0.1:4")
    assert json.loads(lines.getvalue()) == {
        "event": "moved", "key": "gateway.http_listen", "taken": "127.0.0.1:8000", "address": "127.0.0.1:4",
    }  # fmt: skip
