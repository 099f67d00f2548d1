"""Building and loading the library where that fails: one line that says why, and never half a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from octavo_gpuworker.native import build as build_module
from octavo_gpuworker.native import library as library_module
from octavo_gpuworker.native.build import BuildError, build, fingerprint
from octavo_gpuworker.native.library import NativeUnavailable, load_library


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


def test_a_damaged_library_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"\x7fELF but no more")
    with pytest.raises(NativeUnavailable, match=r"broken\.so cannot be loaded"):
        load_library(path=path)
