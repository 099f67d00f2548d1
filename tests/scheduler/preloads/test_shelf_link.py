"""What outlives the scheduler's process: preloads and generations on the shelf, whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import stat
from array import array
from pathlib import Path

import pytest
from octavo.errors import OctavoError
from octavo_scheduler.preloads.book import Preload
from octavo_scheduler.preloads.shelf_link import Shelf

LOG = logging.getLogger("test")


def preload(name: str = "docs", tenant: str = "t", version: int = 3) -> Preload:
    made = Preload(tenant, name, version, "system", "salt", array("I", [1, 2**31, 7]), b"", b"", 0, 0)
    made.root_key = b"r" * 32
    return made


def test_what_was_kept_comes_back_and_what_was_forgotten_does_not(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf", LOG)
    for item in (preload(), preload("other"), preload("docs", "somebody")):
        shelf.keep(item)
    shelf.keep(preload(version=4))
    shelf.forget("t", "other")
    shelf.forget("t", "nobody")
    found = {(item.tenant, item.name): item for item in Shelf(tmp_path / "shelf", LOG).preloads()}
    assert set(found) == {("t", "docs"), ("somebody", "docs")}
    kept = found["t", "docs"]
    assert (kept.version, kept.form, kept.salt, kept.root_key, kept.pinned) == (4, "system", "salt", b"r" * 32, True)
    assert list(kept.prompt) == [1, 2**31, 7]


def test_only_this_user_reads_token_ids(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf", LOG)
    shelf.keep(preload())
    (path,) = (tmp_path / "shelf").glob("preload-*")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "shelf").stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", ["", "{", '{"octavo_preload": 2}', '{"octavo_preload": 1}', "[]"])
def test_a_damaged_file_costs_that_preload_and_a_line(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf(tmp_path, LOG)
    shelf.keep(preload())
    shelf.keep(preload("other"))
    path = min(tmp_path.glob("preload-*"))
    path.write_text(damage)
    with caplog.at_level("WARNING"):
        assert len(list(shelf.preloads())) == 1
    assert path.name in caplog.text


def test_generations_are_kept_and_a_damaged_list_ends_the_start(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, LOG)
    assert shelf.generations() == {}
    shelf.keep_generations({"a": 2})
    assert Shelf(tmp_path, LOG).generations() == {"a": 2}
    for damage in ("{", json.dumps({"octavo_generations": 1}), "[]"):
        (tmp_path / "generations.json").write_text(damage)
        with pytest.raises(OctavoError, match=r"generations\.json: cannot be read"):
            shelf.generations()


def test_a_folder_that_cannot_be_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OctavoError, match=r"cache\.preloads_path: .* cannot be written"):
        Shelf(tmp_path / "file" / "shelf", LOG)


def test_a_full_disk_forgets_the_name_instead_of_bringing_an_earlier_version_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path, LOG)
    shelf.keep(preload(version=3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(OSError, match="No space"):
            shelf.keep(preload(version=4))
    assert list(shelf.preloads()) == [] and list(tmp_path.iterdir()) == []


def _full(*_given: object, **_more: object) -> None:
    raise OSError(28, "No space left on device")


def test_what_is_answered_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's bytes before the rename, the folder after it: a power cut leaves the old content or the new one."""
    shelf, done = Shelf(tmp_path, LOG), []
    fsync, replace = os.fsync, Path.replace

    def synced(fd: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def moved(path: Path, target: Path) -> Path:
        done.append("moved")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", moved)
    shelf.keep(preload())
    assert done == ["file", "moved", "folder"]
    shelf.forget("t", "docs")
    assert done[3:] == ["folder"]
