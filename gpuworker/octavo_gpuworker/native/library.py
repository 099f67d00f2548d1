"""Loads the library: the one installed beside this file, else one built once into the user's cache."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal

from octavo_gpuworker.native import abi
from octavo_gpuworker.native.build import BuildError, build, is_whole, library_name, unavailable

Isa = Literal["auto", "amx", "avx512", "avx2"]
ISA_CODES: Final[dict[str, int]] = {"auto": 0, "avx2": 1, "avx512": 2, "amx": 3}


log = logging.getLogger(__name__)


class NativeUnavailable(RuntimeError):
    """The native kernels cannot be used here: one line that says why; the torch path serves then."""


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library and where it came from."""

    handle: ctypes.CDLL
    path: Path

    @property
    def isas(self) -> tuple[str, ...]:
        """What this CPU runs, best first: of amx, avx512, avx2."""
        bits = self.handle.octavo_isas()
        return tuple(name for name, code in reversed(ISA_CODES.items()) if code and bits >> code & 1)


def default_cache() -> Path:
    """Where libraries and packed weights are kept between starts: ~/.cache/octavo/native. NativeUnavailable: no home."""
    try:
        home = Path.home()
    except RuntimeError as error:  # an arbitrary user id in a container
        raise NativeUnavailable(f"there is no folder for libraries and packed weights: {error} Set HOME") from error
    return home / ".cache" / "octavo" / "native"


def load_library(cache: Path | None = None, *, path: Path | None = None, may_build: bool = True) -> Library:
    """The library at `path`, or the installed one, or one built into `cache`. NativeUnavailable: it cannot be built or run.

    Not `may_build`: only one that is there already, so that nobody waits for a compiler who can do without.

    Loading twice is cheap: the dynamic linker keeps one copy per file.
    """
    if reason := unavailable():
        raise NativeUnavailable(reason)
    found = path or _find_or_build(cache or default_cache(), may_build)
    if not is_whole(found):
        raise NativeUnavailable(
            f"{found} cannot be loaded (missing, or damaged: it differs from its checksum); delete it"
        )
    try:
        handle = ctypes.CDLL(str(found))
    except OSError as error:
        raise NativeUnavailable(f"{found} cannot be loaded ({error}); delete it") from error
    abi.declare(handle)
    if handle.octavo_abi() != abi.ABI:
        raise NativeUnavailable(f"{found} has ABI {handle.octavo_abi()}, expected {abi.ABI}; delete it")
    library = Library(handle, found)
    if not library.isas:
        raise NativeUnavailable("this CPU has no AVX2 with FMA")
    return library


def _find_or_build(cache: Path, may_build: bool) -> Path:
    name = library_name()
    installed = Path(__file__).parent / name
    built = cache / name
    for found in (installed, built):
        if is_whole(found):
            return found
    if not may_build:
        raise NativeUnavailable(f"there is no {name}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "build.lock").open("a") as lock:  # two workers that start together compile once
            _take(lock)
            if is_whole(built):
                return built
            for stale in cache.glob(".build-*"):  # of one that was killed: the lock is ours
                shutil.rmtree(stale, ignore_errors=True)
            log.info("compiling the native kernels, once for this version of them; on a slow machine it takes minutes")
            began_s = time.monotonic()
            made = build(cache)
            log.info("native kernels compiled in %.0f s: %s", time.monotonic() - began_s, made)
            return made
    except (BuildError, OSError) as error:
        raise NativeUnavailable(f"the library is not installed and cannot be built: {error}") from error


def _take(lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("waiting for the native kernels, which another process compiles")
        fcntl.flock(lock, fcntl.LOCK_EX)
