"""open_backend: which backend serves a manifest on this machine. A backend's library is imported only once it was chosen."""

from __future__ import annotations

from collections.abc import Callable

from octavo.manifest import Manifest

from octavo_gpuworker.backends.backend import Backend


def open_backend(manifest: Manifest, progress: Callable[[int, int], None]) -> Backend:
    """The loaded model with its pool. Raises OctavoError (BadArtifact) with one line."""
    from octavo_gpuworker.backends.torch_open import open_torch

    return open_torch(manifest, progress)
