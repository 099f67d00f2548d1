"""CPU time of processes, from the scheduler's own nanoseconds: a tick of 10 ms would be most of what a step costs."""

from __future__ import annotations

from pathlib import Path

from octavo_cli.state import ClusterState


def cpu_s(pid: int) -> float:
    """Seconds on a CPU of all the process's threads that still live; 0 for a process that is gone."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(path.read_text(encoding="ascii").split()[0])
        except (OSError, IndexError):  # the thread has just ended
            continue
    return total / 1e9


def pss_bytes(pid: int) -> int:
    """The process's proportional share of memory; 0 where the system does not tell."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def services_cpu_s(state: ClusterState) -> dict[str, float]:
    """CPU seconds so far per service of a cluster."""
    return {service.name: cpu_s(service.process.pid) for service in state.services}
