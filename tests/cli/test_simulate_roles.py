"""`octavo simulate --roles`: what is compared, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from octavo_cli.bench.work import BadPlan
from octavo_cli.main import app
from octavo_cli.simulate.roles import by_length, setups_of
from typer.testing import CliRunner


def test_setups_have_one_size() -> None:
    setups = {setup.name: setup.roles for setup in setups_of("aggregated,hybrid,1P3D,2P2D", 1)}
    assert setups["aggregated"] == ("both",) * 4
    assert setups["hybrid"] == ("prefill", "both", "both", "both")
    assert setups["1P3D"] == ("prefill", "decode", "decode", "decode")
    assert setups["2P2D"] == ("prefill", "prefill", "decode", "decode")
    assert setups_of("hybrid", 3)[0].roles == ("prefill", "both", "both")


@pytest.mark.parametrize(
    ("text", "says"),
    [("1P3D,1P1D", "mixes"), ("prefill", "unknown"), ("0P2D", "at least one of each"), (",", "names nothing"), ("hybrid", "two workers")],
)  # fmt: skip
def test_what_cannot_be_compared(text: str, says: str) -> None:
    with pytest.raises(BadPlan, match=says):
        setups_of(text, 1)


def test_short_and_long_conversations_stay_whole() -> None:
    rows = [
        {"pieces": [["a", 10]]},
        {"pieces": [["b", 900]]},
        {"pieces": [["a2", 500]], "after": 0},
        {"pieces": [["c", 20]]},
        {"pieces": [["b2", 5]], "after": 1},
    ]
    classes = by_length(rows)
    assert [row["pieces"][0][0] for row in classes["short"]] == ["a", "a2", "c"]
    assert classes["short"][1]["after"] == 0
    assert [(row["pieces"][0][0], row.get("after")) for row in classes["long"]] == [("b", None), ("b2", 0)]
    assert list(by_length(rows[:1])) == ["all"]


def test_the_command_prints_goodput_idle_time_and_what_is_full_first(tmp_path: Path) -> None:
    path = tmp_path / "roles.json"
    words = ["simulate", "--roles", "aggregated,1P1D", "--requests", "30", "--rate", "4", "--prompt-tokens", "400",
             "--max-tokens", "20", "--length-spread", "1", "--json", str(path)]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    names = {item["name"] for item in json.loads(path.read_text())["results"]}
    for setup in ("aggregated", "1p1d"):
        for length in ("short", "long"):
            assert f"goodput/{setup}/{length}" in names
    assert {"idle_prefill/1p1d/long", "idle_decode/1p1d/long", "idle_both/aggregated/long"} <= names
    *_figures, head, short, _hybrid, long, last = done.output.rstrip().splitlines()
    assert "idle; first to be full" in head and "prefill" in last  # what is compared stands last, below the figures
    assert short.startswith("octavo: aggregated short") and long.startswith("octavo: aggregated long")


def test_roles_take_one_rate() -> None:
    done = CliRunner().invoke(app, ["simulate", "--roles", "1P1D", "--requests", "5", "--rate", "4,5"])
    assert isinstance(done.exception, BadPlan) and "one --rate" in str(done.exception)
