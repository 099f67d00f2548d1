"""The arena's map: what a process lets go of is no longer its memory, and no byte of it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from octavo.arena import ArenaMap, arena_bytes

SLOTS, SLOT_BYTES = 4, 64 * 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "arena"
    path.write_bytes(bytes(arena_bytes(SLOTS, SLOT_BYTES)))
    return path


def mapped_kb(path: Path) -> int:
    """Pages of the file that this process has in its tables."""
    kb, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            ours = words[-1] == str(path)
        elif ours and words[0] == "Rss:":
            kb += int(words[1])
    return kb


def test_a_slot_that_was_let_go_keeps_its_bytes_and_leaves_the_process(path: Path) -> None:
    ours, theirs = ArenaMap(path, SLOTS, SLOT_BYTES), ArenaMap(path, SLOTS, SLOT_BYTES)
    payload = bytes(range(256)) * (SLOT_BYTES // 256)
    for slot in range(SLOTS):
        ours.slot(slot)[:] = payload
    before = mapped_kb(path)
    for slot in (1, 2):
        ours.let_go(slot)
    assert before - mapped_kb(path) >= 2 * SLOT_BYTES // 1024
    assert all(bytes(theirs.slot(slot)) == bytes(ours.slot(slot)) == payload for slot in range(SLOTS))


def test_the_slots_used_last_stay_mapped(path: Path) -> None:
    ours = ArenaMap(path, SLOTS, SLOT_BYTES, kept_bytes=2 * SLOT_BYTES)
    for slot in range(SLOTS):
        ours.slot(slot)[:] = bytes(SLOT_BYTES)
    before = mapped_kb(path)
    for slot in (0, 1, 0):
        ours.let_go(slot)
    assert mapped_kb(path) == before
    ours.let_go(2)  # 1 is the one that was used longest ago
    assert before - mapped_kb(path) == SLOT_BYTES // 1024


def test_only_slots_of_the_arena_are_let_go(path: Path) -> None:
    with pytest.raises(IndexError):
        ArenaMap(path, SLOTS, SLOT_BYTES).let_go(SLOTS)
