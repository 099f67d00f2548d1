"""Compiles the library: one unit per instruction set, chosen at run time. `python -m octavo_gpuworker.native.build [folder] [flags]`.

Needs a C++17 compiler on x86-64; no torch, no pybind. What it, or its assembler, does not know of AVX-512 BF16 (GCC 10, Clang 9) and AMX
(GCC 11, Clang 11) is left out: the library then has the instruction sets below.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "csrc"
COMPILERS: Final = ("c++", "g++", "clang++")
BASE_FLAGS: Final = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra", "-Wno-attributes",
    "-Wno-maybe-uninitialized", "-Wno-uninitialized",  # GCC's own AVX-512 headers
    "-ffp-contract=off",  # a * b + c rounds twice wherever it is not asked for: the sampler's bits are its twin's
)  # fmt: skip
AVX2: Final = ("-mavx2", "-mfma", "-mf16c")
AVX512: Final = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx512bf16")
AMX: Final = (*AVX512, "-mamx-tile", "-mamx-bf16")
UNIT_FLAGS: Final[dict[str, tuple[str, ...]]] = {
    "isa_avx2.cpp": AVX2,
    "isa_avx512.cpp": AVX512,
    "amx.cpp": AMX,
    # no exceptions are read, so a branch may become a select: the loops vectorize, and no bit changes
    "sampler.cpp": ("-mavx2", "-fno-trapping-math", "-fno-math-errno"),
}
"""Units without an entry run on any x86-64."""
PROBES: Final[dict[str, str]] = {
    "isa_avx512.cpp": "#include <immintrin.h>\n__m512 f(__m512 a, __m512bh b) { return _mm512_dpbf16_ps(a, b, b); }\n",
    "amx.cpp": 'void f() { __asm__ volatile("tdpbf16ps %tmm2, %tmm1, %tmm0"); }\n',
}
"""What compiler and assembler must take for a unit to have its flags; without them it brings no kernels."""

SEAL: Final = b"OCTVLIB1"
"""Ends a library, behind it the SHA-256 of what stands before: loading a truncated one would end the process by a signal."""


class BuildError(RuntimeError):
    """The library cannot be compiled here: one line that says why."""


def fingerprint() -> str:
    """12 hex digits over the sources and flags: part of the file's name, so a stale library is never loaded."""
    digest = hashlib.sha256(repr((BASE_FLAGS, sorted(UNIT_FLAGS.items()), sorted(PROBES.items()))).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def library_name() -> str:
    """File name of the library built from the present sources."""
    return f"liboctavo_native-{fingerprint()}.so"


def is_whole(path: Path) -> bool:
    """Whether the file is a library as `build` left it."""
    try:
        whole = path.read_bytes()
    except OSError:
        return False
    return whole[-40:] == SEAL + hashlib.sha256(whole[:-40]).digest()


def unavailable() -> str:
    """Why this machine cannot build or run the library, or an empty string."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"{platform.machine()} is not supported, x86-64 is"
    if sys.platform != "linux":
        return f"{sys.platform} is not supported, Linux is"
    return ""


def build(folder: Path, *, extra_flags: tuple[str, ...] = ()) -> Path:
    """Compiles into `folder` and returns the library's path; the file appears whole or not at all. BuildError otherwise."""
    if reason := unavailable():
        raise BuildError(reason)
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler found ({', '.join(COMPILERS)}); install g++ or clang++")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
        units = sorted(SOURCES.glob("*.cpp"))
        objects = [Path(work) / f"{unit.stem}.o" for unit in units]
        with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
            list(threads.map(lambda unit, made: _compile(compiler, unit, made, extra_flags), units, objects))
        made = Path(work) / "library.so"
        _run([compiler, "-shared", "-pthread", *extra_flags, "-o", str(made), *map(str, objects)])
        with made.open("ab") as file:
            file.write(SEAL + hashlib.sha256(made.read_bytes()).digest())
        target = folder / library_name()
        made.replace(target)
    return target


def unit_flags(compiler: str, unit: str, folder: Path) -> tuple[str, ...]:
    """The flags of a unit beside BASE_FLAGS, none where `compiler` fails its probe; `folder` is for what the probe makes."""
    flags, probe = UNIT_FLAGS.get(unit, ()), PROBES.get(unit)
    if probe is None:
        return flags
    source = folder / f"probe_{unit}"
    source.write_text(probe)
    command = [compiler, *flags, "-c", str(source), "-o", str(source.with_suffix(".o"))]
    return flags if subprocess.run(command, capture_output=True, check=False).returncode == 0 else ()


def _compile(compiler: str, unit: Path, made: Path, extra_flags: tuple[str, ...]) -> None:
    flags = (*BASE_FLAGS, *unit_flags(compiler, unit.name, made.parent), *extra_flags)
    _run([compiler, *flags, "-c", str(unit), "-o", str(made)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
        )
        raise BuildError(f"{Path(command[0]).name} failed: {lines[0].strip()}")


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent, extra_flags=tuple(sys.argv[2:])))
