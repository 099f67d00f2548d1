"""Both backends over the default model: the native one and the torch oracle in the same precision."""

from __future__ import annotations

import pytest
from octavo.manifest import Engine as EngineSettings
from octavo.manifest import Manifest
from octavo_gpuworker.backends.native_backend import NativeBackend
from octavo_gpuworker.backends.native_open import NativeRefused, open_native
from octavo_gpuworker.backends.torch_backend import TorchBackend
from octavo_gpuworker.backends.torch_open import open_torch


def native_of(**settings) -> NativeBackend:
    """A native backend with these engine settings; skips the test where the machine cannot have one."""
    try:
        return open_native(
            Manifest(engine=EngineSettings(device="cpu", kv_num_blocks=600, **settings)), lambda done, total: None
        )
    except NativeRefused as error:
        pytest.skip(f"no native kernels here: {error}")


@pytest.fixture(scope="session")
def native() -> NativeBackend:
    return native_of()


@pytest.fixture(scope="session")
def oracle() -> TorchBackend:
    settings = EngineSettings(device="cpu", kv_num_blocks=600, kernels="torch", dtype="bfloat16")
    return open_torch(Manifest(engine=settings), lambda done, total: None)
