"""One service as an operating system process: spawned, watched through its log and AdminService, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from octavo_cli.plan import ServicePlan
from octavo_cli.probe import Probe
from octavo_cli.service_log import Record, ServiceLog
from octavo_cli.state import Process


class ServiceProcess:
    """A running child. It leads a session of its own: a Ctrl-C on the terminal reaches the supervisor alone."""

    def __init__(self, plan: ServicePlan, log: ServiceLog, child: asyncio.subprocess.Process) -> None:
        self.plan = plan
        self.log = log
        self.identity = Process.of(child.pid)
        self.records: list[Record] = []
        self._child = child

    @staticmethod
    async def start(plan: ServicePlan, log_path: Path) -> ServiceProcess:
        """Spawns `python -m <module> <flags>` with its output appended to the log file. Raises OSError."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log = ServiceLog(log_path)
        log.mark_end()
        output = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                plan.module,
                *plan.flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,  # no session of its own: Linux would share the cores out by session, and no thread of one run before another's
            )
        finally:
            os.close(output)
        return ServiceProcess(plan, log, child)

    @property
    def code(self) -> int | None:
        """The exit code (negative: a signal); None while it runs."""
        return self._child.returncode

    def read_log(self) -> list[Record]:
        """New records of its log; the last 200 are kept for `reason_of_death`."""
        fresh = self.log.new_records()
        self.records = [*self.records, *fresh][-200:]
        return fresh

    async def wait(self) -> int:
        """Waits for its end; returns the exit code."""
        return await self._child.wait()

    def terminate(self) -> None:
        """Asks it to drain."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and whatever it started, at once."""
        self._signal(signal.SIGKILL, group=True)

    async def stop(self, timeout_s: float) -> bool:
        """Drains it, kills it when the time is over. Returns whether it ended by itself."""
        self.terminate()
        try:
            await asyncio.wait_for(self._child.wait(), timeout_s)
        except TimeoutError:
            self.kill()
            await self._child.wait()
            return False
        self.kill_group()
        return True

    def kill_group(self) -> None:
        """Ends what the process may have left behind in its process group."""
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def _signal(self, signum: signal.Signals, group: bool = False) -> None:
        if self._child.returncode is not None:
            return
        try:
            os.killpg(self._child.pid, signum) if group else self._child.send_signal(signum)
        except ProcessLookupError:
            return


def open_probe(plan: ServicePlan) -> Probe:
    """A Probe of the planned address."""
    return Probe(plan.address, timeout_s=1.0)
