"""open_backend: which backend serves a manifest on this machine. A backend's library is imported only once it was chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable

from octavo.errors import OctavoError
from octavo.manifest import Manifest

from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.backends.native_open import NativeRefused, open_native

_WAY_OUT = {True: "set it to auto to let torch serve", False: "leave it off to let torch serve"}

log = logging.getLogger(__name__)


def open_backend(manifest: Manifest, progress: Callable[[int, int], None]) -> Backend:
    """The loaded model with its pool: native on a CPU that it fits, else torch.

    Raises OctavoError with one line: BadArtifact, settings that nothing here can serve, or the reason when
    `engine.kernels: native` insists.
    """
    kernels = manifest.engine.kernels
    if kernels in ("auto", "native"):
        try:
            return open_native(manifest, progress)
        except NativeRefused as error:
            if kernels == "native" or manifest.engine.deterministic:
                key = "kernels is native" if kernels == "native" else "deterministic needs the native kernels"
                raise OctavoError(f"engine.{key}, but {error}; {_WAY_OUT[kernels == 'native']}") from error
            log.warning("native kernels are not used: %s; torch serves", error)
    if manifest.engine.deterministic:
        raise OctavoError(
            f"engine.deterministic needs the native kernels, and engine.kernels is {kernels}; set it to native or auto"
        )
    from octavo_gpuworker.backends.torch_open import open_torch

    return open_torch(manifest, progress)
