"""The octavo command as a process: whatever its output or arguments are, it ends with a code and at most one line, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from octavo.errors import InvalidRequest
from octavo_cli import main
from octavo_cli.exits import INTERRUPTED
from octavo_cli.locate import http_url
from octavo_cli.main import app
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join(
    str(ROOT / name) for name in ("protos", "gateway", "scheduler", "gpuworker", "kvstore", "cli")
)


def run(words: Sequence[str], stdout: Any = subprocess.PIPE, **environment: str) -> tuple[int, str]:
    """Exit code and standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "octavo_cli", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCES, **environment},
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr.decode()


def test_an_output_that_takes_no_more_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        assert run(["--version"], full) == (1, "octavo: standard output: No space left on device\n")


def test_a_letter_that_the_output_has_not_is_replaced() -> None:
    help_text = ["top", "--help"]
    assert run(help_text, PYTHONIOENCODING="ascii") == (0, "")
    code = "import octavo_cli.main as m\n@m.app.command()\ndef odd() -> None:\n    print('\\u2588')\nm.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "odd"],
        env={**os.environ, "PYTHONPATH": SOURCES, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"?\n", b"")


def test_a_closed_output_costs_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        f'exec "{sys.executable}" -m octavo_cli --version >&-',
        shell=True,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCES},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_before_a_command_began(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "_run", interrupted)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == INTERRUPTED


@pytest.mark.parametrize("words", [["trace"], ["trace", "--slowest", "3"], ["trace", "--follow"], ["diagnose"]])
@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_run_folder_that_is_not_there_is_named(words: list[str], name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = CliRunner().invoke(app, [*words, "--run-dir", str(tmp_path / name)])
    assert result.exception is not None and result.exception.exit_code == 4  # type: ignore[attr-defined]
    assert f"no run folder {tmp_path / name}; `octavo up` makes one" in str(result.exception)


@pytest.mark.parametrize(
    "url",
    [
        "notaurl",
        "grpc://127.0.0.1:1",
        "127.0.0.1:8000",
        "http://",
        "http:///x",
        "http://[",
        "http://h:99999",
        "http://h:port",
        "http://a b",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--url: .* is no HTTP address; write http://host:port"):
        http_url(url, "")


@pytest.mark.parametrize("content", ["{}", "[1", "\ud800"])
def test_a_file_without_figures_is_an_unusable_argument(content: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content.encode(errors="surrogatepass"))
    for words in (["diagnose", str(path)], ["diagnose", str(tmp_path)], ["bench", "compare", str(path), str(path)]):
        result = CliRunner().invoke(app, words)
        assert result.exception is not None and result.exception.exit_code == 2, words  # type: ignore[attr-defined]
        assert "give a file that `octavo bench` wrote" in str(result.exception)
