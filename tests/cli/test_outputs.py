"""A file that cannot be written is refused before the work that would fill it, in every command that writes one."""

from __future__ import annotations

from pathlib import Path

import pytest
from octavo.errors import OctavoError
from octavo_cli.main import app
from octavo_cli.outputs import BadOutput, check_output, check_outputs, write_output
from typer.testing import CliRunner


def test_what_can_be_written_passes_and_nothing_is_made(tmp_path: Path) -> None:
    for name in ("", "-", str(tmp_path / "a.json")):
        check_output("json", name)
    assert not list(tmp_path.iterdir())


def test_a_folder_and_a_file_in_the_way_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadOutput, match=r"--html: .* cannot be written: it is a folder; name a file in"):
        check_output("html", str(tmp_path))
    with pytest.raises(BadOutput, match=r"--json: .*file/a\.json cannot be written: there is no folder .*file;"):
        check_output("json", str(tmp_path / "file" / "a.json"))
    with pytest.raises(BadOutput, match="there is no folder"):
        check_output("json", str(tmp_path / "missing" / "a.json"))
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "serve", "--url", "http://127.0.0.1:9/v1", "--json", "DIR"],
        ["bench", "serve", "--url", "http://127.0.0.1:9/v1", "--html", "DIR"],
        ["bench", "matrix", "--url", "http://127.0.0.1:9/v1", "--json", "DIR"],
        ["bench", "matrix", "--url", "http://127.0.0.1:9/v1", "--html", "DIR"],
        ["bench", "compare", __file__, __file__, "--json", "DIR"],
        ["bench", "trace", "DIR"],
        ["simulate", "--rate", "5", "--json", "DIR"],
        ["simulate", "--rate", "5", "--plot", "DIR"],
        ["check", "--url", "grpc://127.0.0.1:9", "--record", "DIR"],
        ["trace", "--export", "DIR"],
        ["trace", "--html", "DIR"],
        ["trace", "--export", "a.json", "--html", "a.json"],
        ["bench", "serve", "--url", "http://127.0.0.1:9/v1", "--json", "-", "--html", "-"],
        ["bench", "trace", "-"],
        ["check", "--url", "grpc://127.0.0.1:9", "--record", "-"],
        ["simulate", "--rate", "5", "--plot", "-"],
    ],
)
def test_every_command_refuses_it_first(words: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path) if word == "DIR" else word for word in words])
    assert isinstance(result.exception, BadOutput), result.output  # not what the command would have met later
    assert result.exception.exit_code == 2


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    check_outputs(json="", html="")
    check_outputs(json="-", html=str(tmp_path / "a"))
    for name in ("-", str(tmp_path / "a")):
        with pytest.raises(BadOutput, match=r"--json: --html names .* too; give each a file of its own"):
            check_outputs(json=name, html=name)


def test_a_dash_is_standard_output_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_output("-", "text")
    assert capsys.readouterr() == ("text", "") and not list(tmp_path.iterdir())
    write_output("a", "text")
    assert capsys.readouterr() == ("", "wrote a\n") and (tmp_path / "a").read_text() == "text"
    with pytest.raises(OctavoError, match="cannot write missing/a: No such file"):
        write_output("missing/a", "text")
