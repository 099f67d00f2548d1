"""Slots in files: what lies in the folder already, and file systems that take nothing back."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from octavo_kvstore.tiers import slab_space
from octavo_kvstore.tiers.slab_space import PAGE_BYTES, SlabSpace, Slot

CAPACITY = 64 * PAGE_BYTES


def opened(folder: Path, used: list[Slot], capacity_bytes: int = CAPACITY) -> SlabSpace:
    space = SlabSpace(folder, capacity_bytes)
    space.open(used)
    return space


class NoHoles:
    """A C library on a file system without holes."""

    def __init__(self) -> None:
        self.asked = 0

    def fallocate(self, *_: object) -> int:
        self.asked += 1
        ctypes.set_errno(95)
        return -1


def test_a_foreign_file_in_the_folder_stops_nobody(tmp_path: Path) -> None:
    for name in ("slab-4 (copy).bin", "slab-.bin", "slab-x.bin", "slab-8.bin"):
        (tmp_path / name).write_bytes(b"x" * PAGE_BYTES)
    space = opened(tmp_path, [Slot(4, 0)])
    assert [path.name for path in tmp_path.glob("*.bin")] == ["slab-4.bin"]
    space.close()


def test_slots_between_used_ones_become_holes(tmp_path: Path) -> None:
    space = opened(tmp_path, [Slot(4, 0), Slot(4, 3)])
    assert space.allocated_bytes == 8 * PAGE_BYTES
    assert space.take(4).number in (1, 2)
    assert space.allocated_bytes == 12 * PAGE_BYTES
    space.close()


def test_without_holes_every_slot_is_used_again_and_the_capacity_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = NoHoles()
    monkeypatch.setattr(slab_space, "_libc", library)
    space = opened(tmp_path, [Slot(4, 0), Slot(4, 3)])
    assert library.asked == 2
    assert space.allocated_bytes == 16 * PAGE_BYTES
    assert sorted(space.take(4).number for _ in range(2)) == [1, 2]
    taken = [space.take(4) for _ in range(12)]
    with pytest.raises(OSError, match="every slot is taken"):
        space.take(4)
    for slot in taken:
        space.give_back(slot)
    with pytest.raises(OSError, match="every slot is taken"):
        space.take(5)  # another size cannot have the room
    assert {space.take(4) for _ in taken} == set(taken), "no slot is lost"
    space.close()


def test_a_smaller_capacity_takes_back_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = [Slot(4, number) for number in range(8)]
    space = opened(tmp_path, used, capacity_bytes=16 * PAGE_BYTES)
    space.give_back(used[7])
    assert space.allocated_bytes == 28 * PAGE_BYTES
    monkeypatch.setattr(slab_space, "_libc", NoHoles())
    space.give_back(used[6])
    assert space.allocated_bytes == 28 * PAGE_BYTES
    assert space.take(4) == used[6]
    space.close()
