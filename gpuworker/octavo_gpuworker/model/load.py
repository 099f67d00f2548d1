"""load_model: from model files to a decoder that is ready to run, or one line that says why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from blake3 import blake3
from octavo.artifacts import BadArtifact, ModelFiles, read_gguf_metadata, tokenizer_hash, weights_hash

from octavo_gpuworker.kernels import select_kernels
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.gguf_source import GgufSource
from octavo_gpuworker.model.needs import needs_of
from octavo_gpuworker.model.read_config import load_config
from octavo_gpuworker.model.safetensors_source import SafetensorsSource
from octavo_gpuworker.model.weights import Weights, load_weights, prepare_weights

DTYPES: Final = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
KV_DTYPES: Final = {**DTYPES, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
KV_LAYOUT: Final = "block-major/v1"
"""Order of KvPool.tensor's axes; a new order is a new name, so old blocks are never read as new ones."""


def load_model(
    files: ModelFiles,
    *,
    dtype: str = "bfloat16",
    kv_dtype: str = "auto",
    device: str = "cpu",
    kernels: str = "auto",
    block_tokens: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> Decoder:
    """Loads weights in `dtype` ("auto": see `auto_dtype`); `kv_dtype` "auto" is the same;
    `block_tokens` is the pool's, which kernels may refuse. `progress(done, total)` counts tensors.

    BadArtifact, one line: truncated or damaged file, wrong architecture, unknown quantization, missing or misshapen tensor.
    ValueError: `dtype`, `kv_dtype` or `kernels` is unknown or cannot be used on `device`.
    """
    target = torch.device(device)
    compute = auto_dtype(target) if dtype == "auto" else _dtype("dtype", dtype, DTYPES)
    kv = compute if kv_dtype == "auto" else _dtype("kv_dtype", kv_dtype, KV_DTYPES)
    needs = needs_of(load_config(files), device=target, dtype=compute, kv_dtype=kv, block_tokens=block_tokens)
    table = select_kernels(target, compute, kernels, needs)
    config, weights = _read(files, compute, target, progress)
    prepare_weights(weights, table)
    return Decoder(config, weights, table, kv_dtype=kv, fingerprint=_fingerprint(files, config, compute, kv))


def auto_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU and on CPUs with bf16 dot products (3 to 4 times float32 there), float32 elsewhere.

    Decided by what the machine can do, not by timing: equal machines must agree, since the dtype is part of the fingerprint.
    """
    if device.type != "cpu" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return torch.bfloat16
    return torch.float32


def _dtype(field: str, name: str, known: Mapping[str, torch.dtype]) -> torch.dtype:
    if name not in known:
        raise ValueError(f"{field} is {name!r}; expected auto, {', '.join(known)}")
    return known[name]


def _read(
    files: ModelFiles, dtype: torch.dtype, device: torch.device, progress: Callable[[int, int], None] | None
) -> tuple[ModelConfig, Weights]:
    config = load_config(files)
    if files.kind == "gguf":
        return config, load_weights(GgufSource(read_gguf_metadata(files.path), config), config, dtype, device, progress)
    source = SafetensorsSource(files)
    try:
        return config, load_weights(source, config, dtype, device, progress)
    finally:
        source.close()


def _fingerprint(files: ModelFiles, config: ModelConfig, compute: torch.dtype, kv: torch.dtype) -> bytes:
    """blake3 over whatever decides KV bytes (design section 4): not the block size, which the caller mixes in."""
    parts = {
        "weights": weights_hash(files),  # covers the quantization, which is in the tensor directory
        "tokenizer": tokenizer_hash(files),
        "config": repr(config),
        "compute": str(compute),
        "kv": str(kv),
        "layout": KV_LAYOUT,
        "shards": "1",
    }
    return blake3("".join(f"{key}={value}\n" for key, value in parts.items()).encode()).digest()


__all__ = ["BadArtifact", "auto_dtype", "load_config", "load_model"]
