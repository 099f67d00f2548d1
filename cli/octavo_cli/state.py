"""What a running cluster leaves in its run folder: state.json, read by every other subcommand."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from octavo_cli.exits import NoCluster

STATE_FILE = "state.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
START_TICKS = 19
"""Of the fields of /proc/PID/stat behind the command's name: field 22, starttime."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that is told from a later one with the same pid by its start, as `start_of` tells it."""

    pid: int
    start: str

    @staticmethod
    def of(pid: int) -> Process:
        """The process that has this pid now; an empty start when there is none."""
        return Process(pid, start_of(pid))

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        try:
            same = self.start != "" and start_of(self.pid) == self.start
            return same and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def signal(self, signum: int) -> None:
        """Sends a signal if this very process still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)


def start_of(pid: int) -> str:
    """When the process of this pid began, as a word that no later one shares; empty when there is none.

    Boot and clock ticks since then, not the time of day: a clock that is set must not make a running cluster look dead.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return f"{BOOT_ID.read_text(encoding='ascii').strip()}/{fields[START_TICKS].decode()}"
    except (OSError, IndexError):
        if BOOT_ID.exists():
            return ""
    try:
        return repr(psutil.Process(pid).create_time())  # systems without /proc keep the time itself
    except psutil.Error:
        return ""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """One service of the cluster as its supervisor sees it."""

    name: str
    kind: str
    address: str
    state: str = "starting"
    why: str = ""
    process: Process = Process(0, "")
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The whole of state.json."""

    supervisor: Process
    ready: bool = False
    stopping: bool = False
    urls: dict[str, str] = field(default_factory=dict)
    services: tuple[ServiceState, ...] = ()

    def with_service(self, service: ServiceState) -> ClusterState:
        """A copy in which `service` stands in the place of the one with its name."""
        return replace(self, services=tuple(service if item.name == service.name else item for item in self.services))

    def processes(self) -> Iterable[Process]:
        """Every process of the cluster that still runs, the supervisor first."""
        return [
            item for item in (self.supervisor, *(entry.process for entry in self.services)) if item.pid and item.alive()
        ]


def write_state(run_dir: Path, state: ClusterState) -> None:
    """Replaces state.json in one step, so that a reader never sees half of it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    draft = run_dir / f".{STATE_FILE}.{os.getpid()}"
    draft.write_text(json.dumps(asdict(state), indent=1) + "\n", encoding="utf-8")
    draft.replace(run_dir / STATE_FILE)


def read_state(run_dir: Path) -> ClusterState:
    """The state left in a run folder. Raises NoCluster when there is none that can be read."""
    try:
        content = json.loads((run_dir / STATE_FILE).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError("it is no object")
        services = tuple(
            ServiceState(**{**item, "process": _process(item["process"])}) for item in content.pop("services")
        )
        return ClusterState(supervisor=_process(content.pop("supervisor")), services=services, **content)
    except FileNotFoundError as error:
        raise NoCluster(f"no cluster in {run_dir}; start one with `octavo up --detach`") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NoCluster(f"{run_dir / STATE_FILE} cannot be read ({error}); remove it and start again") from error


def _process(content: Any) -> Process:
    found = Process(**content)
    if type(found.pid) is not int or not 0 <= found.pid < 2**31 or not isinstance(found.start, str):
        raise TypeError("a process needs a pid and a start")
    return found


def running_state(run_dir: Path) -> ClusterState:
    """The state of a cluster whose supervisor runs. Raises NoCluster."""
    state = read_state(run_dir)
    if not state.supervisor.alive():
        left = len(list(state.processes()))
        rest = f", but {left} of its services do; `octavo down` stops them" if left else "; start with `octavo up`"
        raise NoCluster(f"the cluster of {run_dir} no longer runs{rest}")
    return state


def remove_state(run_dir: Path) -> None:
    """Forgets the cluster of a run folder."""
    (run_dir / STATE_FILE).unlink(missing_ok=True)
