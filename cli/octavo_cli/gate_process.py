"""The release gate as a process beside the cluster: `octavo gate`, started by the supervisor when the gateway waits for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

LOG = "release-gate.log"
WAITING = "release gate: its checks have not passed yet"
"""Why a gateway is not serving while it waits for the verdict."""


async def run_gate_process(flags: Sequence[str], run_dir: Path) -> tuple[int, str]:
    """Runs `octavo gate` with these flags on a run folder; (exit code, its last line). A cancel ends it."""
    path = run_dir / "logs" / LOG
    words = ["gate", *flags, "--run-dir", str(run_dir)]
    with path.open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "octavo_cli", *words, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        code = await child.wait()
    finally:
        if child.returncode is None:
            child.terminate()
            await child.wait()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return code, next((line for line in reversed(lines) if line.strip()), "it said nothing")
