"""How much memory this process has of the system, and how much of it is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

STATM = Path("/proc/self/statm")
"""Pages of this process: size, resident, ... (Linux)."""
MEMINFO = Path("/proc/meminfo")
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
"""Where the system's control groups lie, as a container or the whole system sees them."""


@dataclass(frozen=True, slots=True)
class _GroupFiles:
    """What a version of control groups calls its figures; `cached` is the entry of memory.stat that can be had back at once."""

    limit: str
    used: str
    cached: str


_VERSION_1 = _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _GroupFiles("memory.max", "memory.current", "inactive_file")


def resident_bytes(statm: Path = STATM) -> int:
    """Memory of this process that is backed by pages now; 0 where the system does not say."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def free_share(meminfo: Path = MEMINFO, own: Path = OWN_GROUPS, groups: Path = GROUPS) -> float:
    """Which part of the memory is left, 0 to 1: of the system's, or of the limit of the process's group, or of one around that, where
    less is left of it. 1 where none says.
    """
    return min([_free_of_system(meminfo), *(_free_of_group(folder, files) for folder, files in _groups(own, groups))])


def _groups(own: Path, groups: Path) -> Iterator[tuple[Path, _GroupFiles]]:
    """The folders of the process's memory group and of those around it; some may not be there, as in a container."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, files = groups, _VERSION_2
        elif "memory" in controllers.split(","):
            root, files = groups / "memory", _VERSION_1
        else:
            continue
        inner = PurePath(path.lstrip("/"))
        yield from ((root / place, files) for place in (inner, *inner.parents))


def _free_of_system(meminfo: Path) -> float:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) / int(lines["MemTotal"].split()[0])
    except (OSError, KeyError, ValueError):
        return 1.0


def _free_of_group(folder: Path, files: _GroupFiles) -> float:
    try:
        limit = int((folder / files.limit).read_text())  # the word max: there is none
        used = int((folder / files.used).read_text())
        return 1 - max(0, used - _cached(folder, files)) / limit
    except (OSError, ValueError, ZeroDivisionError):
        return 1.0


def _cached(folder: Path, files: _GroupFiles) -> int:
    """Bytes of files that were read and are kept for nobody, as those that the weights came from."""
    try:
        figures = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
        return int(figures[files.cached])
    except (OSError, KeyError, ValueError):
        return 0
