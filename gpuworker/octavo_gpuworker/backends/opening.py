"""open_backend: which backend serves a manifest on this machine. A backend's library is imported only once it was chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable

from octavo.manifest import Manifest, ManifestError

from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.backends.native_open import NativeRefused, open_native

log = logging.getLogger(__name__)


def open_backend(manifest: Manifest, progress: Callable[[int, int], None]) -> Backend:
    """The loaded model with its pool: native on a CPU that it fits, else torch.

    Raises OctavoError with one line: BadArtifact, and ManifestError for settings that nothing here can serve, so with the
    reason when `engine.kernels: native` insists.
    """
    kernels = manifest.engine.kernels
    if kernels in ("auto", "native"):
        try:
            return open_native(manifest, progress)
        except NativeRefused as error:
            if kernels == "native":
                message = f"engine.kernels is native, but {error}; set engine.kernels to auto to let torch serve"
                raise ManifestError(message, field="engine.kernels") from error
            if manifest.engine.deterministic:
                message = f"engine.deterministic needs the native kernels, but {error}; leave it off to let torch serve"
                raise ManifestError(message, field="engine.deterministic") from error
            log.warning("native kernels are not used: %s; torch serves", error)
    if manifest.engine.deterministic:
        raise ManifestError(
            f"engine.deterministic needs the native kernels, and engine.kernels is {kernels}; set it to native or auto",
            field="engine.kernels",
        )
    from octavo_gpuworker.backends.torch_open import open_torch

    return open_torch(manifest, progress)
