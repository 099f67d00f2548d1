"""Named tensors of a checkpoint as numpy arrays, without torch: what `packing` reads. Names and row order are Hugging Face's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from octavo.artifacts import BadArtifact, ModelFiles, read_gguf_metadata

from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.gguf_source import GgufSource

Floats = NDArray[np.float32]
RAW_TYPES: Final = {"Q4_0": 2, "Q4_1": 3}
"""GGUF types whose blocks are int4 groups of 32 already."""


class Tensors(Protocol):
    """Tensors by name; every error is a BadArtifact that begins with the file."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """None when there is no such tensor."""

    def floats(self, name: str) -> Floats:
        """The tensor in float32."""

    def raw_int4(self, name: str) -> tuple[int, NDArray[np.uint8]] | None:
        """(GGUF type, [rows, bytes]) when it is stored as int4 groups of 32, else None."""

    def close(self) -> None:
        """Unmaps the files."""


class GgufTensors:
    """Tensors of one GGUF."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self._source = GgufSource(read_gguf_metadata(path), config)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """See Tensors."""
        return self._source.shape(name)

    def floats(self, name: str) -> Floats:
        """See Tensors."""
        return self._source.read_array(name)

    def raw_int4(self, name: str) -> tuple[int, NDArray[np.uint8]] | None:
        """See Tensors."""
        found = self._source.raw_rows(name)
        return (RAW_TYPES[found[0]], found[1]) if found and found[0] in RAW_TYPES else None

    def close(self) -> None:
        """See Tensors; the map ends with the object."""


class SafetensorsTensors:
    """Tensors of safetensors files: an 8-byte length, a JSON header, the data (github.com/huggingface/safetensors, format)."""

    def __init__(self, files: ModelFiles) -> None:
        self._found: dict[str, tuple[Path, str, tuple[int, ...], int, int]] = {}
        for path in files.weights:
            self._read_header(path)

    def _read_header(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, 100_000_000):
                raise BadArtifact(f"{path}: bad safetensors header; copy or download the file again")
            try:
                header = json.loads(file.read(length))
                for name, entry in header.items():
                    if name != "__metadata__":
                        start, end = (8 + length + int(offset) for offset in entry["data_offsets"])
                        self._found[name] = (path, str(entry["dtype"]), tuple(entry["shape"]), start, end)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadArtifact(
                    f"{path}: bad safetensors header ({error}); copy or download the file again"
                ) from error
        if any(entry[4] > size for entry in self._found.values() if entry[0] == path):
            raise BadArtifact(f"{path}: truncated safetensors file; copy or download the file again")

    def shape(self, name: str) -> tuple[int, ...] | None:
        """See Tensors."""
        entry = self._found.get(name)
        return None if entry is None else entry[2]

    def floats(self, name: str) -> Floats:
        """See Tensors."""
        path, dtype, shape, start, end = self._found[name]
        raw = np.memmap(path, np.uint8, "r", start, (end - start,)) if end > start else np.zeros(0, np.uint8)
        if dtype == "BF16":
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
        kinds = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
        if dtype not in kinds:
            raise BadArtifact(
                f"{path}: tensor {name} is {dtype}, expected a float dtype; use an unquantized checkpoint"
            )
        return raw.view(kinds[dtype]).astype(np.float32).reshape(shape)

    def raw_int4(self, name: str) -> tuple[int, NDArray[np.uint8]] | None:
        """See Tensors: a float checkpoint has none."""
        return None

    def close(self) -> None:
        """See Tensors; nothing stays open."""


def open_tensors(files: ModelFiles, config: ModelConfig) -> Tensors:
    """The tensors of a GGUF or of a Hugging Face folder. BadArtifact: damaged."""
    return GgufTensors(files.path, config) if files.kind == "gguf" else SafetensorsTensors(files)
