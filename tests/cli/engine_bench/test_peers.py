"""Peers: a command of the user's is measured in turn with ours, llama.cpp is told absent once, and bad names are refused early."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path

import pytest
from octavo.errors import OctavoError
from octavo.manifest import Manifest
from octavo.rpc.settings import Settings
from octavo_cli.bench.work import BadPlan
from octavo_cli.engine_bench import engine, peers
from octavo_cli.engine_bench.child import Child
from octavo_cli.engine_bench.engine import EnginePlan, measure_engine
from octavo_cli.engine_bench.peers import Peer, llamacpp_has, parse_peers, start_peers
from octavo_cli.main import app
from typer.testing import CliRunner

FAKE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    open(sys.argv[1], "a").write("peer " + asked["row"] + "\\n")
    known = asked["row"].startswith("decode/bf16")
    print(json.dumps({"tokens": 10, "steps": asked["steps"], "seconds": 2.0} if known else {"skip": "no such weights"}), flush=True)
"""
OURS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "check":
        print(json.dumps({"fault": "" if "/" in asked["row"] else "row typo: 'typo' is no kind"}), flush=True)
        continue
    open(sys.argv[1], "a").write("ours " + asked["row"] + "\\n")
    print(json.dumps({"tokens": 10, "steps": asked["steps"], "seconds": 1.0, "backend": "native"}), flush=True)
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a script in the bare engine's place; the file in which both sides note what they were asked."""
    path = tmp_path / "asked"
    child = classmethod(lambda cls, name, module, arguments: cls(name, [sys.executable, "-c", OURS, str(path)]))
    monkeypatch.setattr(Child, "of_module", child)
    return path


def test_a_peers_rows_stand_beside_ours_and_were_measured_in_turn(told: Path) -> None:
    rows = ("decode/bf16/b1", "decode/int4/b1")
    plan = EnginePlan(rows, 2, 5, False, {"fake": [sys.executable, "-c", FAKE, str(told)]}, ())
    figures, notes = measure_engine(Settings(Manifest(), {}), plan)
    assert figures.value("peer/fake/decode/bf16/b1") == 5 and figures.value("over/fake/decode/bf16/b1") == 2
    names = [item.name for item in figures.results]
    assert "decode/int4/b1" in names and "peer/fake/decode/int4/b1" not in names
    assert "peer fake has no decode/int4/b1: no such weights" in notes
    assert "python" in str(figures.config["peer/fake"])
    asked = told.read_text().splitlines()
    assert asked[:4] == ["ours decode/bf16/b1", "peer decode/bf16/b1", "ours decode/int4/b1", "peer decode/int4/b1"]
    assert asked.count("peer decode/bf16/b1") == 3 and asked.count("peer decode/int4/b1") == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"tokens": 0, "steps": 1, "seconds": 1}', "tokens is 0; expected a number above 0"),
        ('{"tokens": 1, "steps": 1, "seconds": NaN}', "seconds is nan"),
        ('{"tokens": 1, "steps": 1}', "seconds is None"),
        ('{"error": "no memory"}', "peer fake: no memory"),
        ("loading the model", "'loading the model', which is no JSON object"),
        ("[1]", "which is no JSON object"),
    ],
)
def test_a_peer_that_answers_nonsense_is_told_by_name(answer: str, said: str) -> None:
    script = f"import sys; sys.stdin.readline(); print({answer!r}, flush=True)"
    with Child("peer fake", [sys.executable, "-c", script]) as child, pytest.raises(OctavoError, match=said):
        Peer("fake", child).measure("decode/bf16/b1", 4)


@pytest.mark.parametrize("text", ["vllm", "=x", "V=x", "vllm=", "llamacpp=x", "vllm='x"])
def test_a_peer_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(BadPlan, match="--peer"):
        parse_peers([text])
    with pytest.raises(BadPlan, match="is taken"):
        parse_peers(["vllm=x", "vllm=y"])


def test_a_command_that_does_not_exist_is_told() -> None:
    with pytest.raises(OctavoError, match="peer vllm cannot be started"), contextlib.ExitStack() as stack:
        start_peers(Settings(Manifest(), {}), False, {"vllm": ["/no/such/python"]}, stack, {})


def test_a_rows_name_is_refused_before_anything_is_measured(told: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(FAKE)} {told}"
    arguments = ["bench", "engine", "--rows", "decode/bf16/b1,typo", "--services", "none", "--peer", f"fake={command}"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, BadPlan) and result.exception.exit_code == 2
    assert "--rows: row typo: 'typo' is no kind" in str(result.exception)
    assert not told.exists()


def test_the_engine_itself_says_what_is_wrong_with_a_name() -> None:
    with Child.of_module("the bare engine", "octavo_gpuworker.bench", []) as child:
        assert child.ask(do="check", row="decode/bf16/b1")["fault"] == ""
        with pytest.raises(BadPlan, match="'typo' is no kind; prefill, decode and run are"):
            engine._check_names(child, ["decode/bf16/b1", "typo"])


def test_an_absent_llamacpp_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    facts: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        assert start_peers(Settings(Manifest(), {}), True, {}, stack, facts) == []
    assert facts["peer/llamacpp"].startswith("absent: no llama_cpp")
    assert llamacpp_has("decode/int4/b1") and not llamacpp_has("decode/bf16/b16/sampled")
    assert not llamacpp_has("prefill/int4/512") and not llamacpp_has("run/bf16/b16")
