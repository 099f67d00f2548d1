"""The shelf: preloads and namespace generations in a folder, so that a new scheduler has them again.

One JSON file per preload, written beside its final name, on the disk before it is moved there whole; readable by this user alone, since token
ids are text. A file that cannot be read costs that preload and a line in the log.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3
from octavo.errors import OctavoError
from octavo.manifest import ManifestError
from octavo.packing import pack_u32

from octavo_scheduler.preloads.book import Preload
from octavo_scheduler.wire import tokens_array

FORMAT = "octavo_preload"
VERSION = 1
GENERATIONS = "generations.json"
GENERATIONS_FORMAT = "octavo_generations"


@dataclass(frozen=True, slots=True)
class Kept:
    """What the shelf knows of a preload."""

    tenant: str
    name: str
    version: int
    form: str
    salt: str
    root_key: bytes
    pinned: bool
    prompt: array[int]


class Shelf:
    """Owns the folder. Raises ManifestError at once when it cannot be made or written."""

    def __init__(self, folder: Path, log: logging.Logger) -> None:
        self._folder = folder
        self._log = log
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = folder / ".probe"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ManifestError(
                f"cache.preloads_path: {folder} cannot be written ({error.strerror}); name a folder that can",
                field="cache.preloads_path",
            ) from error

    def preloads(self) -> Iterator[Kept]:
        """Every whole file."""
        for path in sorted(self._folder.glob("preload-*.json")):
            try:
                yield _kept(json.loads(path.read_bytes()))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                self._log.warning("preload file %s cannot be read and is left out: %s", path.name, error)

    def generations(self) -> dict[str, int]:
        """Of rotated namespaces. OctavoError when the file is damaged: without it old blocks would be found again."""
        path = self._folder / GENERATIONS
        if not path.exists():
            return {}
        try:
            content = json.loads(path.read_bytes())
            if content.get(GENERATIONS_FORMAT) != VERSION:
                raise ValueError("another version")
            return {str(tenant): int(generation) for tenant, generation in content["tenants"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OctavoError(
                f"{path}: cannot be read ({error}); restore it, or remove it and rotate every tenant that was"
            ) from error

    def keep(self, preload: Preload) -> None:
        """Writes it, in place of an earlier version. Raises OSError; the name is then forgotten, for an earlier version
        must not come back in its place."""
        content = {
            FORMAT: VERSION,
            "tenant": preload.tenant,
            "name": preload.name,
            "version": preload.version,
            "form": preload.form,
            "salt": preload.salt,
            "root_key": preload.root_key.hex(),
            "pinned": preload.pinned,
            "tokens": pack_u32(preload.prompt).hex(),
        }
        path = self._path(preload.tenant, preload.name)
        try:
            self._write(path, content)
        except OSError:
            for left in (path.with_suffix(".part"), path):
                with contextlib.suppress(OSError):
                    left.unlink()
            raise

    def forget(self, tenant: str, name: str) -> None:
        """Removes it; no error when it is not there."""
        self._path(tenant, name).unlink(missing_ok=True)
        _sync(self._folder)

    def keep_generations(self, generations: dict[str, int]) -> None:
        """Raises OSError."""
        self._write(self._folder / GENERATIONS, {GENERATIONS_FORMAT: VERSION, "tenants": generations})

    def _path(self, tenant: str, name: str) -> Path:
        whose = f"{tenant}\0{name}".encode()
        return self._folder / f"preload-{blake3(whose).hexdigest()[:32]}.json"

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        part = path.with_suffix(".part")
        part.touch(mode=0o600, exist_ok=True)
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(content, separators=(",", ":")))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync(self._folder)


def _sync(folder: Path) -> None:
    """What was renamed or removed in it outlives the machine. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _kept(content: dict[str, Any]) -> Kept:
    if content.get(FORMAT) != VERSION:
        raise ValueError("another version")
    return Kept(
        str(content["tenant"]),
        str(content["name"]),
        int(content["version"]),
        str(content["form"]),
        str(content["salt"]),
        bytes.fromhex(content["root_key"]),
        bool(content["pinned"]),
        tokens_array(bytes.fromhex(content["tokens"]), "tokens"),
    )
