"""Packed files: kept, shared, found damaged, and equal to what they were packed from."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from octavo.artifacts import BadArtifact
from octavo_gpuworker.native.library import Library
from octavo_gpuworker.native.packer import matrices_of
from octavo_gpuworker.native.packing import open_packed, pack

from .conftest import CONFIGS, TINY, make_checkpoint, unpacked


def packing(folder: Path, library: Library, weights: str = "bf16", name: str = "llama", seed: int = 0):
    checkpoint = make_checkpoint(folder / "model", CONFIGS[name], seed)
    return checkpoint, pack(checkpoint.files, checkpoint.config, weights, library, cache=folder / "cache")


@pytest.mark.parametrize(("weights", "bound"), [("bf16", 0.0), ("int8", 0.0045), ("int4", 0.04)])
def test_a_packed_matrix_is_the_tensor_within_its_rounding(
    weights: str, bound: float, library: Library, tmp_path: Path
) -> None:
    """int8: half a step of largest / 127; int4: half a step of a fifteenth of the group's range, and its float16 scale."""
    from safetensors.torch import load_file

    checkpoint, packed = packing(tmp_path, library, weights)
    stored = load_file(checkpoint.files.weights[0])
    for plan in matrices_of(TINY, weights):
        whole = unpacked(library, packed, plan)
        for part in plan.parts:
            expected = stored[f"{part.tensor}.weight"].float()
            rows = [part.first + (r // part.run) * part.step + r % part.run for r in range(part.rows)]
            allowed = bound * expected.abs().amax(1, keepdim=True) * (2 if weights == "int4" else 1)
            assert ((whole[rows][:, : plan.depth] - expected).abs() <= allowed).all(), plan.name


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1])
def test_gguf_blocks_are_repacked_without_loss(kind: GGMLQuantizationType, library: Library) -> None:
    values = np.random.default_rng(0).standard_normal((40, 96)).astype(np.float32)
    raw = np.ascontiguousarray(quantize(values, kind))
    size = library.handle.octavo_packed_bytes(2, 64, 96)
    data, out = np.zeros(size, np.uint8), np.zeros((64, 96), np.float32)
    assert library.handle.octavo_pack_gguf_int4(kind.value, raw.ctypes.data, 40, 96, 8, 64, 96, data.ctypes.data) == 0
    library.handle.octavo_unpack(2, data.ctypes.data, 64, 96, out.ctypes.data)
    assert np.abs(out[8:48] - dequantize(raw, kind)).max() < 2e-3  # Q4_0's offset of -8 d is rounded to float16
    assert not out[:8].any() and not out[48:].any()
    assert library.handle.octavo_pack_gguf_int4(kind.value, raw.ctypes.data, 60, 96, 8, 64, 96, data.ctypes.data) == -1


def packed_int8(library: Library, values: np.ndarray) -> np.ndarray:
    """What is left of [columns, depth] float32 after packing to int8."""
    columns, depth = values.shape
    data = np.zeros(library.handle.octavo_packed_bytes(1, columns, depth), np.uint8)
    out = np.zeros_like(values)
    source = np.ascontiguousarray(values)
    assert library.handle.octavo_pack(1, source.ctypes.data, columns, depth, 0, columns, depth, data.ctypes.data) == 0
    library.handle.octavo_unpack(1, data.ctypes.data, columns, depth, out.ctypes.data)
    return out


def test_what_was_q8_0_stays_as_it_was(library: Library) -> None:
    values = np.random.default_rng(1).standard_normal((32, 96)).astype(np.float32)
    stored = dequantize(quantize(values, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    assert np.array_equal(packed_int8(library, stored), stored)


@pytest.mark.parametrize(("kind", "bound"), [(GGMLQuantizationType.Q4_0, 0.001), (GGMLQuantizationType.Q4_1, 0.3)])
def test_int8_of_4_bit_blocks_keeps_their_steps(kind: GGMLQuantizationType, bound: float, library: Library) -> None:
    """Error over what one scale of largest / 127 leaves: Q4_0 has only float16's rounding, Q4_1 the rest of its offset."""
    values = np.random.default_rng(5).standard_normal((64, 320)).astype(np.float32)
    raw = np.ascontiguousarray(quantize(values, kind))
    stored = dequantize(raw, kind)
    data = np.zeros(library.handle.octavo_packed_bytes(1, 64, 320), np.uint8)
    out = np.zeros_like(stored)
    pack_raw = library.handle.octavo_pack_gguf_int8
    assert pack_raw(kind.value, raw.ctypes.data, 64, 320, 0, 64, 320, data.ctypes.data) == 0
    library.handle.octavo_unpack(1, data.ctypes.data, 64, 320, out.ctypes.data)
    assert ((out - stored) ** 2).mean() < bound * ((packed_int8(library, stored) - stored) ** 2).mean()
    assert np.abs(out - stored).max() <= 0.51 * np.abs(stored).max() / 63.5
    assert pack_raw(kind.value, raw.ctypes.data, 65, 320, 0, 64, 320, data.ctypes.data) == -1
    raw.view(np.uint8)[0, :2] = (0, 0x7C)  # an infinite step
    assert pack_raw(kind.value, raw.ctypes.data, 64, 320, 0, 64, 320, data.ctypes.data) == -2


@pytest.mark.parametrize("size", [3e-8, 1e-6, 1e-4, 1.0, 8e6])
def test_int8_groups_of_any_size_lie_within_half_a_step(size: float, library: Library) -> None:
    """A step is the largest over 127 as float16 has it, whose numbers end 2^-24 apart."""
    values = (np.random.default_rng(2).uniform(-1, 1, (32, 64)) * size).astype(np.float32)
    largest = np.abs(values).reshape(32, 2, 32).max(2).repeat(32, 1)
    step = largest / 127 * 1.001 + 2.0**-24
    assert (np.abs(packed_int8(library, values) - values) <= 0.51 * step).all()


def test_the_second_start_maps_the_first_ones_file(library: Library, tmp_path: Path) -> None:
    checkpoint, first = packing(tmp_path, library)
    written = first.path.stat()
    counted: list[int] = []
    second = pack(
        checkpoint.files, TINY, "bf16", library, cache=tmp_path / "cache", progress=lambda done, _: counted.append(done)
    )
    assert second.path == first.path and second.path.stat().st_ino == written.st_ino and not counted
    assert np.array_equal(first.data, second.data) and not second.data.flags.writeable
    assert packing(tmp_path, library, "int8")[1].path != first.path
    assert packing(tmp_path, library, seed=1)[1].path != first.path  # other weights, another file


@pytest.mark.parametrize("place", ["magic", "length", "header", "data", "cut", "empty"])
def test_a_damaged_file_is_found_and_packed_again(
    place: str, library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint, packed = packing(tmp_path, library)
    whole = packed.path.read_bytes()
    at = {"magic": 0, "length": 9, "header": 60, "data": len(whole) - 700}.get(place)
    broken = whole[:-100] if place == "cut" else b"" if place == "empty" else bytearray(whole)
    if at is not None:
        broken[at] ^= 0x10
    packed.path.unlink()  # a mapped file must not change under its readers
    packed.path.write_bytes(broken)
    with pytest.raises(BadArtifact, match="packed weights"):
        open_packed(packed.path)
    again = pack(checkpoint.files, TINY, "bf16", library, cache=tmp_path / "cache")
    assert again.path.read_bytes() == whole
    assert "packing it again" in caplog.text
    assert not list((tmp_path / "cache").glob(".packing-*"))


def test_two_workers_that_start_together_share_one_file(library: Library, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", TINY)
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[3].split(':')\n"
        "from octavo.artifacts import ModelFiles; from octavo_gpuworker.model.config import ModelConfig\n"
        "from octavo_gpuworker.native.library import load_library; from octavo_gpuworker.native.packing import pack\n"
        "folder = Path(sys.argv[1]); config = eval(sys.argv[4])\n"
        "files = ModelFiles('model', 'hf', folder, (folder / 'model.safetensors',))\n"
        "packed = pack(files, config, 'bf16', load_library(path=Path(sys.argv[5])), cache=Path(sys.argv[2]))\n"
        "print(packed.path, int(packed.data.astype('u8').sum())); assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code, str(checkpoint.files.path), str(tmp_path / "cache"), ":".join(sys.path)]
    command += [repr(TINY), str(library.path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert answers[0] == answers[1] != ""
    assert len(list((tmp_path / "cache").glob("*.octpack"))) == 1
    assert multiprocessing.active_children() == [] and os.path.isdir(tmp_path)


def test_a_full_disk_is_an_error_and_no_signal(library: Library, tmp_path: Path, monkeypatch) -> None:
    """Pages of a sparse file that the disk cannot back end the process when they are written."""

    def full(descriptor: int, start: int, size: int) -> None:
        assert start == 0 and size > 200_000
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoint = make_checkpoint(tmp_path / "model", TINY)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        pack(checkpoint.files, TINY, "bf16", library, cache=tmp_path / "cache")
    assert [entry.suffix for entry in (tmp_path / "cache").iterdir()] == [".lock"]


def test_what_a_killed_worker_left_is_cleared_by_the_next(library: Library, tmp_path: Path) -> None:
    checkpoint, packed = packing(tmp_path, library)
    packed.path.unlink()
    cache = tmp_path / "cache"
    (cache / f".packing-{packed.path.stem}-killed").write_bytes(b"half")
    (cache / ".packing-of-another-that-runs").write_bytes(b"half")
    pack(checkpoint.files, TINY, "bf16", library, cache=cache)
    assert [entry.name for entry in cache.glob(".packing-*")] == [".packing-of-another-that-runs"]


def test_a_cache_that_cannot_be_written_is_still_read(library: Library, tmp_path: Path, monkeypatch) -> None:
    """An image with packed weights in a read-only layer: neither folder nor lock is touched."""
    checkpoint, packed = packing(tmp_path, library)

    def read_only(*args, **options) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    again = pack(checkpoint.files, TINY, "bf16", library, cache=tmp_path / "cache")
    assert again.path == packed.path
    with pytest.raises(PermissionError):
        pack(checkpoint.files, TINY, "int8", library, cache=tmp_path / "cache")


@pytest.mark.parametrize("what", ["another format", "another model"])
def test_a_whole_file_of_something_else_is_packed_again(what: str, library: Library, tmp_path: Path) -> None:
    checkpoint, packed = packing(tmp_path, library)
    other = packing(tmp_path / "b", library, *(("int8",) if what == "another format" else ("bf16", "qwen2")))[1]
    whole = packed.path.read_bytes()
    os.replace(other.path, packed.path)
    open_packed(packed.path)  # nothing is wrong with it but its place
    again = pack(checkpoint.files, TINY, "bf16", library, cache=tmp_path / "cache")
    assert again.format == "bf16" and again.path.read_bytes() == whole


@pytest.mark.parametrize(("weights", "value"), [("int8", float("nan")), ("int4", float("inf")), ("int4", 1e6)])
def test_values_that_a_format_cannot_keep_are_named(
    weights: str, value: float, library: Library, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    checkpoint = make_checkpoint(tmp_path / "model", TINY)
    path = checkpoint.files.weights[0]
    tensors = load_file(path)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, path)
    with pytest.raises(BadArtifact, match=rf"layers\.1\.mlp\.up_proj\.weight has values that {weights} cannot keep"):
        pack(checkpoint.files, TINY, weights, library, cache=tmp_path / "cache")
    pack(checkpoint.files, TINY, "bf16", library, cache=tmp_path / "cache")


def test_a_model_that_cannot_be_packed_leaves_nothing_behind(library: Library, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    checkpoint = make_checkpoint(tmp_path / "model", TINY)
    path = checkpoint.files.weights[0]
    tensors = load_file(path)
    lost = tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, path)
    with pytest.raises(BadArtifact, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        pack(checkpoint.files, TINY, "bf16", library, cache=tmp_path / "cache")
    save_file({**tensors, "model.layers.1.mlp.up_proj.weight": torch.zeros(3, 3)}, path)
    with pytest.raises(BadArtifact, match=r"has shape \[3, 3\], the config asks for \[96, 64\]"):
        pack(checkpoint.files, TINY, "bf16", library, cache=tmp_path / "cache")
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(BadArtifact, match="truncated safetensors"):
        pack(checkpoint.files, TINY, "bf16", library, cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="weights is 'fp4'; expected bf16, int8, int4"):
        pack(checkpoint.files, TINY, "fp4", library, cache=tmp_path / "cache")
    assert lost.shape == (96, 64)
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.suffix != ".lock"]
