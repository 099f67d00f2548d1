"""The products on AMX's tiles, with the tiles in software: configurations, indices and layouts on a CPU that has none."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from octavo_gpuworker.native import build as build_module
from octavo_gpuworker.native.abi import ERROR_BYTES, FORMATS
from octavo_gpuworker.native.build import AVX512, BASE_FLAGS, SOURCES, build, unit_flags
from octavo_gpuworker.native.library import Library, load_library

from .conftest import CONFIGS, Checkpoint, MakeModel, Step, native, oracle
from .test_model import BOUNDS, MIXED, error_of

EMULATED = "-DOCTAVO_EMULATE_TILES"
SENTINEL = -777.0


@pytest.fixture(scope="module")
def compiler(library: Library, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Skips where the emulation cannot run, which itself uses AVX-512."""
    if "avx512" not in library.isas:
        pytest.skip("this CPU has no avx512")
    found = next((name for name in build_module.COMPILERS if shutil.which(name)), None)
    if found is None or not unit_flags(found, "isa_avx512.cpp", tmp_path_factory.mktemp("probe")):
        pytest.skip("no compiler for avx512")
    return found


@pytest.fixture(scope="module")
def tiles(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The unit of AMX with emulated tiles, and no other kernels beside it."""
    made = tmp_path_factory.mktemp("tiles") / "tiles.so"
    objects = []
    for unit, flags in (("amx.cpp", AVX512), ("isa_avx512.cpp", ()), ("pack.cpp", ())):
        objects.append(str(made.with_name(f"{unit}.o")))
        command = [compiler, *BASE_FLAGS, "-O1", *flags, EMULATED, "-c", str(SOURCES / unit), "-o", objects[-1]]
        subprocess.run(command, check=True)
    subprocess.run([compiler, "-shared", "-o", str(made), *objects], check=True)
    return ctypes.CDLL(str(made))


def bf16(values: np.ndarray) -> np.ndarray:
    """Whole numbers that bf16 keeps, as its bits."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("depth", [32, 64, 96, 576])
@pytest.mark.parametrize("rows", [4, 5, 15, 16, 17, 31, 32, 33, 48, 63])
def test_products_are_exact_for_whole_numbers(rows: int, depth: int, tiles: ctypes.CDLL, library: Library) -> None:
    """Sums of small whole numbers are exact in float32 in any order, so a wrong index or layout shows in every bit."""
    rng = np.random.default_rng(rows * depth)
    columns, first_row, first_panel, panels, stride = 5 * 32, 3, 1, 3, 3 * 32 + 7
    x = rng.integers(-9, 10, (first_row + rows + 2, depth)).astype(np.float32)
    weights = rng.integers(-9, 10, (columns, depth)).astype(np.float32)
    packed = np.zeros(library.handle.octavo_packed_bytes(FORMATS["bf16"], columns, depth), np.uint8)
    assert not library.handle.octavo_pack(
        FORMATS["bf16"], weights.ctypes.data, columns, depth, 0, columns, depth, packed.ctypes.data
    )
    out = np.full((rows + 2, stride), SENTINEL, np.float32)
    halves, error = bf16(x), ctypes.create_string_buffer(ERROR_BYTES)
    call = tiles.octavo_emulated_product
    call.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
        *(ctypes.c_int64,) * 4,
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64),
    ]
    fault = call(
        *(halves.ctypes.data, first_row, rows, packed.ctypes.data, columns, depth, first_panel, panels),
        *(out.ctypes.data, stride, error, ERROR_BYTES),
    )
    assert not fault, error.value.decode()
    expected = x[first_row : first_row + rows] @ weights[first_panel * 32 : (first_panel + panels) * 32].T
    assert np.array_equal(out[:rows, : panels * 32], expected)
    assert (out[rows:] == SENTINEL).all() and (out[:, panels * 32 :] == SENTINEL).all()


CONFIG_FAULTS: dict[str, tuple[int, int]] = {
    "palette": (0, 2),
    "a row to start from": (1, 1),
    "a reserved byte": (5, 1),
    "out of range, tile 0": (16, 65),  # bytes per row
    "out of range, tile 3": (51, 0),  # no rows, but bytes
    "out of range, tile 6": (54, 17),
    "there are 8 tiles, tile 9": (57, 1),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_the_emulation_refuses_what_the_instruction_faults_on(fault: str, tiles: ctypes.CDLL) -> None:
    """So that the products above are known to be configured as the manual asks."""
    config = np.zeros(64, np.uint8)
    config[0], config[16:32:2], config[48:56] = 1, 64, 16
    error = ctypes.create_string_buffer(ERROR_BYTES)
    tiles.octavo_emulated_config.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
    assert not tiles.octavo_emulated_config(config.ctypes.data, error, ERROR_BYTES)
    at, value = CONFIG_FAULTS[fault]
    config[at] = value
    if "tile 9" in fault:
        config[34] = 64
    assert tiles.octavo_emulated_config(config.ctypes.data, error, ERROR_BYTES) == -1
    assert fault in error.value.decode()


@pytest.fixture
def emulated(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    folder = tmp_path_factory.mktemp("emulated")
    yield load_library(path=build(folder, extra_flags=(EMULATED, "-O1")))
    shutil.rmtree(folder)


@pytest.mark.soak
def test_whole_steps_on_emulated_tiles(
    emulated: Library, checkpoints: Callable[[str], Checkpoint], packed, make_model: MakeModel
) -> None:
    """Every architecture against the oracle, attention over many queries on tiles too; threads do not change the bits."""
    from octavo_gpuworker.native.model import NativeModel, new_pool

    long = Step([[i % 89 for i in range(300)], [5, 6, 7], [(3 * i) % 90 for i in range(41)]], [150, 1, 41], 16)
    for name in CONFIGS:
        checkpoint = checkpoints(name)
        for step in (MIXED, long):
            found = []
            for threads in (1, 2):
                pool = new_pool(checkpoint.config, "bf16", step.num_blocks, step.block_tokens)
                model = NativeModel(
                    emulated, checkpoint.config, packed(checkpoint, "bf16"),
                    kv_dtype="bf16", pool=pool, block_tokens=step.block_tokens, threads=threads,
                )  # fmt: skip
                assert model.isa == "amx"
                found.append(native(model, step))
                model.close()
            assert error_of(found[0], oracle(checkpoint, step)) < 2 * BOUNDS["bf16"]
            assert np.array_equal(*found)
            plain = native(make_model(checkpoint, step, isa="avx512"), step)
            assert error_of(found[0], plain) < BOUNDS["bf16"]
