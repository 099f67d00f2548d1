"""The memory of the process, of the system, and of the control groups around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from octavo.memory import ENDLESS, LEFT_BYTES, NO_LIMIT, Room, resident_bytes, tightest


def test_resident_bytes_are_this_process_and_0_where_nobody_says() -> None:
    assert 2**20 < resident_bytes() < 2**40
    assert resident_bytes(Path("/nowhere/statm")) == 0


def meminfo_of(folder: Path, free: int) -> Path:
    meminfo = folder / "meminfo"
    meminfo.write_text(f"MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    {free} kB\n")
    return meminfo


def test_the_room_is_the_smaller_of_system_and_group(tmp_path: Path) -> None:
    meminfo, own, groups = meminfo_of(tmp_path, 400), tmp_path / "cgroup", tmp_path / "groups"
    own.write_text("0::/\n")
    groups.mkdir()
    system = Room(400 * 1024, 1000 * 1024)
    assert tightest(meminfo, own, groups) == system and system.spare_bytes == 300 * 1024
    (groups / "memory.max").write_text("max\n")
    (groups / "memory.current").write_text("900\n")
    assert tightest(meminfo, own, groups) == system
    (groups / "memory.max").write_text("1200\n")
    assert tightest(meminfo, own, groups) == Room(300, 1200, str(groups))
    (groups / "memory.stat").write_text("anon 500\ninactive_file 120\nfile 300\n")  # read once and kept for nobody
    assert tightest(meminfo, own, groups) == Room(420, 1200, str(groups))
    (groups / "memory.max").write_text(f"{NO_LIMIT * 7}\n")  # what version 1 says for none
    assert tightest(meminfo, own, groups) == system


def test_of_a_large_memory_a_gibibyte_is_left_and_no_tenth() -> None:
    assert Room(3 * LEFT_BYTES, 1000 * LEFT_BYTES).spare_bytes == 2 * LEFT_BYTES
    assert Room(0, 100).spare_bytes == -10


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used"),
    [
        ("0::/system.slice/octavo.service", "", "memory.max", "memory.current"),
        ("4:cpu,memory:/system.slice/octavo.service", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_the_group_is_the_process_own_or_one_around_it(
    tmp_path: Path, line: str, folder: str, limit: str, used: str
) -> None:
    """Outside of a container nobody's limit stands at the root."""
    meminfo, own, root = meminfo_of(tmp_path, 900), tmp_path / "cgroup", tmp_path / "groups" / folder
    own.write_text(f"9:name=systemd:/elsewhere\n{line}\n")
    inner = root / "system.slice" / "octavo.service"
    inner.mkdir(parents=True)
    for group, most in ((inner.parent, 1000), (inner, 500)):
        (group / limit).write_text(f"{most}\n")
        (group / used).write_text("300\n")
    assert tightest(meminfo, own, tmp_path / "groups") == Room(200, 500, str(inner))
    (inner / limit).unlink()
    assert tightest(meminfo, own, tmp_path / "groups") == Room(700, 1000, str(inner.parent))


def test_the_room_is_endless_where_nobody_says(tmp_path: Path) -> None:
    assert tightest(tmp_path / "none", tmp_path / "none", tmp_path / "none") == ENDLESS
    assert 0 < tightest().free_bytes < tightest().total_bytes
