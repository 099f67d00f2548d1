"""Runs the octavo command as a process, with stand-ins for the four services."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

FAKES = Path(__file__).parent / "fakes"
SOURCES = ("protos", "gateway", "scheduler", "gpuworker", "kvstore", "cli")
KINDS = ("scheduler", "kvstore", "gpuworker", "gateway")


class Octavo:
    """The octavo command against fake services in a run folder of its own, on free ports."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        root = Path(__file__).parents[2]
        paths = [str(root / source) for source in SOURCES] + [str(FAKES)]
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith(("OCTAVO_", "OTEL_"))}
        self.environ |= {"PYTHONPATH": os.pathsep.join(paths), "OCTAVO_DEPLOYMENT_RUN_DIR": str(run_dir)}
        self.up_flags = [f"--module={kind}=fake_{kind}" for kind in KINDS]
        self.up_flags += ["--gateway.grpc_listen", "127.0.0.1:0", "--gateway.http_listen", "127.0.0.1:0"]

    def script(self, name: str, **what: Any) -> None:
        """What the fake of this name does wrong."""
        (self.run_dir / f"fake-{name}.json").write_text(json.dumps(what))

    def unscript(self, name: str) -> None:
        (self.run_dir / f"fake-{name}.json").unlink()

    def __call__(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "octavo_cli", *words],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
            input=stdin,
        )

    def up(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "octavo_cli", "up", *self.up_flags, *words],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def up_detached(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self("up", "--detach", *self.up_flags, *words)

    def state(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.run_dir / "state.json").read_text())
        return content

    def service_pids(self) -> dict[str, int]:
        return {item["name"]: item["process"]["pid"] for item in self.state()["services"]}

    def status(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self("status", "--json").stdout)
        return content

    def end_everything(self) -> None:
        """Whatever a failed test left: found by its run folder's name in the command line."""
        for process in psutil.process_iter(["cmdline", "environ"]):
            words = process.info["cmdline"] or []
            environ = process.info["environ"] or {}
            mine = str(self.run_dir) in words or environ.get("OCTAVO_DEPLOYMENT_RUN_DIR") == str(self.run_dir)
            if mine and process.pid != os.getpid():
                process.kill()


def wait_until(condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    """Polls until the condition is true and returns its value."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("the condition did not become true in time")


@pytest.fixture(autouse=True, scope="session")
def interrupts_reach_children() -> None:
    """A shell starts what it puts in the background with SIGINT ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def octavo(tmp_path: Path) -> Iterator[Octavo]:
    command = Octavo(tmp_path / "run")
    yield command
    command.end_everything()


@pytest.fixture(scope="session")
def make_octavo() -> Callable[[Path], Octavo]:
    return Octavo


@pytest.fixture
def eventually() -> Callable[..., Any]:
    return wait_until
