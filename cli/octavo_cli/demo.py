"""`octavo demo`: a cluster of its own in a temporary folder, one question, the answer, its trace, and away."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from octavo.client import Client
from rich.console import Console

from octavo_cli.commands.ask import write_chunks
from octavo_cli.exits import FAILED, OK
from octavo_cli.own_cluster import own_cluster
from octavo_cli.spans import REQUEST_SPAN, NoTrace, Span, find_trace, read_spans
from octavo_cli.status import state_urls
from octavo_cli.waterfall import draw

QUESTION = "What is the capital of France?"
TRACE_PATIENCE_S = 5.0
READY_TIMEOUT_S = 300.0


def run_demo(flags: Sequence[str], modules: Mapping[str, str], question: str = QUESTION, as_json: bool = False) -> int:
    """Returns 0 only if an answer came. Raises OctavoError when the cluster or the request failed."""
    console = Console(stderr=as_json)
    with own_cluster(flags, console=console, modules=modules, ready_timeout_s=READY_TIMEOUT_S) as cluster:
        console.print("\n".join(state_urls(cluster.state)), markup=False, highlight=False)
        console.print(f"\n> {question}", markup=False, highlight=False)
        with Client(cluster.state.urls["grpc"]) as client, client.chat_stream(question, temperature=0.0) as stream:
            if not as_json:
                write_chunks(stream)
            answer = stream.result()
        spans = await_trace(cluster.run_dir, answer.trace_id)
        if as_json:
            said = {"completion": asdict(answer), "spans": [asdict(span) for span in spans]}
            print(json.dumps(said, default=lambda value: value.hex()))
        else:
            sys.stdout.write("\n\n")
            sys.stdout.flush()
            draw(spans, console)
    console.print("\nthe cluster is stopped; `octavo up` starts one that stays", markup=False, highlight=False)
    return OK if answer.text.strip() else FAILED


def await_trace(run_dir: Path, trace_id: str) -> list[Span]:
    """The trace of a request that just ended: its root span is written a moment after the answer. Raises NoTrace."""
    deadline_s = time.monotonic() + TRACE_PATIENCE_S
    while True:
        try:
            found = find_trace(read_spans(run_dir), trace_id)
            if any(span.name == REQUEST_SPAN for span in found) or time.monotonic() > deadline_s:
                time.sleep(0.3)  # the other services write theirs at the same pace
                return find_trace(read_spans(run_dir), trace_id)
        except NoTrace:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.1)
