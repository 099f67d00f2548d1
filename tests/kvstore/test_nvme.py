"""What only a tier on disk can suffer: restarts, damage at rest, a truncated file, a full disk."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from octavo.errors import OctavoError
from octavo_kvstore.testing import LAYOUT, is_right, key_of, make_block
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers import nvme, slab
from octavo_kvstore.tiers.folder import TierFolder
from octavo_kvstore.tiers.lmdb_values import LmdbTier, disk_bytes
from octavo_kvstore.tiers.probe import problem_in
from octavo_kvstore.tiers.slab import LOCK_FILE_BYTES, SlabTier, directory_bytes
from octavo_kvstore.tiers.slab_space import reserve

MAP_BYTES = 8 * 2**20
SIZE = 60_000


Backend = type[LmdbTier] | type[SlabTier]


@pytest.fixture(params=[LmdbTier, SlabTier], ids=["lmdb", "slab"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param  # type: ignore[no-any-return]


def filled(backend: Backend, folder: Path, count: int = 40, boot_id: str = "boot-1") -> LmdbTier | SlabTier:
    tier = backend(folder, MAP_BYTES, boot_id=boot_id)
    tier.put_many([make_block(number, SIZE, parent=number - 1 if number else None) for number in range(count)])
    return tier


def on_disk(folder: Path) -> int:
    """Bytes that the tier's files really take."""
    return sum(path.stat().st_blocks * 512 for path in folder.glob("*.*") if path.suffix in (".mdb", ".bin"))


def right_ones(tier: LmdbTier | SlabTier, count: int = 40) -> int:
    """How many blocks come back; fails when one comes back wrong."""
    found = [tier.get(key_of(number), LAYOUT) for number in range(count)]
    assert all(is_right(block) for block in found if block)
    return sum(block is not None for block in found)


def test_a_restart_is_warm_and_keeps_the_order_of_eviction(backend: Backend, tmp_path: Path) -> None:
    filled(backend, tmp_path).close()
    tier = backend(tmp_path, MAP_BYTES, boot_id="boot-1")
    assert right_ones(tier) == 40
    tier.close()
    tier = backend(tmp_path, MAP_BYTES, boot_id="boot-1")
    for number in range(1000, 1100):
        tier.put(make_block(number, SIZE))
    held = [tier.contains(key_of(number)) for number in range(40)]
    assert held == sorted(held, reverse=True)
    tier.close()


def test_death_of_the_process_keeps_every_commit(backend: Backend, tmp_path: Path) -> None:
    crashed_from(backend, tmp_path, boot_id="boot-1")
    tier = backend(tmp_path, MAP_BYTES, boot_id="boot-1")
    assert (tier.wipes, right_ones(tier)) == (0, 40)
    tier.close()


def crashed_from(backend: Backend, folder: Path, boot_id: str) -> None:
    """Leaves the files as a process does that dies without closing."""
    code = f"""
        import os, sys
        from pathlib import Path
        from octavo_kvstore.testing import make_block
        from {backend.__module__} import {backend.__name__}
        tier = {backend.__name__}(Path({str(folder)!r}), {MAP_BYTES}, boot_id={boot_id!r})
        blocks = [make_block(number, {SIZE}, parent=number - 1 if number else None) for number in range(40)]
        tier.put_many(blocks)
        os._exit(0)
    """
    run_python(code)


def run_python(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_after_a_crash_of_the_machine_every_value_is_checked(backend: Backend, tmp_path: Path) -> None:
    crashed_from(backend, tmp_path, boot_id="boot-1")
    payload = make_block(5, SIZE).payload
    damage(tmp_path, payload[1000:1032], lambda data, at: data[:at] + b"\0" * 8 + data[at + 8 :])
    tier = backend(tmp_path, MAP_BYTES, boot_id="boot-2")
    assert tier.stats().corrupt == 1, "found at the start, before anyone asked"
    assert not tier.contains(key_of(5))
    assert right_ones(tier) == 39
    tier.close()


def damage(folder: Path, needle: bytes, change: Callable[[bytes, int], bytes]) -> None:
    files = {path: path.read_bytes() for path in folder.glob("*.*")}
    path, data = next((path, data) for path, data in files.items() if needle in data)
    path.write_bytes(change(data, data.index(needle)))


@pytest.mark.parametrize("marker", ["{}", "no json", json.dumps({"format": 99, "boot_id": "boot-1", "clean": True})])
def test_files_of_another_format_are_wiped(backend: Backend, tmp_path: Path, marker: str) -> None:
    filled(backend, tmp_path).close()
    (tmp_path / "state.json").write_text(marker)
    tier = backend(tmp_path, MAP_BYTES, boot_id="boot-1")
    assert (tier.wipes, tier.keys()) == (1, [])
    assert tier.put(make_block(1))[0] is Put.STORED
    tier.close()


def test_a_smaller_setting_starts_with_a_smaller_file(backend: Backend, tmp_path: Path) -> None:
    filled(backend, tmp_path, 60).close()
    tier = backend(tmp_path, MAP_BYTES // 4, boot_id="boot-1")
    for number in range(100):
        tier.put(make_block(number, SIZE))
    assert on_disk(tmp_path) <= MAP_BYTES // 4
    tier.close()


def test_the_file_never_outgrows_the_map(backend: Backend, tmp_path: Path) -> None:
    tier = backend(tmp_path, MAP_BYTES)
    sizes = random.Random(1)
    for number in range(400):  # mixed sizes: the worst case for contiguous runs of free pages
        tier.put(make_block(number, sizes.choice([1000, 30_000, 90_000, 200_000])))
    assert on_disk(tmp_path) <= MAP_BYTES
    stats = tier.stats()
    assert stats.used_bytes <= stats.capacity_bytes <= MAP_BYTES and stats.refused == 0
    assert all(is_right(block) for key in list(tier.keys()) if (block := tier.get(key, LAYOUT)))
    tier.close()


@pytest.mark.parametrize("part", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_costs_hits_only(backend: Backend, tmp_path: Path, part: float) -> None:
    filled(backend, tmp_path).close()
    path = tmp_path / "data.mdb"
    os.truncate(path, int(path.stat().st_size * part))
    tier = backend(tmp_path, MAP_BYTES, boot_id="boot-1")
    right_ones(tier)
    assert tier.put(make_block(500, SIZE))[0] is Put.STORED
    assert tier.get(key_of(500), LAYOUT) == make_block(500, SIZE)
    tier.close()


def test_a_file_truncated_while_open_costs_hits_only(backend: Backend, tmp_path: Path) -> None:
    """Reading a map past the end of its file raises SIGBUS, so this runs in a process of its own."""
    code = f"""
        import os
        from pathlib import Path
        from octavo_kvstore.testing import LAYOUT, key_of, make_block
        from {backend.__module__} import {backend.__name__}
        tier = {backend.__name__}(Path({str(tmp_path)!r}), {MAP_BYTES})
        lost = []
        tier.on_lost = lost.extend
        tier.put_many([make_block(number, {SIZE}) for number in range(40)])
        for name in {[str(tmp_path / "data.mdb"), str(tmp_path / "slab-16.bin")]!r}:
            if os.path.exists(name):
                os.truncate(name, 8192)
        assert [tier.get(key_of(number), LAYOUT) for number in range(40)] == [None] * 40
        assert tier.keys() == [] and tier.stats().corrupt + len(lost) == 40
        tier.put(make_block(41, {SIZE}))
        tier.put(make_block(41, {SIZE}))
        assert tier.wipes == 1 and tier.get(key_of(41), LAYOUT) == make_block(41, {SIZE})
        tier.close()
        print("alive")
    """
    assert run_python(code).strip() == "alive"


def test_flipped_bytes_anywhere_cost_hits_only(backend: Backend, tmp_path: Path) -> None:
    """Bits flipped all over a closed file, headers and tree pages included: misses, never a wrong block, never a crash."""
    code = f"""
        import random
        from pathlib import Path
        from octavo_kvstore.testing import LAYOUT, is_right, key_of, make_block
        from {backend.__module__} import {backend.__name__}
        folder = Path({str(tmp_path)!r})
        {backend.__name__}(folder, {MAP_BYTES}).close()
        source = random.Random(7)
        hits = 0
        for attempt in range(25):
            tier = {backend.__name__}(folder, {MAP_BYTES})
            tier.put_many([make_block(number, 20_000) for number in range(20)])
            tier.close()
            data = bytearray((folder / "data.mdb").read_bytes())
            # three quarters of the flips hit the first bytes of a page, where LMDB keeps its structure
            for _ in range(4):
                page = source.randrange(len(data) // 4096) if attempt % 2 else source.randrange(8)
                offset = source.randrange(64) if source.random() < 0.75 else source.randrange(4096)
                data[min(page * 4096 + offset, len(data) - 1)] ^= 1 << source.randrange(8)
            (folder / "data.mdb").write_bytes(data)
            tier = {backend.__name__}(folder, {MAP_BYTES})
            for number in range(20):
                block = tier.get(key_of(number), LAYOUT)
                assert block is None or is_right(block)
                hits += block is not None
            tier.close()
        print(hits)
    """
    hits = int(run_python(code))
    assert 0 < hits < 25 * 20


def test_a_full_disk_evicts_or_refuses(backend: Backend, tmp_path: Path) -> None:
    """A file-size limit makes every write beyond it fail, as a full disk does."""
    code = f"""
        import resource
        from pathlib import Path
        from octavo_kvstore.testing import LAYOUT, is_right, key_of, make_block
        from octavo_kvstore.tier import Put
        from {backend.__module__} import {backend.__name__}
        tier = {backend.__name__}(Path({str(tmp_path)!r}), {8 * MAP_BYTES})
        tier.put_many([make_block(number, {SIZE}) for number in range(30)])
        limit = 3 * 2**20
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        outcomes = [tier.put(make_block(number, {SIZE}))[0] for number in range(30, 200)]
        for key in tier.keys():
            block = tier.get(key, LAYOUT)
            assert block is not None and is_right(block)
        stored = [number for number, outcome in enumerate(outcomes, 30) if outcome is Put.STORED]
        assert tier.contains(key_of(stored[-1])) and tier.write_errors
        assert tier.wipes == 0
        print(len(stored), len(tier.keys()))
        tier.close()
    """
    stored, held = map(int, run_python(code).split())
    assert stored > 100, "what does not fit evicts"
    assert held > 10, "a full disk does not empty the tier"


def test_a_second_owner_is_refused(backend: Backend, tmp_path: Path) -> None:
    tier = backend(tmp_path, MAP_BYTES)
    with pytest.raises(OctavoError, match="another kvstore uses this folder"):
        backend(tmp_path, MAP_BYTES)
    tier.close()
    backend(tmp_path, MAP_BYTES).close()


def test_a_folder_that_cannot_be_made_is_refused(backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OctavoError, match=r"cache\.nvme_path"):
        backend(tmp_path / "file" / "nvme", MAP_BYTES)


def test_an_unwritable_medium_turns_the_tier_off(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_disk(*arguments: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(nvme.lmdb, "open", no_disk)
    tier = backend(tmp_path, MAP_BYTES)
    assert tier.put(make_block(1))[0] is Put.REFUSED
    assert tier.get(key_of(1), LAYOUT) is None
    tier.close()


def test_the_probe_names_what_is_wrong(backend: Backend, tmp_path: Path) -> None:
    filled(backend, tmp_path).close()
    assert problem_in(tmp_path) == ""
    (tmp_path / "data.mdb").write_bytes(b"not a database" * 1000)
    assert problem_in(tmp_path) != ""


def test_disk_bytes_counts_whole_pages() -> None:
    assert disk_bytes(4096 - 16 - 160) == 4096
    assert disk_bytes(4096 - 16 - 159) == 8192
    assert disk_bytes(368_640) == 91 * 4096


def aged_files(backend: Backend, folder: Path, boot_id: str) -> dict[str, bytes]:
    """A directory as it was before most of the slots were filled anew; the files end as those of a killed process."""
    code = f"""
        import os, sys
        from pathlib import Path
        from octavo_kvstore.testing import make_block
        from {backend.__module__} import {backend.__name__}
        folder = Path({str(folder)!r})
        tier = {backend.__name__}(folder, {MAP_BYTES}, boot_id={boot_id!r})
        for number in range(0, 80, 8):
            tier.put_many([make_block(n, {SIZE}) for n in range(number, number + 8)])
        (folder / "old.copy").write_bytes((folder / "data.mdb").read_bytes())
        for number in range(80, 240, 8):
            tier.put_many([make_block(n, {SIZE}) for n in range(number, number + 8)])
        os._exit(0)
    """
    run_python(code)
    return {"old": (folder / "old.copy").read_bytes(), "new": (folder / "data.mdb").read_bytes()}


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"])
def test_a_directory_that_is_older_than_the_slots_never_gives_a_wrong_block(
    backend: Backend, tmp_path: Path, boot_id: str
) -> None:
    """What a power cut can leave: the directory did not reach the disk, the payloads did."""
    states = aged_files(backend, tmp_path, "boot-1")
    (tmp_path / "data.mdb").write_bytes(states["old"])
    (tmp_path / "lock.mdb").unlink()
    tier = backend(tmp_path, MAP_BYTES, boot_id=boot_id)
    if boot_id == "boot-2" and backend is SlabTier:
        assert tier.stats().corrupt > 20, "found at the start, before anyone asked"
    held = right_ones(tier, 240)
    for number in range(300, 400):
        assert tier.put(make_block(number, SIZE))[0] is Put.STORED
    assert right_ones(tier, 400) >= min(held, 60)
    tier.close()


def test_slots_are_neither_lost_nor_shared_over_kills_and_restarts(tmp_path: Path) -> None:
    """A slab slot is held by one record or free, after each of many deaths; the files stay within the capacity."""
    for round_number in range(4):
        code = f"""
            import os
            from pathlib import Path
            from octavo_kvstore.testing import make_block
            from octavo_kvstore.tiers.slab import SlabTier
            tier = SlabTier(Path({str(tmp_path)!r}), {MAP_BYTES}, boot_id="boot-1")
            for number in range({round_number * 150}, {round_number * 150 + 150}):
                tier.put(make_block(number, 9000 if number % 3 else {SIZE}))
            os._exit(0)
        """
        run_python(code)
        tier = SlabTier(tmp_path, MAP_BYTES, boot_id="boot-1")
        assert slots_are_whole(tier) and on_disk(tmp_path) <= MAP_BYTES
        assert right_ones(tier, 600) == len(tier.keys()) > 50
        os.close(os.open(tmp_path / "owner.lock", os.O_RDONLY))
        tier.close()


def slots_are_whole(tier: SlabTier) -> bool:
    keys = tier.keys()
    held = [tier._index.raw(key).place for key in keys]  # type: ignore[union-attr]
    files = tier._space._files
    for pages, file in files.items():
        mine = [slot.number for slot in held if slot.pages == pages]
        every = sorted(
            [*mine, *file.free, *file.holes, *(e.place.number for e in tier._drops.values() if e.place.pages == pages)]
        )
        if every != list(range(file.slots)):
            return False
    return True


def test_the_folder_says_whether_its_owner_died_inside_a_commit(tmp_path: Path) -> None:
    tier = SlabTier(tmp_path, MAP_BYTES)
    tier.put(make_block(1))
    assert not TierFolder.died_writing(tmp_path)
    with tier._folder.writing():
        assert TierFolder.died_writing(tmp_path)
    tier.close()
    assert not TierFolder.died_writing(tmp_path / "missing")


def test_a_marker_that_cannot_be_replaced_is_written_over(backend: Backend, tmp_path: Path) -> None:
    """As on a full disk: no new file can be had, and what is there can be changed."""
    filled(backend, tmp_path).close()
    (tmp_path / "state.json.new").mkdir()
    folder = TierFolder(tmp_path, backend.backend, boot_id="boot-1")
    assert folder.past() == "clean"
    folder.mark(clean=False)
    assert folder.past() == "killed"
    folder.mark(clean=True)
    assert folder.past() == "clean"
    folder.release()
    tier = backend(tmp_path, MAP_BYTES, boot_id="boot-1")
    assert (tier.wipes, right_ones(tier)) == (0, 40)
    tier.close()
    assert json.loads((tmp_path / "state.json").read_text())["clean"] is True


def test_room_for_the_directory_is_set_aside(tmp_path: Path) -> None:
    """A disk that others fill then stops new slots and no commit: blocks that are held stay, and make room for others."""
    probe = tmp_path / "probe"
    probe.touch()
    if not reserve(probe, 4096):
        pytest.skip("this file system sets no room aside")
    tier = filled(SlabTier, tmp_path / "tier")
    status = (tmp_path / "tier" / "data.mdb").stat()
    assert status.st_size < directory_bytes(MAP_BYTES) - LOCK_FILE_BYTES <= status.st_blocks * 512
    assert on_disk(tmp_path / "tier") <= MAP_BYTES
    tier.close()


def test_a_capacity_beyond_the_disk_does_not_take_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(f_bavail=64 * 512, f_frsize=4096)
    monkeypatch.setattr(slab.os, "statvfs", lambda path: free)
    tier = SlabTier(tmp_path, 2**45)
    data = tmp_path / "data.mdb"
    assert data.stat().st_blocks * 512 <= 512 * 4096 + 64 * 1024
    tier.close()
    free.f_bavail = 0
    before = data.stat().st_blocks
    SlabTier(tmp_path, 2**45).close()
    assert data.stat().st_blocks >= before, "what was set aside stays so on a full disk"
