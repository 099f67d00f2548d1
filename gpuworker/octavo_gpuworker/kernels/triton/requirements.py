"""What each Triton family takes, as reasons why not; read before triton is imported, so a CPU worker never loads it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import torch

from octavo_gpuworker.kernels.needs import KernelNeeds

HEAD_DIMS: Final = (32, 64, 128)
"""Powers of two that the attention tiles were sized for."""
DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)
BLOCK_TOKENS: Final = (8, 16, 32)
MAX_GROUP: Final = 16
"""Query heads per KV head that fit the smallest tile."""
MAX_WIDTH: Final = 16384
"""Longest row of a norm."""
MAX_VOCABULARY: Final = 256 * 1024
MAX_EXPERTS: Final = 256
MAX_TOP_K: Final = 16
"""Experts per token."""
LATENTS: Final = (32, 64, 128, 256, 512)
LATENT_ROPES: Final = (16, 32, 64)
COMPILED_LATENTS: Final = ((512, 64),)
"""(latent, rotated part) of every DeepSeek."""
QUANTIZED_KV: Final = (torch.int8, torch.float8_e4m3fn)
FP8_CAPABILITY: Final = 89
"""First compute capability that converts fp8 e4m3."""


def machine(needs: KernelNeeds) -> str:
    """Why this machine and process cannot run Triton at all; empty where they can."""
    if find_spec("triton") is None:
        return "triton is not installed: pip install octavo-gpuworker[triton]"
    if needs.device.type == "cuda":
        return ""
    if not needs.explicit:
        return f"it needs a CUDA device, this is {needs.device.type}"
    from octavo_gpuworker.kernels.triton.interpreter import interpreted, repair_interpreter

    if not interpreted():
        return f"it needs a CUDA device, this is {needs.device.type}; TRITON_INTERPRET=1 interprets it, for tests"
    repair_interpreter()
    return ""


def dtype(needs: KernelNeeds) -> str:
    """Every kernel: float32, float16, bfloat16; the interpreter has no bfloat16 (numpy has none)."""
    if needs.dtype not in DTYPES:
        return f"dtype {_name(needs.dtype)} is not one of {', '.join(map(_name, DTYPES))}"
    if needs.device.type != "cuda" and torch.bfloat16 in (needs.dtype, needs.kv_dtype):
        return "the interpreter computes garbage in bfloat16; use float32 or float16"
    return ""


def feed_forward(needs: KernelNeeds) -> str:
    """Rows of the gated activations start at multiples of 16 elements."""
    if needs.ffn % 16:
        return f"ffn {needs.ffn} is no multiple of 16"
    return dtype(needs)


def projection(needs: KernelNeeds) -> str:
    """Matrices whose inner sizes are multiples of 16; the vocabulary may have any size."""
    if needs.d_model % 16:
        return f"d_model {needs.d_model} is no multiple of 16"
    return feed_forward(needs)


def row_norm(needs: KernelNeeds) -> str:
    """One program holds a whole row."""
    if needs.d_model % 16:
        return f"d_model {needs.d_model} is no multiple of 16"
    if needs.d_model > MAX_WIDTH:
        return f"a row of {needs.d_model} is longer than {MAX_WIDTH}"
    return dtype(needs)


def paged(needs: KernelNeeds) -> str:
    """Kernels that read or write the paged cache of keys and values; a latent cache has none."""
    if needs.latent:
        return dtype(needs)
    if needs.head_dim not in HEAD_DIMS:
        return f"head dim {needs.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
    if needs.block_tokens not in BLOCK_TOKENS:
        return f"block size {needs.block_tokens} is not one of {', '.join(map(str, BLOCK_TOKENS))} tokens"
    if needs.group > MAX_GROUP:
        return f"{needs.group} query heads per KV head are more than {MAX_GROUP}"
    if needs.kv_dtype != needs.dtype and needs.kv_dtype not in QUANTIZED_KV:
        return f"KV dtype {_name(needs.kv_dtype)} is neither the activations' {_name(needs.dtype)} nor int8 nor fp8"
    if needs.quantized and needs.dtype == torch.float32 and needs.device.type == "cuda":
        return f"a {_name(needs.kv_dtype)} cache wants bfloat16 or float16 activations"
    if needs.kv_dtype == torch.float8_e4m3fn and needs.capability < FP8_CAPABILITY:
        return f"fp8 needs compute capability 8.9, this device has {needs.capability / 10}"
    return dtype(needs)


def attention(needs: KernelNeeds) -> str:
    """Paged attention; a soft cap is compiled for an unquantized cache only."""
    if needs.soft_cap and needs.quantized:
        return "a soft cap over a quantized cache is not compiled"
    return paged(needs)


def half_precision(needs: KernelNeeds, what: str) -> str:
    """Products sized for tensor cores: float32 only where it is interpreted."""
    if needs.dtype == torch.float32 and needs.device.type == "cuda":
        return f"{what} wants bfloat16 or float16 activations"
    return dtype(needs)


def sampling(needs: KernelNeeds) -> str:
    """float32 logits of any model; the maxima of a row's tiles fit one program."""
    if needs.vocab_size > MAX_VOCABULARY:
        return f"a vocabulary of {needs.vocab_size} is larger than {MAX_VOCABULARY}"
    return ""


def quantized_product(needs: KernelNeeds) -> str:
    """Products of quantized weights; fp8 where the device has it."""
    if needs.weight_dtype == torch.float8_e4m3fn and needs.capability < FP8_CAPABILITY:
        return f"fp8 needs compute capability 8.9, this device has {needs.capability / 10}"
    return half_precision(needs, "quantized weights") if needs.weight_dtype is not None else ""


def experts(needs: KernelNeeds) -> str:
    """Mixture of experts: the run starts of all experts fit one program."""
    if needs.experts > MAX_EXPERTS:
        return f"{needs.experts} experts are more than {MAX_EXPERTS}"
    if needs.experts and needs.expert_ffn % 16:
        return f"an expert's inner size of {needs.expert_ffn} is no multiple of 16"
    return half_precision(needs, "a mixture of experts") if needs.experts else ""


def latent(needs: KernelNeeds) -> str:
    """Latent attention: a whole latent is one row of a tile."""
    if not needs.latent:
        return ""
    if needs.latent not in LATENTS:
        return f"a latent of {needs.latent} is not one of {', '.join(map(str, LATENTS))}"
    if needs.latent_rope not in LATENT_ROPES:
        return f"a rotated part of {needs.latent_rope} is not one of {', '.join(map(str, LATENT_ROPES))}"
    if needs.device.type == "cuda" and (needs.latent, needs.latent_rope) not in COMPILED_LATENTS:
        return f"a latent of {needs.latent} + {needs.latent_rope} is not compiled, 512 + 64 is; others are interpreted"
    if needs.block_tokens not in BLOCK_TOKENS:
        return f"block size {needs.block_tokens} is not one of {', '.join(map(str, BLOCK_TOKENS))} tokens"
    if needs.kv_dtype != needs.dtype:
        return f"a latent cache of {_name(needs.kv_dtype)} beside {_name(needs.dtype)} activations is not written"
    return half_precision(needs, "a latent cache")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
