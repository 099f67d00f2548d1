"""Every command and example in README and docs/ is run, in order, against one cluster that README's own command starts.

Commands find the cluster by its run folder, as a reader's do; addresses in the text become those of this cluster.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import SOURCES

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
HEREDOC = re.compile(r"^python3? - <<'(\w+)'\n(.*?)^\1$", re.S | re.M)
SHELLS = ("", "sh", "bash", "console", "shell")
VARIABLES = re.compile(r"^([A-Z_]+=(\"[^\"]*\"|\S+) )+")
COMMAND = re.compile(
    r"^(\$ )?((\.venv/bin/)?octavo|curl|make|docker|pytest|python3?|npm|pip|git|kubectl|sudo|apt-get)\b "
)
PATIENCE_S = 100

ELSEWHERE = {
    "python -m octavo_": "tests/e2e/test_two_hosts.py starts the same processes with these flags",
    "make install": "what made the environment that runs this",
    "make test": "runs this very test",
    "make check": "beside this test in CI",
    "make soak": "the long forms",
    "make bench": "octavo bench serve is run here",
    "make demo": "octavo demo, run by tests/cli and below",
    "docker compose": "no daemon here; tests/architecture checks the file against the compose specification",
}
"""Beginnings of commands that are not run here -> who runs them, or why nobody can."""
SANITIZED = "asan"
"""The native library built again under the sanitizers, and its tests."""
LONG = (
    "octavo check",
    "octavo bench cache --json",
    "octavo bench matrix",
    "octavo bench serve --concurrency",
    "octavo bench serve --url",
)
"""Beginnings of commands that take long however few requests they make; so does a search over rates (`--sweep`)."""
SHORTER = {
    "--duration": "2", "--requests": "4", "--max-tokens": "8", "--rate": "4", "--output-tokens": "8", "--warmup": "1",
    "--repeat": "1", "--runs": "1", "--tokens": "256", "--rounds": "1", "--minutes": "0.05", "--concurrency": "2", "--workers": "4", "--input-mean": "64",
}  # fmt: skip
"""Flags whose numbers are for people with time."""
MOONCAKE = [{"timestamp": at, "input_length": 40, "output_length": 4, "hash_ids": [1]} for at in (0, 200, 400)]
"""A trace in Mooncake's form: what a reader of the benchmarks' page brings along."""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:47.6805900,100,4
"""
"""And one in the form of the Azure LLM traces."""
NOT_A_FAILURE = {"octavo doctor": (0, 1)}
"""Commands whose exit code speaks of the machine."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@dataclass(frozen=True, slots=True)
class Example:
    """A command line, or a Python program, as it stands in a page."""

    page: Path
    text: str
    language: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0]}"


def examples(page: Path) -> Iterator[Example]:
    """What a reader would copy from the page, in order."""
    for language, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            yield Example(page, body, language)
        elif language in SHELLS:
            for program in HEREDOC.findall(body):
                yield Example(page, program[1], "python")
            for line in HEREDOC.sub("", body).replace("\\\n", " ").splitlines():
                line = re.sub(r"(?<=\S)\s{2,}#.*| # .*", "", line).strip()
                if COMMAND.match(VARIABLES.sub("", line)):
                    yield Example(page, line.removeprefix("$ ").removeprefix(".venv/bin/"))


ALL = [example for page in PAGES for example in examples(page)]
STARTS = [example for example in ALL if example.text.startswith("octavo up")]
STOPS = [example for example in ALL if example.text == "octavo down"]


class Reader:
    """Somebody who copies what the pages say into a shell."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.folder = folder
        self.urls: dict[str, str] = {}
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("OCTAVO_", "OTEL_"))}
        self.environ = clean | {
            "PYTHONPATH": SOURCES, "OCTAVO_DEPLOYMENT_RUN_DIR": str(self.run_dir), "COLUMNS": "200",
            "OCTAVO_GATEWAY_GRPC_LISTEN": "127.0.0.1:0", "OCTAVO_GATEWAY_HTTP_LISTEN": "127.0.0.1:0",
        }  # fmt: skip

    def here(self, text: str) -> str:
        """The text with this cluster's addresses."""
        for said, name in (
            ("http://127.0.0.1:8000", "http"),
            ("http://127.0.0.1:8080", "http"),  # the benchmarks' page measures another server there
            ("127.0.0.1:50050", "grpc"),
        ):
            text = text.replace(said, self.urls.get(name, said).removeprefix("grpc://"))
        return text.replace("http://localhost:8000", self.urls.get("http", "http://localhost:8000"))

    def words(self, text: str) -> list[str]:
        if VARIABLES.match(text):  # what stands before a command is the shell's to read
            return ["bash", "-c", self.here(text)]
        words = shlex.split(self.here(text))
        for at, word in enumerate(words[:-1]):
            words[at + 1] = SHORTER.get(word, words[at + 1])
        if words[0] == "octavo":
            words = [sys.executable, "-m", "octavo_cli", *words[1:]]
        elif words[0].startswith("python"):
            words[0] = sys.executable
        elif words[0] == "curl":
            words = [words[0], "--fail-with-body", "--silent", "--show-error", "--max-time", "60", *words[1:]]
        return words

    def run(self, example: Example) -> subprocess.CompletedProcess[str]:
        if example.language == "python":
            words = [sys.executable, "-c", self.here(example.text)]
        else:
            words = self.words(example.text)
        if example.text.startswith("octavo bench compare"):  # two runs that the reader has made
            for name in words[-2:]:
                shutil.copy(self.folder / "serve.json", self.folder / name)
        return subprocess.run(
            words, env=self.environ, cwd=self.folder, capture_output=True, text=True,
            timeout=3000 if is_long(example) else PATIENCE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A reader whose cluster runs, started as README says."""
    found = Reader(tmp_path_factory.mktemp("reader"))
    for name in ("octavo.yaml", "docs", "bench"):  # commands of the pages may name files of the repository
        (found.folder / name).symlink_to(ROOT / name)
    (found.folder / "azure.csv").write_text(AZURE)
    (found.folder / "mooncake.jsonl").write_text("".join(json.dumps(line) + "\n" for line in MOONCAKE))
    up = found.run(next(example for example in STARTS if example.page == README))
    assert up.returncode == 0, up.stderr
    found.urls = dict(line.split(None, 1) for line in up.stdout.splitlines() if "://" in line)
    assert {"grpc", "http"} <= set(found.urls), up.stdout
    yield found
    state = json.loads((found.run_dir / "state.json").read_text()) if (found.run_dir / "state.json").exists() else None
    if state is not None:  # a failed test leaves nothing running
        subprocess.run([sys.executable, "-m", "octavo_cli", "down"], env=found.environ, timeout=60, check=False)


def runnable() -> list[Example]:
    """Each command once, README's in its order first; starting and stopping are the fixture's and the last test's."""
    once = {example.text: example for example in reversed(ALL)}
    order = list(dict.fromkeys(example.text for example in ALL))
    return [once[text] for text in order if not text.startswith(("octavo up", "octavo down", *ELSEWHERE))]


def is_long(example: Example) -> bool:
    """Whether only `make soak` runs it."""
    if SANITIZED in example.text:
        return True
    return (example.text.startswith(LONG) and "--only" not in example.text) or example.text.endswith("--sweep")


def parameter(example: Example) -> Any:
    """The example as a test's parameter, by its own name."""
    marks = [pytest.mark.soak, pytest.mark.timeout(3600)] if is_long(example) else []
    return pytest.param(example, id=str(example), marks=marks)


@pytest.mark.parametrize("example", [parameter(example) for example in runnable()])
def test_it_works_as_written(reader: Reader, example: Example) -> None:
    if example.text.startswith("curl") and shutil.which("curl") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs curl: .ci/run installs it")
        pytest.skip("no curl here: apt-get install curl")
    if example.text.startswith("octavo serve"):
        run_for_a_while(reader, example)
        return
    done = reader.run(example)
    allowed = next((codes for start, codes in NOT_A_FAILURE.items() if example.text.startswith(start)), (0,))
    assert done.returncode in allowed, f"{example}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() or done.stderr.strip() or "--json" in example.text, f"{example} said nothing"


def run_for_a_while(reader: Reader, example: Example) -> None:
    """A service in the foreground: it starts, and SIGTERM ends it clean."""
    environ = reader.environ | {"OCTAVO_SCHEDULER_LISTEN": "127.0.0.1:0"}
    process = subprocess.Popen(
        reader.words(example.text), env=environ, cwd=reader.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    deadline = time.monotonic() + PATIENCE_S
    for line in process.stdout:
        if "state" in line or time.monotonic() > deadline:
            break
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0, rest[-1500:]


@pytest.mark.parametrize("example", [item for item in STARTS if item.page != README or item != STARTS[0]], ids=str)
def test_another_way_to_start_works_too(reader: Reader, example: Example, tmp_path: Path) -> None:
    other = Reader(tmp_path)
    for name in ("octavo.yaml", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    detached = Example(example.page, example.text + ("" if "--detach" in example.text else " --detach"))
    if detached.text in {item.text for item in STARTS if item.page == README}:
        return  # the fixture has run these very words
    try:
        done = other.run(detached)
        assert done.returncode == 0, done.stderr
    finally:
        stopped = other.run(Example(example.page, "octavo down"))
        assert stopped.returncode == 0


def test_the_pages_have_something_to_run_and_every_exception_a_use() -> None:
    assert len(runnable()) > 12
    assert {example.language for example in runnable()} == {"", "python"}
    said = "\n".join(example.text for example in ALL)
    unused = [start for start in ("make install", "make test", "make demo") if start not in said]
    assert unused == []


def test_at_the_end_the_cluster_stops_clean(reader: Reader) -> None:
    assert STOPS, "README says how to stop"
    done = reader.run(STOPS[0])
    assert done.returncode == 0 and "stopped" in done.stdout
    assert not (reader.run_dir / "state.json").exists()
