"""`octavo up` with a release gate: ready only after the checks; a bound that is missed keeps it shut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from cluster import SOURCES, free_port

pytestmark = pytest.mark.e2e
ADDRESSES = ("--gateway.grpc_listen", "127.0.0.1:0")


def up(folder: Path, http: int, *flags: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OCTAVO_", "OTEL_"))}
    words = ["up", *ADDRESSES, "--gateway.http_listen", f"127.0.0.1:{http}", "--cache.tiers", "[]"]
    words += ["--deployment.run_dir", str(folder), "--release_gate.enabled", "true", *flags]
    return subprocess.Popen(
        [sys.executable, "-m", "octavo_cli", *words],
        env=environment | {"PYTHONPATH": SOURCES},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ready(http: int) -> int:
    """The status of /ready; 0 while nothing listens."""
    try:
        return httpx.get(f"http://127.0.0.1:{http}/ready", timeout=30).status_code
    except httpx.HTTPError:
        return 0


def ask(http: int) -> httpx.Response | None:
    body = {"model": "smollm2", "prompt": "hello", "max_tokens": 2}
    try:
        return httpx.post(f"http://127.0.0.1:{http}/v1/completions", json=body, timeout=30)
    except httpx.HTTPError:
        return None


def test_the_gate_opens_after_its_checks_and_not_before(tmp_path: Path) -> None:
    folder, http = tmp_path / "run", free_port()
    process = up(folder, http, "--release_gate.bench_requests", "4", "--release_gate.skip", "sampling,stops")
    try:
        refused = ""
        deadline_s = time.monotonic() + 90
        while True:
            before, answer = ready(http), ask(http)  # in this order: the gate may open between the two
            if answer is not None and answer.status_code == 200:
                break
            assert process.poll() is None and time.monotonic() < deadline_s, process.communicate()
            if answer is not None and answer.status_code == 503 and "release gate" in answer.text:
                refused = answer.text
                assert before == 503
            time.sleep(0.1)
        assert "its checks have not passed yet" in refused
        verdict = json.loads((folder / "release-gate.json").read_text())
        assert verdict["passed"] and verdict["said"] == "smollm2 is the reference model"
        checks = {item["name"]: item["verdict"] for item in verdict["checks"]["results"]}
        assert checks == dict.fromkeys(
            ("parity", "logprobs", "usage", "isolation", "reclaim", "tools", "quality"), "pass"
        )
        assert {item["name"]: item["value"] for item in verdict["bench"]["results"]}["completed"] == 4
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_missed_bound_keeps_the_gate_shut(tmp_path: Path) -> None:
    skipped = "logprobs,sampling,stops,usage,isolation,reclaim,tools,quality"
    flags = ("--release_gate.skip", skipped, "--release_gate.bench_requests", "2")
    process = up(tmp_path / "run", free_port(), *flags, "--release_gate.min_output_tokens_per_s", "1000000.0")
    _out, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "release gate failed: output is" in error and "release_gate.min_output_tokens_per_s wants 1e+06" in error
