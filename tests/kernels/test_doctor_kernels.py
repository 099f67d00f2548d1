"""`octavo doctor --kernels`: the table with reasons, and the rows of an ahead-of-time compile."""

from __future__ import annotations

import os
import subprocess
import sys

from octavo.figures import read_figures


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "octavo_cli", "doctor", "--kernels", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)


def test_the_table_with_its_reasons() -> None:
    done = doctor()
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert {"paged_attention", "store_kv", "linear", "rms_norm", "gather_blocks"} <= lines.keys()
    assert "native" in lines.pop("step"), "a whole step on the native kernels, or the reason why not"
    assert all("triton" in line for line in lines.values()), "chosen, or the reason why not"


def test_compile_rows_as_json(tmp_path) -> None:
    path = tmp_path / "rows.json"
    done = doctor("--compile", "sm_90", "--json", str(path), "--only", "move_blocks/*", "--only", "soft_cap/bf16")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = read_figures(path)
    rows = {item.name for item in figures.results}
    wanted = ("registers", "spills", "shared_bytes", "occupancy", "mma")
    assert {f"soft_cap/bf16/sm_90/{figure}" for figure in wanted} < rows
    assert figures.value("move_blocks/gather/sm_90/spills") == 0
    assert figures.config["target"] == "sm_90"


def test_an_unknown_target_is_refused() -> None:
    done = doctor("--compile", "sm_11")
    assert done.returncode != 0
    assert "choose from" in done.stderr and "sm_90" in done.stderr
