"""Operations of the decoder, one per file with its torch twin (the oracle); Triton rows are loaded where they are chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import torch

from octavo_gpuworker.kernels.activation import gelu_mul_torch, silu_mul_torch, soft_cap_torch
from octavo_gpuworker.kernels.block_moves import copy_blocks_torch, gather_blocks_torch, scatter_blocks_torch
from octavo_gpuworker.kernels.linear import linear_onednn, linear_torch, onednn_unavailable, pack_onednn
from octavo_gpuworker.kernels.mla import mla_decode_torch, mla_prefill_torch
from octavo_gpuworker.kernels.moe import moe_torch
from octavo_gpuworker.kernels.needs import KernelNeeds, capability_of
from octavo_gpuworker.kernels.paged_attention import paged_attention_torch
from octavo_gpuworker.kernels.quant_gemm import quant_linear_torch
from octavo_gpuworker.kernels.rms_norm import add_rms_norm_torch, rms_norm_torch
from octavo_gpuworker.kernels.sampling_ops import sample_torch
from octavo_gpuworker.kernels.store_kv import store_kv_torch
from octavo_gpuworker.kernels.table import Implementation, KernelTable, everywhere
from octavo_gpuworker.kernels.triton import requirements

__all__ = ["OPERATIONS", "KernelNeeds", "KernelTable", "describe", "select_kernels"]


def _triton(path: str, refuses: Callable[[KernelNeeds], str], gives_way: str = "") -> Implementation:
    return Implementation(
        "triton", f"octavo_gpuworker.kernels.triton.{path}", requirements.machine, refuses, gives_way=gives_way
    )


OPERATIONS: Final[dict[str, tuple[Implementation, ...]]] = {
    "linear": (
        _triton(
            "linear:linear_triton",
            requirements.projection,
            gives_way="cuBLAS through torch until bench/gpu.py measures it slower",
        ),
        Implementation("onednn", linear_onednn, onednn_unavailable, prepare=pack_onednn),
        Implementation("torch", linear_torch),
    ),
    "rms_norm": (
        _triton("rms_norm:rms_norm_triton", requirements.row_norm),
        Implementation("torch", rms_norm_torch),
    ),
    "add_rms_norm": (
        _triton("rms_norm:add_rms_norm_triton", requirements.row_norm),
        Implementation("torch", add_rms_norm_torch),
    ),
    "store_kv": (
        _triton("store_kv:store_kv_triton", requirements.paged),
        Implementation("torch", store_kv_torch),
    ),
    "paged_attention": (
        _triton("attention:paged_attention_triton", requirements.attention),
        Implementation("torch", paged_attention_torch),
    ),
    "silu_mul": (
        _triton("activation:silu_mul_triton", requirements.feed_forward),
        Implementation("torch", silu_mul_torch),
    ),
    "gelu_mul": (
        _triton("activation:gelu_mul_triton", requirements.feed_forward),
        Implementation("torch", gelu_mul_torch),
    ),
    "soft_cap": (
        _triton("activation:soft_cap_triton", requirements.dtype),
        Implementation("torch", soft_cap_torch),
    ),
    "gather_blocks": (
        _triton("block_moves:gather_blocks_triton", everywhere),
        Implementation("torch", gather_blocks_torch),
    ),
    "scatter_blocks": (
        _triton("block_moves:scatter_blocks_triton", everywhere),
        Implementation("torch", scatter_blocks_torch),
    ),
    "copy_blocks": (
        _triton("block_moves:copy_blocks_triton", everywhere),
        Implementation("torch", copy_blocks_torch),
    ),
    "sample": (
        _triton("sampling:sample_triton", requirements.sampling),
        Implementation("torch", sample_torch),
    ),
    "quant_linear": (
        _triton("quant_gemm:quant_linear_triton", requirements.quantized_product),
        Implementation("torch", quant_linear_torch),
    ),
    "moe": (
        _triton("moe:moe_triton", requirements.experts),
        Implementation("torch", moe_torch),
    ),
    "mla_decode": (
        _triton("mla:mla_decode_triton", requirements.latent),
        Implementation("torch", mla_decode_torch),
    ),
    "mla_prefill": (
        _triton(
            "mla:mla_prefill_triton",
            requirements.latent,
            gives_way="expanded keys through torch's SDPA until bench/gpu.py measures them slower",
        ),
        Implementation("torch", mla_prefill_torch),
    ),
}


def select_kernels(
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    prefer: str = "auto",
    needs: KernelNeeds | None = None,
) -> KernelTable:
    """The operations for `device`, `dtype` and a model's `needs` (None: any model); logs one line each.

    ValueError as in `table.choose`.
    """
    asked = needs or KernelNeeds(torch.device(device), dtype, dtype, capability=capability_of(torch.device(device)))
    return KernelTable(OPERATIONS, dataclasses.replace(asked, explicit=prefer in ("triton", "strict")), prefer)


def describe(
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    prefer: str = "auto",
    needs: KernelNeeds | None = None,
) -> list[str]:
    """What `select_kernels` would choose here and why, one line per operation: `octavo doctor --kernels`."""
    return select_kernels(device, dtype, prefer, needs).describe()
