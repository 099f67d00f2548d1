"""open_native: a NativeBackend out of a manifest, or the reason why the native kernels do not take it. No torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from blake3 import blake3
from octavo.artifacts import ModelFiles, resolve_model, tokenizer_hash, weights_hash
from octavo.errors import OctavoError
from octavo.manifest import Manifest, ManifestError

from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.backends.native_backend import NativeBackend
from octavo_gpuworker.backends.native_pool import NativePool
from octavo_gpuworker.backends.sizes import pool_blocks
from octavo_gpuworker.block_shape import BlockShape
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.read_config import load_config
from octavo_gpuworker.native.abi import FORMATS
from octavo_gpuworker.native.library import ISA_CODES, Library, NativeUnavailable, default_cache, load_library
from octavo_gpuworker.native.model import KvDtype, NativeModel, block_bytes, new_pool, refusal
from octavo_gpuworker.native.packing import Format, Packed, pack

DTYPES: Final = ("auto", "bfloat16")
KV_DTYPES: Final[dict[str, KvDtype]] = {"auto": "bf16", "bfloat16": "bf16", "float32": "f32", "int8": "int8"}
WEIGHTS: Final[dict[str, Format]] = {"auto": "bf16", "bf16": "bf16", "int8": "int8", "int4": "int4"}
GPU_NODES: Final = ("/dev/nvidia0", "/dev/dxg")
MOST_THREADS_PER_CORE: Final = 8


class NativeRefused(Exception):
    """The native kernels cannot serve this manifest here; one line that says why."""


def device_refusal(manifest: Manifest) -> str:
    """Why another device serves, or an empty string."""
    engine = manifest.engine
    if engine.device == "cuda" or (engine.device == "auto" and any(Path(node).exists() for node in GPU_NODES)):
        return (
            "a GPU is there; set engine.device to cpu to leave it alone"
            if engine.device == "auto"
            else "engine.device is cuda"
        )
    return ""


def manifest_refusal(manifest: Manifest) -> str:
    """Why the settings rule the native kernels out on a CPU, or an empty string; reads no file of the model."""
    engine = manifest.engine
    for name, value, taken in (
        ("dtype", engine.dtype, DTYPES),
        ("kv_dtype", engine.kv_dtype, tuple(KV_DTYPES)),
        ("weights", engine.weights, tuple(WEIGHTS)),
    ):
        if value not in taken:
            return f"engine.{name} is {value}; the native kernels take {', '.join(taken)}"
    return ""


def model_refusal(manifest: Manifest) -> str:
    """Why the settings or the model rule the native kernels out on a CPU, or an empty string. OctavoError: the model itself is at fault."""
    if reason := manifest_refusal(manifest):
        return reason
    engine, config = manifest.engine, load_config(resolve_model(manifest.model.ref))
    return refusal(config, WEIGHTS[engine.weights], kv_dtype=KV_DTYPES[engine.kv_dtype])


def isas() -> tuple[str, ...]:
    """The instruction sets that the library runs here, best first. Raises NativeUnavailable with the reason when it cannot."""
    return load_library().isas


def describe() -> str:
    """One line for the operation table: what a whole step would run on, or why it would not."""
    try:
        return f"step: native-{isas()[0]} (one call per step; where it serves, the rows below are not used)"
    except NativeUnavailable as error:
        return f"step: by the rows below (not native: {error})"


def open_native(manifest: Manifest, progress: Callable[[int, int], None]) -> NativeBackend:
    """Maps or packs the weights and makes the pool. NativeRefused as above; OctavoError (BadArtifact) when the model itself is at fault."""
    if reason := device_refusal(manifest) or manifest_refusal(manifest):
        raise NativeRefused(reason)
    engine = manifest.engine
    threads = thread_count(engine.threads)
    weights, kv_dtype = WEIGHTS[engine.weights], KV_DTYPES[engine.kv_dtype]
    files = resolve_model(manifest.model.ref)
    config = load_config(files)
    if reason := refusal(config, weights, kv_dtype=kv_dtype):
        raise NativeRefused(reason)
    try:
        library, cache = load_library(), default_cache()
    except NativeUnavailable as error:
        raise NativeRefused(str(error)) from error
    weights_blake3 = weights_hash(files)
    try:
        packed = pack(files, config, weights, library, cache=cache, weights_blake3=weights_blake3, progress=progress)
    except OSError as error:
        raise NativeRefused(f"the packed weights cannot be kept in {cache}: {error}") from error
    size = engine.kv_block_tokens
    num_blocks = pool_blocks(manifest, block_bytes(config, kv_dtype, size))
    try:
        pool = new_pool(config, kv_dtype, num_blocks, size)
    except (MemoryError, ValueError) as error:  # beyond what the system promises, or beyond what an array can be
        field = "engine.kv_num_blocks" if engine.kv_num_blocks else "engine.kv_pool_bytes"
        message = f"{field}: a KV pool of {num_blocks} blocks cannot be had ({error}); give less"
        raise ManifestError(message, field=field) from error
    try:
        model = NativeModel(
            library,
            config,
            packed,
            kv_dtype=kv_dtype,
            pool=pool,
            block_tokens=size,
            threads=threads,
            isa=engine.native_isa,
            deterministic=engine.deterministic,
        )
    except ValueError as error:
        raise OctavoError(f"the native kernels refuse the settings: {error}") from error
    return NativeBackend(
        model,
        NativePool(pool, size, _block_shape(config, kv_dtype, size)),
        fingerprint=_fingerprint(files, config, weights_blake3, weights, kv_dtype, size),
        limits=lambda: native_limits(library, model, packed),
    )


def thread_count(asked: int) -> int:
    """Compute threads; 0 asks for one per core. OctavoError for so many that each step would wait for each of them in turn."""
    cores = len(os.sched_getaffinity(0))
    if asked > MOST_THREADS_PER_CORE * cores:
        raise OctavoError(
            f"engine.threads: {asked} on {cores} cores would hardly move; give at most {cores}, or 0 for all of them"
        )
    return asked or cores


def _block_shape(config: ModelConfig, kv_dtype: str, block_tokens: int) -> BlockShape:
    dtype = {"bf16": "bfloat16", "f32": "float32", "f16": "float16"}.get(kv_dtype, kv_dtype)
    return BlockShape(config.layers, 2, config.kv_heads, block_tokens, config.head_dim, dtype)


def _fingerprint(
    files: ModelFiles, config: ModelConfig, weights_blake3: str, weights: str, kv_dtype: str, block_tokens: int
) -> bytes:
    """As model/load.py's, with the block size: other weights, another kv_dtype or other kernels never share a block."""
    parts = {
        "weights": weights_blake3,
        "tokenizer": tokenizer_hash(files),
        "config": repr(config),
        "compute": f"native {weights}",
        "kv": kv_dtype,
        "layout": f"block-major/v1 {block_tokens}",
    }
    return blake3("".join(f"{key}={value}\n" for key, value in parts.items()).encode()).digest()


def native_limits(library: Library, model: NativeModel, packed: Packed) -> Limits:
    """Bytes of the packed file that a step reads, and speeds measured by the library with the model's threads."""
    config, threads, isa = model.config, model.threads, ISA_CODES[model.isa]
    token_macs = config.layers * config.d_model * (config.qkv_rows + config.q_heads * config.head_dim + 3 * config.ffn)
    read = sum(size for name, (_, size) in packed.entries.items() if name != "embedding")
    body = packed.data
    handle = library.handle
    return Limits(
        weight_bytes=read,
        kv_token_bytes=model.pool.shape[1] // model.block_tokens,
        token_macs=token_macs,
        head_macs=config.d_model * config.vocab_size,
        pair_macs=2 * config.layers * config.q_heads * config.head_dim,
        threads=threads,
        stream_bytes_per_s=lambda: float(handle.octavo_stream_bytes_per_s(body.ctypes.data, len(body), threads, isa)),
        peak_macs_per_s=lambda: float(handle.octavo_peak_macs_per_s(FORMATS[packed.format], threads, isa)),
    )
