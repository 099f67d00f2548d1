"""pack: a model's weights in the layout that the kernels read, in one file per (weights, format) that workers map together.

The file: a page with the magic, the length and blake3 of a JSON header; then the entries, each on a cache line of its own. It is
written beside its final name and moved there whole, so two workers that start together never see half of it; a file whose
header, size or data does not match its checksum, or whose entries are another model's, is packed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from octavo.artifacts import BadArtifact, ModelFiles, weights_hash

from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.native.library import Library
from octavo_gpuworker.native.pack_cache import hold, prune
from octavo_gpuworker.native.packer import Packer, entries_of
from octavo_gpuworker.native.tensors import open_tensors

Format = Literal["bf16", "int8", "int4"]
FORMATS: Final[tuple[Format, ...]] = ("bf16", "int8", "int4")
LAYOUT: Final = 3
"""A new order of bytes is a new number: old files are then left alone and packed anew."""
MAGIC: Final = b"OCTVPACK"
PREFIX: Final = len(MAGIC) + 8 + 32
ALIGNMENT: Final = 4096

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Packed:
    """Packed weights, mapped read-only. `entries` are name -> (offset, bytes)."""

    path: Path
    format: Format
    data: NDArray[np.uint8]
    entries: dict[str, tuple[int, int]]

    def array(self, name: str) -> NDArray[np.uint8] | None:
        """The bytes of an entry, None where the model has none."""
        found = self.entries.get(name)
        return None if found is None else self.data[found[0] : found[0] + found[1]]


def pack(
    files: ModelFiles,
    config: ModelConfig,
    weights: Format,
    library: Library,
    *,
    cache: Path,
    weights_blake3: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Packed:
    """The packed form of `files`, from `cache` when it is there and whole, else made and kept there.

    `weights_blake3` is `weights_hash(files)` where the caller has it already. `progress(done, total)` counts matrices.
    BadArtifact: the model's files are damaged. OSError: the cache cannot be written. ValueError: an unknown format.
    """
    if weights not in FORMATS:
        raise ValueError(f"weights is {weights!r}; expected {', '.join(FORMATS)}")
    path = cache / f"{_key(files, config, weights, weights_blake3)}.octpack"
    sizes = entries_of(config, weights, library)
    with contextlib.suppress(OSError, BadArtifact):  # no lock: the file appears whole, and its folder may be read-only
        return _kept(path, weights, sizes)
    cache.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as lock:  # who comes second finds the file that the first one wrote
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _kept(path, weights, sizes)
        except FileNotFoundError:
            log.debug("packing %s", path)
        except (BadArtifact, PermissionError) as error:
            log.warning("%s; packing it again", error)
        for stale in cache.glob(f".packing-{path.stem}-*"):  # of one that was killed: the lock is ours
            stale.unlink(missing_ok=True)
        _write(path, files, config, weights, library, progress)
        packed = open_packed(path)
    prune(cache, keep=path)
    return packed


def _kept(path: Path, weights: Format, sizes: dict[str, int]) -> Packed:
    """The file at `path`, if it is whole and what its name promises: another model's entries would be read out of bounds."""
    packed = open_packed(path)
    if packed.format != weights or {name: size for name, (_, size) in packed.entries.items()} != sizes:
        raise BadArtifact(f"{path}: the packed weights are another model's")
    return packed


def _key(files: ModelFiles, config: ModelConfig, weights: Format, weights_blake3: str) -> str:
    parts = (weights_blake3 or weights_hash(files), repr(config), weights, str(LAYOUT))
    return blake3("\n".join(parts).encode()).hexdigest()[:32]


def _write(
    path: Path,
    files: ModelFiles,
    config: ModelConfig,
    weights: Format,
    library: Library,
    progress: Callable[[int, int], None] | None,
) -> None:
    sizes = entries_of(config, weights, library)
    entries, offset = {}, 0
    for name, size in sizes.items():
        entries[name] = (offset, size)
        offset += -(-size // 64) * 64
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".packing-{path.stem}-")
    try:
        with os.fdopen(descriptor, "w+b") as file:
            start = _header_room(weights, entries, offset)
            os.posix_fallocate(
                file.fileno(), 0, start + offset
            )  # a full disk is an error here, and SIGBUS in the map below
            # np.memmap: its pages are released with the last array over them, whatever an error's traceback still holds
            whole = np.memmap(file, np.uint8, "r+", shape=(start + offset,))
            _fill(whole[start:], entries, files, config, weights, library, progress)
            digest = blake3(max_threads=blake3.AUTO).update(whole[start:].data).hexdigest()
            _put_header(whole, weights, entries, offset, digest)
            whole.flush()
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _fill(
    body: NDArray[np.uint8],
    entries: dict[str, tuple[int, int]],
    files: ModelFiles,
    config: ModelConfig,
    weights: Format,
    library: Library,
    progress: Callable[[int, int], None] | None,
) -> None:
    tensors = open_tensors(files, config)
    try:
        packer = Packer(library, config, weights, tensors, str(files.path))
        packer.fill({key: body[at : at + size] for key, (at, size) in entries.items()}, progress)
    finally:
        tensors.close()


def _header(weights: Format, entries: dict[str, tuple[int, int]], size: int, digest: str) -> bytes:
    fields = {"layout": LAYOUT, "format": weights, "size": size, "data_blake3": digest, "entries": entries}
    return json.dumps(fields).encode()


def _header_room(weights: Format, entries: dict[str, tuple[int, int]], size: int) -> int:
    return -(-(PREFIX + len(_header(weights, entries, size, "0" * 64))) // ALIGNMENT) * ALIGNMENT


def _put_header(
    whole: NDArray[np.uint8], weights: Format, entries: dict[str, tuple[int, int]], size: int, digest: str
) -> None:
    header = _header(weights, entries, size, digest)
    prefix = MAGIC + len(header).to_bytes(8, "little") + blake3(header).digest() + header
    whole[: len(prefix)] = np.frombuffer(prefix, np.uint8)


def open_packed(path: Path) -> Packed:
    """Maps a packed file. BadArtifact: not one, truncated, or its bytes differ from its checksums."""
    with path.open("rb") as file:
        hold(file)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
    length = int.from_bytes(mapped[len(MAGIC) : len(MAGIC) + 8], "little")
    header = mapped[PREFIX : PREFIX + length]
    if mapped[: len(MAGIC)] != MAGIC or blake3(header).digest() != mapped[PREFIX - 32 : PREFIX]:
        raise BadArtifact(f"{path}: the header of the packed weights is damaged")
    fields = json.loads(header)
    start = -(-(PREFIX + length) // ALIGNMENT) * ALIGNMENT
    if fields["layout"] != LAYOUT or len(mapped) != start + fields["size"]:
        raise BadArtifact(f"{path}: packed weights of {len(mapped)} bytes, expected {start + fields['size']}")
    data = np.frombuffer(mapped, np.uint8)[start:]
    if blake3(max_threads=blake3.AUTO).update(data.data).hexdigest() != fields["data_blake3"]:
        raise BadArtifact(f"{path}: the packed weights differ from their checksum")
    entries = {name: (int(at), int(size)) for name, (at, size) in fields["entries"].items()}
    return Packed(path, cast(Format, fields["format"]), data, entries)
