"""WeightFormat: what `engine.weights` may ask for, and a matrix in that form."""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

from octavo_gpuworker.kernels.quant_gemm import BLOCK, GROUPS, QuantWeight, quantize_both, quantize_weight
from octavo_gpuworker.model.config import ModelConfig

WeightFormat = Literal["auto", "bf16", "int8", "int4", "w8a8", "fp8", "file"]
"""auto: the compute dtype. int8: a scale per row. int4: a scale per group. w8a8, fp8: activations too, a scale per token.
file: a GGUF's own Q4_0, Q4_1 and Q8_0, repacked without loss."""
FORMATS: Final = ("auto", "bf16", "int8", "int4", "w8a8", "fp8", "file")
STORED: Final = {
    "int8": torch.int8,
    "int4": torch.uint8,
    "w8a8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "file": torch.uint8,
}
"""Element type of the stored codes, as kernels are asked for it."""


def check_format(weights: str, config: ModelConfig, dtype: torch.dtype, kind: str) -> None:
    """ValueError, naming the setting and what works: an unknown format, or one that the model or its file cannot have."""
    if weights not in FORMATS:
        raise ValueError(f"weights is {weights!r}; expected {', '.join(FORMATS)}")
    if weights == "bf16" and dtype != torch.bfloat16:
        raise ValueError(f"weights is 'bf16' beside dtype {dtype}; set dtype to bfloat16, or weights to auto")
    if weights not in STORED:
        return
    if config.experts is not None or config.latent is not None:
        raise ValueError(
            f"weights is {weights!r}, but a mixture of experts or latent attention is not quantized; set weights to auto"
        )
    if weights == "file" and kind != "gguf":
        raise ValueError(
            "weights is 'file', but only a GGUF holds quantized matrices; use int8, int4, w8a8, fp8 or auto"
        )
    if weights == "int4" and (
        config.d_model % BLOCK or config.ffn % BLOCK or (config.q_heads * config.head_dim) % BLOCK
    ):
        raise ValueError(f"weights is 'int4', which wants inner sizes that are multiples of {BLOCK}; use int8")


def quantized(matrix: Tensor, weights: WeightFormat) -> Tensor | QuantWeight:
    """matrix [out, in] floating in the form that `weights` asks for; itself where that is floating, or the file's own."""
    if weights == "int8":
        return quantize_weight(matrix, 8)
    if weights == "int4":
        group = next(size for size in reversed(GROUPS) if matrix.shape[1] % size == 0)
        return quantize_weight(matrix, 4, group)
    if weights == "w8a8":
        return quantize_both(matrix, torch.int8)
    return quantize_both(matrix, torch.float8_e4m3fn) if weights == "fp8" else matrix
