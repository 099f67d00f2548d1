"""How much memory this process has of the system, and how much of it is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

STATM = Path("/proc/self/statm")
"""Pages of this process: size, resident, ... (Linux)."""
MEMINFO = Path("/proc/meminfo")
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
"""Where the system's control groups lie, as a container or the whole system sees them."""


NO_LIMIT: Final = 1 << 60
LEFT_SHARE, LEFT_BYTES = 0.1, 2**30
"""What is left for others: so much of the whole, or so many bytes where that is less."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of the system or of a control group: what can still be had of it, and all of it."""

    free_bytes: int
    total_bytes: int
    group: str = ""  # the control group's folder; empty: of the system

    @property
    def spare_bytes(self) -> int:
        """What may be taken without taking what is left for others; negative where that is gone."""
        return self.free_bytes - min(int(self.total_bytes * LEFT_SHARE), LEFT_BYTES)


ENDLESS: Final = Room(NO_LIMIT, NO_LIMIT)


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


def tightest(meminfo: Path = MEMINFO, own: Path = OWN_GROUPS, groups: Path = GROUPS) -> Room:
    """Of the system's memory, the limit of the process's group and those of the groups around it, the one with least left for more.

    ENDLESS where none says.
    """
    rooms = [_room_of_system(meminfo), *(_room_of_group(folder, files) for folder, files in _groups(own, groups))]
    return min((room for room in rooms if room is not None), key=lambda room: room.spare_bytes, default=ENDLESS)


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


def _room_of_system(meminfo: Path) -> Room | None:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return Room(int(lines["MemAvailable"].split()[0]) * 1024, int(lines["MemTotal"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        return None


def _room_of_group(folder: Path, files: _GroupFiles) -> Room | None:
    try:
        limit = int((folder / files.limit).read_text())  # the word max: there is none
        used = int((folder / files.used).read_text())
    except (OSError, ValueError):
        return None
    # what stands for none in version 1
    return Room(limit - max(0, used - _cached(folder, files)), limit, str(folder)) if limit < NO_LIMIT else None


def _cached(folder: Path, files: _GroupFiles) -> int:
    """Bytes of files that were read and are kept for nobody, as those that the weights came from."""
    try:
        figures = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
        return int(figures[files.cached])
    except (OSError, KeyError, ValueError):
        return 0
