"""What the pages say exists: every command and flag, make target, file, setting, endpoint, link and name in an example."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import octavo
import pytest
import typer
from octavo.rpc.settings import manifest_keys
from octavo_cli.main import app

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "protos",
    "gateway",
    "scheduler",
    "gpuworker",
    "kvstore",
    "cli",
    "docs",
    "scripts",
    "tests",
    "bench",
    ".ci",
    "observability",
)
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", *(f"{folder}/README.md" for folder in FOLDERS))
    for path in ROOT.glob(pattern)
)
MADE_AT_RUN_TIME = re.compile(
    r"(\.octavo/run|state\.json|up\.lock|logs/.*|[\w-]+\.log|\.log\.old|traces-.*\.jsonl)$|/dev/shm"
    r"|^\w+/[\w-]+/sm_\d+$|^(prefill|decode|run|peer|over|step|services|cpu|step_cpu|message_cpu)/"
)
"""What a cluster writes or a compiler makes, and names of figures; it is not in the repository."""
NOT_OURS = {"tokenizer.json", "octavo.yaml"}
"""Names of files that a user or a model brings."""

SPAN = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
FLAG = re.compile(r"--[A-Za-z][\w.-]*")
PATH_LIKE = re.compile(r"[\w.{},-]*(/[\w.{},*-]+)+/?|[\w-]+\.(py|proto|md|toml|txt|yaml|yml|json)|\.importlinter")
KEYS = {key for key, _variable, _default in manifest_keys()}
SECTIONS = {key.split(".")[0] for key in KEYS}
VARIABLES = {variable for _key, variable, _default in manifest_keys()} | {"OCTAVO_MANIFEST"}
COMMANDS: typer.core.TyperGroup = typer.main.get_command(app)  # type: ignore[assignment]


def spans(page: Path) -> list[str]:
    """Code spans outside of fenced blocks, as they are read (a table escapes its bars)."""
    return [span.replace("\\|", "|") for span in SPAN.findall(FENCE.sub("", page.read_text(encoding="utf-8")))]


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words of every command, from spans and from blocks without a language; optional brackets are taken off."""
    lines = spans(page)
    for body in blocks(page, ""):
        lines += body.replace("\\\n", " ").splitlines()
    for line in lines:
        line = re.sub(r"\[([^\]]*)\]", r" \1 ", line)
        line = re.sub(r"(?<=\S)\|(?=--)", " ", line)
        if not re.match(r"(\.venv/bin/)?octavo |make |docker compose |pytest |(\S*/)?python3? ", line):
            continue
        words = shlex.split(line, comments=True)
        yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


def unknown_in_octavo(words: list[str]) -> list[str]:
    """What of `octavo ...` the command line does not know."""
    found = []
    group, rest = COMMANDS, words
    while rest and isinstance(group, typer.core.TyperGroup) and not rest[0].startswith("-"):
        if rest[0] not in group.commands:
            return [f"command {rest[0]!r}"]
        group, rest = group.commands[rest[0]], rest[1:]  # type: ignore[assignment]
    options = {name for parameter in group.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    settings = bool(group.context_settings.get("ignore_unknown_options"))
    for word in rest:
        for flag in FLAG.findall(word) if word.startswith("-") else ():
            if flag not in options and not (settings and flag.removeprefix("--") in KEYS):
                found.append(f"flag {flag} of {' '.join(words)!r}")
    if group is COMMANDS.commands["serve"]:
        services = {"gateway", "scheduler", "gpuworker", "kvstore"}
        found += [f"service {name!r}" for name in rest[0].split("|") if name not in services]
    return found


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def unknown_in(words: list[str]) -> list[str]:
    tool, rest = words[0], words[1:]
    if tool == "octavo":
        return unknown_in_octavo(rest)
    if tool == "make":
        return [f"make {word}" for word in rest if "=" not in word and word not in make_targets()]
    if tool.endswith(("python", "python3")) and rest[0] == "-m":
        return [] if "<" in rest[1] or importlib.util.find_spec(rest[1]) else [f"module {rest[1]}"]
    if tool.endswith(("python", "python3")):  # a script and its flags
        script = ROOT / rest[0]
        text = script.read_text(encoding="utf-8") if script.is_file() else ""
        return [
            word
            for word in rest
            if (word.startswith("-") and f'"{word}"' not in text) or (word == rest[0] and not text)
        ]
    if tool == "docker":
        services = re.findall(r"^  ([a-z-]+):$", (ROOT / "docker-compose.yml").read_text(), re.M)
        scaled = [word.split("=")[0] for word in rest if "=" in word]
        return [f"compose service {name}" for name in scaled if name not in services]
    if tool == "pytest":
        marks = re.findall(r'^    "(\w+):', (ROOT / "pyproject.toml").read_text(), re.M)
        return [f"marker {word}" for mark, word in itertools.pairwise(rest) if mark == "-m" and word not in marks]
    return [f"tool {tool}"]


def repository_files() -> set[str]:
    """Every file and folder of the repository, relative to its root."""
    found = {path.name for path in ROOT.iterdir() if path.is_file()} | set(FOLDERS)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if "__pycache__" not in path.parts:
                found.add(path.relative_to(ROOT).as_posix())
    return found


FILES = repository_files()


def exists(name: str, page: Path) -> bool:
    """A path from the root, from the page's folder, or the end of one; `*` and {a,b} stand for several."""
    name = name.rstrip("/")
    if match := re.search(r"\{([^}]*)\}", name):
        return all(exists(name.replace(match.group(), item), page) for item in match.group(1).split(","))
    pattern = re.compile(r"(.*/)?" + re.escape(name).replace(r"\*", "[^/]*"))
    return (page.parent / name).exists() or any(pattern.fullmatch(file) for file in FILES)


def routes() -> set[str]:
    text = (ROOT / "gateway/octavo_gateway/http/app.py").read_text(encoding="utf-8")
    return set(re.findall(r'^        "(/[^"{]*)": ', text, re.M))


def is_function(module: str, name: str) -> bool:
    """Whether `module.name` is a function or method of a module of a service."""
    texts = [(ROOT / file).read_text() for file in FILES if re.fullmatch(rf"\w+/octavo_\w+/{module}\.py", file)]
    return any(re.search(rf"^ *(async )?def {name}\b", text, re.M) for text in texts)


def repl_words() -> set[str]:
    text = (ROOT / "cli/octavo_cli/repl.py").read_text(encoding="utf-8")
    return set(re.findall(r'"(/\w+)"', text)) | set(re.findall(r"^(/\w+)", text, re.M)) | {"/set"}


pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


def test_the_pages_are_found() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "docs/operations.md", "cli/README.md", "kvstore/README.md"} <= names
    assert sum(1 for page in PAGES for _ in command_lines(page)) > 20


@pages
def test_every_command_and_flag_exists(page: Path) -> None:
    assert [said for words in command_lines(page) for said in unknown_in(words)] == []


@pages
def test_every_file_and_folder_exists(page: Path) -> None:
    absent = []
    for span in spans(page):
        name = re.sub(r":\w+$", "", span)  # file.py:function
        if span.startswith("/") or " " in name or not PATH_LIKE.fullmatch(name):
            continue
        if not (MADE_AT_RUN_TIME.search(name) or name in NOT_OURS or exists(name, page)):
            absent.append(span)
    assert absent == []


@pages
def test_every_function_named_beside_a_file_exists(page: Path) -> None:
    for span in spans(page):
        if match := re.fullmatch(r"([\w/]+\.py):(\w+)", span):
            texts = [(ROOT / file).read_text() for file in FILES if file.endswith(match.group(1))]
            assert any(re.search(rf"\b(def|class) {match.group(2)}\b", text) for text in texts), span


@pages
def test_every_module_of_a_table_exists(page: Path) -> None:
    """Tables with a column `file` may name modules without their suffix."""
    absent, within = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        first = line.split("|")[1].strip() if line.startswith("|") else ""
        within = line.startswith("|") and (within or first == "file")
        if within:
            absent += [name for name in SPAN.findall(first) if not exists(name.removesuffix(".py") + ".py", page)]
    assert absent == []


@pages
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pages
def test_every_setting_and_variable_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    unknown = [
        span
        for span in SPAN.findall(text)
        if (match := re.match(r"(?:--)?([a-z_]+)\.([a-z_0-9]+)(?=$|[:= ])", span))
        and match.group(1) in SECTIONS
        and match.group(2) not in ("proto", "py", "md")
        and f"{match.group(1)}.{match.group(2)}" not in KEYS
        and not is_function(match.group(1), match.group(2))
    ]
    unknown += [name for name in re.findall(r"\bOCTAVO_[A-Z0-9_]+", text) if name not in VARIABLES]
    assert [name for name in unknown if name != "OCTAVO_SECTION_FIELD"] == []


@pages
def test_every_endpoint_and_chat_word_exists(page: Path) -> None:
    named = {span for span in spans(page) if re.fullmatch(r"/[a-z0-9_/]+", span)} - {"/dev/shm"}
    assert named - routes() - repl_words() == set()


@pages
def test_examples_are_python_that_our_names_fit(page: Path) -> None:
    for body in blocks(page, "python"):
        tree = ast.parse(body)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "octavo":
                assert hasattr(octavo, node.attr), node.attr
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "client":
                known = "octavo" not in body or hasattr(octavo.AsyncClient, node.attr)
                assert known and (hasattr(octavo.Client, node.attr) or "octavo" not in body), node.attr


def test_endpoints_are_all_listed() -> None:
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert [route for route in routes() if f"`{route.rstrip('/') or '/'}`" not in text] == []


def test_generated_parts_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/docs"), "--check"],
        env={"PYTHONPATH": str(ROOT / "protos"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "octavo upp",
        "octavo up --detatch",
        "octavo up --engine.thread 2",
        "octavo chat hi --engine.threads 2",
        "octavo serve gatway",
        "make tests",
        "python -m octavo.rpc.healthchek",
        "docker compose up --scale worker=3",
    ],
)
def test_a_wrong_command_would_be_found(line: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Run `{line}` or\n\n```\n{line}  # and more\n```\n")
    assert [len(unknown_in(words)) for words in command_lines(page)] == [1, 1]


def test_a_wrong_file_would_be_found(tmp_path: Path) -> None:
    assert not exists("no_such_module.py", tmp_path / "page.md")
    assert exists("octavo_gateway/requests.py", tmp_path / "page.md") and exists(
        "tiers/{arena,nvme}.py", tmp_path / "p.md"
    )
