"""How much memory this process has of the system, and how much of it is left."""

from __future__ import annotations

import os
from pathlib import Path

STATM = Path("/proc/self/statm")
"""Pages of this process: size, resident, ... (Linux)."""
MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")
"""Of this process, as a container sees it (version 2)."""


def resident_bytes(statm: Path = STATM) -> int:
    """Memory of this process that is backed by pages now; 0 where the system does not say."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def free_share(meminfo: Path = MEMINFO, group: Path = GROUP) -> float:
    """Which part of the memory is left, 0 to 1: of the system's, or of the limit of the process's group where less is left of that.

    1 where neither says.
    """
    return min(_free_of_system(meminfo), _free_of_group(group))


def _free_of_system(meminfo: Path) -> float:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) / int(lines["MemTotal"].split()[0])
    except (OSError, KeyError, ValueError):
        return 1.0


def _free_of_group(group: Path) -> float:
    try:
        limit = int((group / "memory.max").read_text())  # the word max: there is none
        return 1 - int((group / "memory.current").read_text()) / limit
    except (OSError, ValueError, ZeroDivisionError):
        return 1.0
