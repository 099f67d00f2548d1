"""The release gate as a process beside the cluster: `octavo gate`, started by the supervisor when the gateway waits for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from octavo_cli.service_log import ServiceLog

LOG = "release-gate.log"
WAITING = "release gate: its checks have not passed yet"
"""Why a gateway is not serving while it waits for the verdict."""


POLL_S = 0.2


async def run_gate_process(flags: Sequence[str], run_dir: Path, on_line: Callable[[str], None]) -> tuple[int, str]:
    """Runs `octavo gate` with these flags on a run folder; (exit code, its last line). A cancel ends it.

    `on_line` hears every line that it writes, as it writes it: one per check.
    """
    path = run_dir / "logs" / LOG
    words = ["gate", *flags, "--run-dir", str(run_dir)]
    said = ServiceLog(path)
    said.mark_end()
    last = "it said nothing"
    with path.open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "octavo_cli", *words, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
    ending = asyncio.create_task(child.wait())
    try:
        ended = False
        while not ended:
            ended = bool((await asyncio.wait({ending}, timeout=POLL_S))[0])
            for record in said.new_records():
                last = record.message
                on_line(last)
        return ending.result(), last
    finally:
        if child.returncode is None:
            child.terminate()
        await ending
