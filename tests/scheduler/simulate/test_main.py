"""The process: JSON lines in, one JSON object out, byte-equal for equal input; errors on one line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest
from octavo.figures import from_json
from octavo.manifest import ManifestError
from octavo_scheduler.event_log import EventLog
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.__main__ import run
from octavo_scheduler.simulate.hardware import BadPlan

PLAN: dict[str, Any] = {"hardware": "h200-8b", "workers": 2}
ROWS = [
    {
        "at_us": 1000 * i,
        "pieces": [["system", 64], [f"q{i}", 30 + i]],
        "output_tokens": 5 + i % 4,
        "tenant": "ab"[i % 2],
    }
    for i in range(40)
]


def lines(plan: Any = PLAN, rows: list[Any] = ROWS) -> list[str]:
    return [json.dumps(item) for item in (plan, *rows)]


def test_equal_input_gives_equal_bytes_in_two_processes() -> None:
    command = [sys.executable, "-m", "octavo_scheduler.simulate", "--max-num-seqs", "3"]
    told = "\n".join(lines())
    first, second = (
        subprocess.run(command, input=told, capture_output=True, text=True, timeout=60, check=True).stdout
        for _ in range(2)
    )
    assert first == second
    answer = json.loads(first)
    assert answer["policy"]["max_num_seqs"] == 3 and answer["cells"] == [2]
    assert from_json(answer["figures"]).value("finished") == 40
    assert answer["hardware"]["name"] == "h200-8b" and len(answer["points"]) > 5


def test_a_bad_plan_ends_with_one_line() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "octavo_scheduler.simulate"],
        input='{"workers": 0}\n{}',
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == "requests[0].at_us: is missing\n"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ([], "task: the first line must be an object"),
        (["{"], "task: is not JSON"),
        (lines(rows=[]), "requests: there are none"),
        ([*lines(), "{"], "requests[40]: is not JSON"),
        (lines({**PLAN, "wrokers": 3}), "wrokers: is no field of the plan"),
        (lines({**PLAN, "workers": "3"}), "workers: '3' must be a whole number"),
        (lines({**PLAN, "cost_per_hour": -1}), "cost_per_hour: -1 must be a number of at least 0"),
        (lines({"workers": 1}), "hardware: '' is unknown"),
    ],
)
def test_what_is_wrong_is_named(given: list[str], what: str) -> None:
    with pytest.raises(BadPlan) as caught:
        run(given, [])
    assert str(caught.value).startswith(what)


def test_settings_are_the_schedulers() -> None:
    with pytest.raises(ManifestError, match="max_num_seqs"):
        run(lines(), ["--scheduler.max_num_seqs", "many"])


def test_a_log_is_replayed_and_calibrated_on() -> None:
    out = io.StringIO()
    EventLog(out, Policy(), 0)
    log = out.getvalue().splitlines()
    assert run([json.dumps({"replay": True}), *log], []) == {"events": 0, "orders": 0, "difference": "", "cut": False}
    with pytest.raises(BadPlan, match="the log has 0 reports with steps"):
        run([json.dumps({"calibrate": "x"}), *log], [])
