"""load_model: from model files to a decoder that is ready to run, or one line that says why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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
from octavo_gpuworker.model.weight_format import STORED, WeightFormat, check_format, quantized
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
    weights: WeightFormat = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Decoder:
    """Loads weights in `dtype` ("auto": see `auto_dtype`); `kv_dtype` "auto" is the same;
    `block_tokens` is the pool's, which kernels may refuse; `weights` is the form of the matrices. `progress(done, total)` counts tensors.

    BadArtifact, one line: truncated or damaged file, wrong architecture, unknown quantization, missing or misshapen tensor.
    ValueError: `dtype`, `kv_dtype`, `weights` or `kernels` is unknown or cannot be used on `device` or for this model.
    """
    target = torch.device(device)
    compute = auto_dtype(target) if dtype == "auto" else _dtype("dtype", dtype, DTYPES)
    kv = compute if kv_dtype == "auto" else _dtype("kv_dtype", kv_dtype, KV_DTYPES)
    config = load_config(files)
    check_format(weights, config, compute, files.kind)
    if config.latent is not None and kv.itemsize == 1:
        raise ValueError(f"kv_dtype is {kv_dtype!r}, but a latent cache has no scales; set kv_dtype to auto")
    stored = STORED.get(weights)
    needs = needs_of(config, device=target, dtype=compute, kv_dtype=kv, block_tokens=block_tokens, weight_dtype=stored)
    table = select_kernels(target, compute, kernels, needs)
    loaded = _read(files, config, compute, target, weights, progress)
    prepare_weights(loaded, table, partial(quantized, weights=weights) if stored is not None else None)
    return Decoder(config, loaded, table, kv_dtype=kv, fingerprint=_fingerprint(files, config, compute, kv, weights))


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
    files: ModelFiles,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    weights: WeightFormat,
    progress: Callable[[int, int], None] | None,
) -> Weights:
    if files.kind == "gguf":
        gguf = GgufSource(read_gguf_metadata(files.path), config)
        return load_weights(gguf, config, dtype, device, progress, weights)
    source = SafetensorsSource(files)
    try:
        return load_weights(source, config, dtype, device, progress, weights)
    finally:
        source.close()


def _fingerprint(
    files: ModelFiles, config: ModelConfig, compute: torch.dtype, kv: torch.dtype, weights: WeightFormat
) -> bytes:
    """blake3 over whatever decides KV bytes (design section 4): not the block size, which the caller mixes in."""
    parts = {
        "weights": weights_hash(files),  # covers the file's own quantization, which is in the tensor directory
        "format": weights if weights in STORED else "floating",
        "tokenizer": tokenizer_hash(files),
        "config": repr(config),
        "compute": str(compute),
        "kv": str(kv),
        "layout": KV_LAYOUT,
        "shards": "1",
    }
    return blake3("".join(f"{key}={value}\n" for key, value in parts.items()).encode()).digest()


__all__ = ["BadArtifact", "auto_dtype", "load_config", "load_model"]
