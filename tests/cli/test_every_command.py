"""What holds for every command of the tree: help, JSON, documentation; and shell completion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from octavo_cli import exits
from octavo_cli.main import app
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
TREE: Any = typer.main.get_command(app)


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


ALL = list(commands(TREE))
every = pytest.mark.parametrize(("words", "command"), ALL, ids=[" ".join(words) for words, _ in ALL])


@every
def test_it_has_json_help_and_a_line_in_the_docs(words: tuple[str, ...], command: Any) -> None:
    options = {name for parameter in command.params for name in parameter.opts}
    assert "--json" in options
    assert command.help and command.help.strip().endswith((".", ")")), command.help
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "cli/README.md"]
    text = "\n".join(page.read_text() for page in pages)
    assert re.search(rf"octavo {' '.join(words)}\b", text) or f"`{words[-1]}" in text, "no page mentions it"


@every
def test_every_option_says_what_it_is_for(words: tuple[str, ...], command: Any) -> None:
    silent = [
        parameter.opts[0]
        for parameter in command.params
        if getattr(parameter, "help", "-") in (None, "") and not getattr(parameter, "hidden", False)
    ]
    assert silent == []


def groups(group: Any, words: str = "octavo") -> Iterator[tuple[str, Any]]:
    yield words, group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from groups(command, f"{words} {name}")


@pytest.mark.parametrize(("words", "group"), list(groups(TREE)), ids=[words for words, _ in groups(TREE)])
def test_a_list_of_commands_says_of_each_what_it_does_in_whole_words(words: str, group: Any) -> None:
    """On a terminal of 80 columns."""
    room = 80 - 2 - 6 - max(map(len, group.commands))
    cut = [name for name, command in group.commands.items() if command.get_short_help_str(room).endswith("...")]
    assert cut == [], words


@every
def test_its_usage_has_each_bracket_once(words: tuple[str, ...], command: Any) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0 and "[[" not in result.output and not re.search(r"--[a-z-]+ <list", result.output)


def test_the_exit_codes_are_one_table() -> None:
    codes = {exits.OK, exits.FAILED, exits.USAGE, exits.MISMATCH, exits.NO_CLUSTER, exits.INTERRUPTED}
    in_module = {int(code) for code in re.findall(r"^(\d+) ", exits.__doc__ or "", re.M)}
    in_readme = {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "cli/README.md").read_text(), re.M)}
    in_help = {int(code) for code in re.findall(r"(\d+) [a-z]", app.info.epilog or "")}
    assert codes == in_module == in_readme == in_help


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_flags(octavo: Any, shell: str) -> None:
    octavo.environ |= {
        "_OCTAVO_COMPLETE": f"complete_{shell}", "COMP_WORDS": "octavo t", "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "octavo t", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }  # fmt: skip
    done = octavo()
    assert "top" in done.stdout and "trace" in done.stdout and "status" not in done.stdout, done


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o default"), ("zsh", "#compdef octavo"), ("fish", "complete --command")]
)
def test_the_script_of_a_named_shell_is_printed_whatever_shell_calls(octavo: Any, shell: str, word: str) -> None:
    octavo.environ["_OCTAVO_COMPLETE"] = f"source_{shell}"
    assert word in octavo().stdout


def test_up_json_is_a_line_per_event_and_down_json_says_what_it_did(octavo: Any, eventually: Any) -> None:
    process = octavo.up("--json")
    eventually(lambda: (octavo.run_dir / "state.json").exists() and octavo.state()["ready"])
    down = octavo("down", "--json")
    assert json.loads(down.stdout) == {"stopped": True, "clean": True, "run_dir": str(octavo.run_dir)}
    lines = [json.loads(line) for line in process.communicate(timeout=30)[0].splitlines()]
    events = [line["event"] for line in lines]
    assert set(lines[events.index("ready")]["urls"]) >= {"grpc", "http"}
    assert events.index("service") < events.index("ready") < events.index("draining")
    again = octavo("down", "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["stopped"] is False


def test_demo_json_is_the_answer_and_its_spans(octavo: Any) -> None:
    modules = [flag for flag in octavo.up_flags if flag.startswith("--module")]
    done = octavo("demo", "--json", "--question", "one two three", *modules)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["completion"]["choices"][0]["text"].split() == ["one", "two", "three"] and said["spans"]
