"""open_torch: a TorchBackend out of a manifest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from octavo.artifacts import resolve_model
from octavo.errors import OctavoError
from octavo.manifest import Manifest
from octavo.rpc.host import EXIT_MISMATCH

from octavo_gpuworker.backends.sizes import model_len, pool_blocks
from octavo_gpuworker.backends.torch_backend import TorchBackend, torch_backend
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.load import load_model
from octavo_gpuworker.model.pool import KvPool, block_bytes


class NoDevice(OctavoError):
    """The manifest asks for a device that this machine does not have."""

    exit_code = EXIT_MISMATCH


def open_torch(manifest: Manifest, progress: Callable[[int, int], None]) -> TorchBackend:
    """Loads the model on the manifest's device and makes its pool. Raises OctavoError with one line."""
    engine = manifest.engine
    if engine.threads:
        torch.set_num_threads(engine.threads)
    device = engine.device if engine.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise NoDevice(
            "engine.device: cuda, but torch sees no CUDA device here; use auto or cpu", field="engine.device"
        )
    try:
        decoder = load_model(
            resolve_model(manifest.model.ref),
            dtype=engine.dtype,
            kv_dtype=engine.kv_dtype,
            device=device,
            kernels=engine.kernels,
            block_tokens=engine.kv_block_tokens,
            weights=engine.weights,
            progress=progress,
        )
    except ValueError as error:
        if isinstance(error, OctavoError):
            raise
        raise OctavoError(str(error)) from error
    pool = make_pool(manifest, decoder)
    longest = model_len(manifest, decoder.config.max_position, pool)
    return torch_backend(decoder, pool, cuda_graphs=engine.cuda_graphs, max_model_len=longest)


def make_pool(manifest: Manifest, decoder: Decoder) -> KvPool:
    """The paged pool. Raises OctavoError when it would be too small."""
    size = manifest.engine.kv_block_tokens
    num_blocks = pool_blocks(manifest, block_bytes(decoder.config, size, decoder.kv_dtype))
    return KvPool(decoder.config, num_blocks, size, decoder.kv_dtype, decoder.device)
