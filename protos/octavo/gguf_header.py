"""GGUF headers: metadata and tensor directory of one file, checked against the file's real length, without numpy.

The `gguf` package's own reader builds one array per field (1.6 s on a 49,152-entry vocabulary); this one notes where each
value lies (under 0.1 s) and decodes a value when it is asked for. Format: ggml docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from octavo.errors import OctavoError

MAGIC: Final = b"GGUF"
STRING: Final = 8
ARRAY: Final = 9
SCALARS: Final[dict[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""GGUF value type id -> struct code, little-endian."""

MAX_DIMS: Final = 4
MAX_ENTRIES: Final = 1 << 20
"""More metadata keys or tensors than any model has: a damaged count, not a file to walk for minutes."""


class BadArtifact(OctavoError, ValueError):
    """A model file that cannot be served. One line: what is wrong and what to do. A service or command ends with exit code 3."""

    default_reason = "bad-artifact"
    exit_code = 3


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One row of the tensor directory. `shape` is row-major (GGUF stores it reversed); `offset` is absolute, in bytes."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a value lies: its type (and its element type and count when it is an array), bytes [start, end)."""

    kind: int
    item: int
    count: int
    start: int
    end: int


class GgufFile(Mapping[str, object]):
    """Metadata of one GGUF as a mapping (str, int, float, bool, or list of these), plus `tensors` and `data_start`.

    Values are decoded on first use. The file stays mapped as long as this object lives.
    """

    def __init__(self, path: Path, data: mmap.mmap, spans: dict[str, _Span], tensors: tuple[GgufTensor, ...],
                 directory_start: int, data_start: int) -> None:  # fmt: skip
        self.path = path
        self.tensors = tensors
        self.directory_start = directory_start
        self.data_start = data_start
        self._data = data
        self._spans = spans
        self._values: dict[str, object] = {}

    def __getitem__(self, key: str) -> object:
        if key not in self._values:
            self._values[key] = _decode(self._data, self._spans[key], self.path)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def raw(self, key: str) -> bytes:
        """The value's bytes as they lie in the file, with its type id in front: what a hash of it covers."""
        span = self._spans[key]
        return bytes((span.kind, span.item)) + self._data[span.start : span.end]

    def buffer(self) -> memoryview:
        """The whole file, read-only."""
        return memoryview(self._data)

    def text(self, key: str, default: str = "") -> str:
        """A string value; BadArtifact when it is of another type."""
        value = self.get(key, default)
        if not isinstance(value, str):
            raise BadArtifact(
                f"{self.path}: GGUF field {key} is {type(value).__name__}, expected a string; convert the model again"
            )
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer value; BadArtifact when it is absent without a default, or of another type."""
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadArtifact(f"{self.path}: GGUF field {key} is missing or no integer; convert the model again")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A float value (an integer is taken too); BadArtifact when it is absent without a default, or of another type."""
        value = self.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise BadArtifact(f"{self.path}: GGUF field {key} is missing or no number; convert the model again")
        return float(value)


class _Cursor:
    """A bounds-checked position in the file; every read beyond the end is one clear error."""

    __slots__ = ("data", "path", "position", "size")

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.position = path, data, len(data), 0

    def fail(self, what: str) -> NoReturn:
        raise BadArtifact(
            f"{self.path}: truncated GGUF: {what} ends beyond the file's {self.size} bytes; copy or download the file again"
        )

    def skip(self, count: int, what: str) -> int:
        start = self.position
        if count < 0 or start + count > self.size:
            self.fail(what)
        self.position = start + count
        return start

    def u32(self, what: str) -> int:
        start = self.skip(4, what)
        return int.from_bytes(self.data[start : start + 4], "little")

    def u64(self, what: str) -> int:
        start = self.skip(8, what)
        return int.from_bytes(self.data[start : start + 8], "little")

    def string(self, what: str) -> str:
        length = self.u64(what)
        start = self.skip(length, what)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise BadArtifact(
                f"{self.path}: GGUF {what} is not UTF-8; the file is damaged, download it again"
            ) from error

    def value(self, key: str) -> _Span:
        kind = self.u32(f"the type of {key}")
        if kind != ARRAY:
            start = self.position
            self._skip_items(kind, 1, key)
            return _Span(kind, kind, 1, start, self.position)
        item = self.u32(f"the type of {key}")
        count = self.u64(f"the length of {key}")
        start = self.position
        self._skip_items(item, count, key)
        return _Span(ARRAY, item, count, start, self.position)

    def _skip_items(self, kind: int, count: int, key: str) -> None:
        if kind in SCALARS:
            self.skip(struct.calcsize(SCALARS[kind]) * count, key)
            return
        if kind != STRING:
            raise BadArtifact(
                f"{self.path}: GGUF field {key} has unknown value type {kind}; the file is damaged, download it again"
            )
        data, position, size = self.data, self.position, self.size
        for _ in range(count):  # by hand: a vocabulary has 10^5 strings
            after = position + 8
            if after > size:
                self.fail(key)
            position = after + int.from_bytes(data[position:after], "little")
        if position > size:
            self.fail(key)
        self.position = position


def read_gguf_metadata(path: str | Path) -> GgufFile:
    """Reads the header of a GGUF file. BadArtifact: not a GGUF, big-endian, unknown version, truncated or damaged header.

    Whether the tensor data is complete needs the sizes of the quantized types, so the worker checks that when it loads.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(8)
            if head[:4] != MAGIC:
                raise BadArtifact(
                    f"{path}: not a GGUF file (it begins with {head[:4]!r}); pass a .gguf file or a Hugging Face folder"
                )
            if len(head) < 8:
                raise BadArtifact(f"{path}: truncated GGUF: only {len(head)} bytes; copy or download the file again")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BadArtifact(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    return _parse(path, data)


def _parse(path: Path, data: mmap.mmap) -> GgufFile:
    cursor = _Cursor(path, data)
    cursor.skip(4, "the magic")
    version = cursor.u32("the version")
    if version not in (2, 3):
        if version & 0xFFFF == 0:
            raise BadArtifact(
                f"{path}: big-endian GGUF; convert it with `python -m gguf.scripts.gguf_convert_endian FILE little`"
            )
        raise BadArtifact(
            f"{path}: GGUF version {version} is not supported (2 and 3 are); convert the model again with a current llama.cpp"
        )
    tensor_count = cursor.u64("the tensor count")
    key_count = cursor.u64("the metadata count")
    if tensor_count > MAX_ENTRIES or key_count > MAX_ENTRIES:
        raise BadArtifact(
            f"{path}: damaged GGUF: {tensor_count} tensors and {key_count} metadata keys; download the file again"
        )
    spans: dict[str, _Span] = {}
    for index in range(key_count):
        key = cursor.string(f"metadata key {index}")
        spans[key] = cursor.value(key)
    directory_start = cursor.position
    entries = [_tensor_entry(cursor, index) for index in range(tensor_count)]
    span = spans.get("general.alignment")
    alignment = _decode(data, span, path) if span else 32
    if not isinstance(alignment, int) or alignment < 1:
        raise BadArtifact(
            f"{path}: GGUF general.alignment is {alignment!r}, expected a positive integer; convert the model again"
        )
    data_start = -(-cursor.position // alignment) * alignment
    tensors = tuple(GgufTensor(name, shape, type_id, data_start + offset) for name, shape, type_id, offset in entries)
    return GgufFile(path, data, spans, tensors, directory_start, data_start)


def _tensor_entry(cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string(f"tensor entry {index}")
    dims = cursor.u32(f"tensor {name}")
    if dims > MAX_DIMS:
        raise BadArtifact(
            f"{cursor.path}: GGUF tensor {name} has {dims} dimensions; the file is damaged, download it again"
        )
    shape = tuple(cursor.u64(f"tensor {name}") for _ in range(dims))
    type_id = cursor.u32(f"tensor {name}")
    return name, shape[::-1], type_id, cursor.u64(f"tensor {name}")


def _decode(data: mmap.mmap, span: _Span, path: Path) -> object:
    if span.item == STRING:
        strings, position = [], span.start
        for _ in range(span.count):
            after = position + 8
            position = after + int.from_bytes(data[position:after], "little")
            try:
                strings.append(data[after:position].decode())
            except UnicodeDecodeError as error:
                raise BadArtifact(
                    f"{path}: a GGUF metadata string is not UTF-8; the file is damaged, download it again"
                ) from error
        return strings if span.kind == ARRAY else strings[0]
    code = SCALARS[span.item]
    if span.kind == ARRAY:
        return list(struct.unpack(f"<{span.count}{code}", data[span.start : span.end]))
    return struct.unpack(f"<{code}", data[span.start : span.end])[0]
