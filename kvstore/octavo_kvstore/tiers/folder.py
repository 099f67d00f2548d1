"""The folder of the NVMe tier: who owns it, how the last owner ended, and the wipe.

The tier commits without fsync. That survives the death of the process at any moment (the page cache has every write),
but not the death of the machine. So a marker says under which boot of the machine the files were opened, and whether
they were closed in order; files that outlived their machine's boot unclosed are looked at value by value.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from octavo.errors import OctavoError
from octavo.manifest import ManifestError

from octavo_kvstore.record import FORMAT_VERSION

Past = Literal["empty", "clean", "killed", "crashed", "foreign"]
"""How the files were left: none there; closed in order; their process died; their machine died; not ours to read."""

LOCK_FILE = "owner.lock"
WRITING, IDLE = b"w", b"-"
MARKER_BYTES = 256
"""Every marker has the same length, so that one can be written over another."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DATA_FILES = ("data.mdb", "lock.mdb", "slab-*.bin")


def machine_boot_id() -> str:
    """An id that changes whenever the machine boots; empty where the kernel tells none (then every crash counts as one)."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class TierFolder:
    """Owned by one process at a time through a file lock that the kernel drops when the owner dies."""

    def __init__(self, path: Path, form: str, boot_id: str | None = None) -> None:
        """Makes and locks the folder for files of one `form`. Raises OctavoError when another process has it or it cannot be made."""
        self.path = path
        self._format = f"{form}-{FORMAT_VERSION}"
        self._boot_id = machine_boot_id() if boot_id is None else boot_id
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ManifestError(
                f"cache.nvme_path {path}: {error.strerror}; give a folder that can be written", field="cache.nvme_path"
            ) from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            raise OctavoError(
                f"cache.nvme_path {path}: another kvstore uses this folder; give each its own", field="cache.nvme_path"
            ) from error

    @property
    def data_path(self) -> Path:
        return self.path / DATA_FILES[0]

    def past(self) -> Past:
        """How the last owner left the files."""
        try:
            if not self.data_path.stat().st_size:
                return "empty"
        except OSError:
            return "empty"
        try:
            marker = json.loads(self._marker.read_text(encoding="utf-8"))
            if marker["format"] != self._format:
                return "foreign"
            if marker["clean"]:
                return "clean"
            return "killed" if marker["boot_id"] == self._boot_id != "" else "crashed"
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "foreign"

    def mark(self, *, clean: bool) -> None:
        """Writes the marker durably; raises OSError when the disk refuses."""
        content = json.dumps({"format": self._format, "boot_id": self._boot_id, "clean": clean}).ljust(MARKER_BYTES)
        fresh = self.path / "state.json.new"
        try:
            _write_durably(fresh, "w", content)
            fresh.replace(self._marker)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            # a full disk still takes what was there before; a marker that is half one and half the other reads as foreign
            _write_durably(self._marker, "r+", content)

    def wipe(self) -> None:
        """Removes the data; raises OSError when the folder does not let it."""
        for pattern in DATA_FILES:
            for path in self.path.glob(pattern):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Notes in a file, for whoever starts after a death, that a commit is under way."""
        os.pwrite(self._lock_fd, WRITING, 0)
        try:
            yield
        finally:
            os.pwrite(self._lock_fd, IDLE, 0)

    @staticmethod
    def died_writing(path: Path) -> bool:
        """Whether the folder's last owner ended inside a commit."""
        try:
            return (path / LOCK_FILE).read_bytes()[:1] == WRITING
        except OSError:
            return False

    def release(self) -> None:
        """Lets another process have the folder. Idempotent."""
        try:
            os.close(self._lock_fd)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
        self._lock_fd = -1

    @property
    def _marker(self) -> Path:
        return self.path / "state.json"


def _write_durably(path: Path, mode: str, content: str) -> None:
    with path.open(mode, encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
