"""The cache of packed weights: old files go, those in use by a live process never."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from octavo_gpuworker.native import packing
from octavo_gpuworker.native.library import Library
from octavo_gpuworker.native.pack_cache import KEEP_S, prune
from octavo_gpuworker.native.packing import open_packed, pack

from .conftest import CONFIGS, make_checkpoint

HOLDS = """
import sys
from pathlib import Path
from octavo_gpuworker.native.packing import open_packed
packed = open_packed(Path(sys.argv[1]))
print("mapped", flush=True)
sys.stdin.readline()
"""


def aged(path: Path, days: float, size: int = 100) -> Path:
    if not path.exists():
        path.write_bytes(bytes(size))
    used_s = time.time() - days * 24 * 3600
    os.utime(path, (used_s, used_s))
    return path


def test_old_files_go_and_young_ones_stay(tmp_path: Path) -> None:
    old, young, kept = (aged(tmp_path / f"{name}.octpack", days) for name, days in (("a", 31), ("b", 29), ("c", 99)))
    other = aged(tmp_path / "build.lock", 99)
    assert prune(tmp_path, keep=kept) == [old]
    assert young.exists() and kept.exists() and other.exists() and not old.exists()


def test_beyond_the_bound_the_oldest_go_first(tmp_path: Path) -> None:
    files = [aged(tmp_path / f"{days}.octpack", days) for days in (1, 2, 3, 4)]
    assert prune(tmp_path, keep=files[3], most_bytes=250) == [files[2], files[1]]
    assert files[0].exists() and files[3].exists()


def test_a_file_that_a_live_process_maps_stays_until_it_ends(library: Library, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", CONFIGS["llama"])
    path = pack(checkpoint.files, checkpoint.config, "int8", library, cache=tmp_path).path
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "mapped\n"
        later_s = time.time() + 2 * KEEP_S
        assert prune(tmp_path, keep=tmp_path / "new.octpack", now_s=later_s) == []
        child.communicate("\n")
    assert prune(tmp_path, keep=tmp_path / "new.octpack", now_s=later_s) == [path]


def test_opening_a_file_makes_it_young_and_holds_it_as_long_as_its_arrays(library: Library, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", CONFIGS["llama"])
    path = pack(checkpoint.files, checkpoint.config, "bf16", library, cache=tmp_path).path
    aged(path, 60)
    packed = open_packed(path)
    assert time.time() - path.stat().st_mtime < 3600
    norm = packed.array("norm")
    assert norm is not None
    before = norm.copy()
    del packed
    aged(path, 60)
    assert prune(tmp_path, keep=tmp_path / "none") == [] and (norm == before).all()
    del norm
    assert prune(tmp_path, keep=tmp_path / "none") == [path]


def test_packing_another_model_prunes(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = aged(tmp_path / "cache.octpack", 90)
    checkpoint = make_checkpoint(tmp_path / "model", CONFIGS["llama"])
    first = pack(checkpoint.files, checkpoint.config, "int4", library, cache=tmp_path)
    assert first.path.exists() and not old.exists()
    monkeypatch.setattr(packing, "prune", lambda *given, **more: pytest.fail("a kept file prunes nothing"))
    assert pack(checkpoint.files, checkpoint.config, "int4", library, cache=tmp_path).path == first.path
