"""Building and loading the library where that fails: one line that says why, and never half a file."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from octavo_gpuworker.native import build as build_module
from octavo_gpuworker.native import library as library_module
from octavo_gpuworker.native.build import AVX2, AVX512, BASE_FLAGS, SOURCES, BuildError, build, fingerprint, unit_flags
from octavo_gpuworker.native.library import Library, NativeUnavailable, load_library


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module.shutil, "which", lambda name: None)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found .*; install g\+\+ or clang\+\+"):
        build(tmp_path)
    monkeypatch.setattr(library_module, "library_name", lambda: "liboctavo_native-none.so")
    with pytest.raises(NativeUnavailable, match="not installed and cannot be built: no C"):
        load_library(tmp_path)


def test_a_source_that_does_not_compile_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, made = tmp_path / "csrc", tmp_path / "made"
    sources.mkdir()
    (sources / "bad.cpp").write_text("int f() { return nothing_of_this_name; }\n")
    before = fingerprint()
    monkeypatch.setattr(build_module, "SOURCES", sources)
    assert fingerprint() != before  # other sources, another file name
    with pytest.raises(BuildError, match=r"failed: .*nothing_of_this_name|no C\+\+ compiler"):
        build(made)
    assert not list(made.glob("*"))


@pytest.mark.parametrize(
    ("machine", "system", "message"), [("aarch64", "linux", "aarch64"), ("x86_64", "darwin", "darwin")]
)
def test_other_machines_take_the_torch_path(
    machine: str, system: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module.platform, "machine", lambda: machine)
    monkeypatch.setattr(build_module.sys, "platform", system)
    with pytest.raises(NativeUnavailable, match=f"{message} is not supported"):
        load_library()


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.5, 0.99])
def test_a_truncated_library_is_no_crash(share: float, library: Library, tmp_path: Path) -> None:
    """The dynamic linker maps a truncated file all the same, and touching what is missing is SIGBUS."""
    path = tmp_path / "broken.so"
    whole = library.path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(NativeUnavailable, match=r"broken\.so cannot be loaded"):
        load_library(path=path)


def test_a_damaged_library_in_the_cache_is_built_again(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built = []

    def build(folder: Path) -> Path:
        built.append(folder)
        made = folder / library_module.library_name()
        made.write_bytes(library.path.read_bytes())
        return made

    monkeypatch.setattr(library_module, "build", build)
    monkeypatch.setattr(library_module, "library_name", lambda: "liboctavo_native-other.so")
    (tmp_path / "liboctavo_native-other.so").write_bytes(library.path.read_bytes()[:-1])
    (tmp_path / ".build-killed").mkdir()
    caplog.set_level("INFO")
    assert load_library(tmp_path).isas == library.isas
    before, after = [record.getMessage() for record in caplog.records]
    assert before.startswith("compiling the native kernels") and after.startswith("native kernels compiled in 0 s: ")
    assert built == [tmp_path] and not (tmp_path / ".build-killed").exists()
    load_library(tmp_path)
    assert len(built) == 1 and len(caplog.records) == 2


def test_one_that_waits_for_another_that_compiles_says_so(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_module, "library_name", lambda: "liboctavo_native-other.so")
    caplog.set_level("INFO")
    with (tmp_path / "build.lock").open("a") as lock, ThreadPoolExecutor(1) as other:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = other.submit(load_library, tmp_path)
        while not caplog.records:
            time.sleep(0.001)
        (tmp_path / "liboctavo_native-other.so").write_bytes(library.path.read_bytes())
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert waiting.result().isas == library.isas
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for the native kernels, which another process compiles"
    ]


def test_a_user_without_a_home_takes_the_torch_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(library_module.Path, "home", homeless)
    monkeypatch.setattr(library_module, "library_name", lambda: "liboctavo_native-other.so")
    with pytest.raises(NativeUnavailable, match="Set HOME"):
        load_library()


def test_threads_that_the_system_refuses_are_an_error(library: Library) -> None:
    """In a process of its own: its address space is bounded, so that stacks of threads run out."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the sanitizer itself needs an address space without bounds")
    code = (
        "import ctypes, resource, sys\n"
        "library = ctypes.CDLL(sys.argv[1]); library.octavo_peak_macs_per_s.restype = ctypes.c_double\n"
        "resource.setrlimit(resource.RLIMIT_AS, (300_000_000, 300_000_000))\n"
        "print(library.octavo_peak_macs_per_s(0, 1000, 0), library.octavo_peak_macs_per_s(0, 2, 0) > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(library.path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0.0 True\n"), done.stderr


def test_what_an_older_compiler_lacks_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    """A compiler that refuses the flags of AVX-512 BF16 and AMX, as one of before 2020 does: those units are empty then."""
    found = next((path for name in build_module.COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no compiler")
    old = tmp_path / "bin" / "c++"
    old.parent.mkdir()
    old.write_text(
        "#!/bin/sh\n"
        'for flag in "$@"; do case $flag in -mamx*|-mavx512bf16) echo "error: unrecognized $flag" >&2; exit 1;; esac; done\n'
        f'exec {found} "$@"\n'
    )
    old.chmod(0o755)
    for unit in ("isa_avx512.cpp", "amx.cpp"):
        assert unit_flags(str(old), unit, tmp_path) == ()
        made = tmp_path / f"{unit}.o"
        subprocess.run([old, *BASE_FLAGS, "-c", SOURCES / unit, "-o", made], check=True)
        assert made.stat().st_size < 10_000
    assert unit_flags(str(old), "isa_avx2.cpp", tmp_path) == AVX2
    if "avx512" in library.isas:
        assert unit_flags(found, "isa_avx512.cpp", tmp_path) == AVX512


@pytest.mark.soak
def test_the_library_of_an_older_compiler_serves_with_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "unit_flags", lambda compiler, unit, folder: without_avx512(unit))
    made = load_library(path=build(tmp_path, extra_flags=("-O1",)))
    assert made.isas == ("avx2",)


def without_avx512(unit: str) -> tuple[str, ...]:
    return () if unit in ("isa_avx512.cpp", "amx.cpp") else build_module.UNIT_FLAGS.get(unit, ())
