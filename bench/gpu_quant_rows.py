"""Rows of quantized products, the mixture of experts and the latent attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gpu_attention_rows import TOLERANCES
from gpu_row import Row, Setting
from octavo_gpuworker.kernels.mla import mla_decode_torch
from octavo_gpuworker.kernels.moe import MoeWeights, moe_torch
from octavo_gpuworker.kernels.paged_batch import paged_batch
from octavo_gpuworker.kernels.quant_gemm import (
    dequantize,
    quant_linear_torch,
    quantize_both,
    quantize_rows_torch,
    quantize_weight,
)
from octavo_gpuworker.kernels.triton import roofline
from octavo_gpuworker.kernels.triton.mla import mla_decode_triton
from octavo_gpuworker.kernels.triton.moe import moe_triton
from octavo_gpuworker.kernels.triton.quant_gemm import quant_linear_triton, quantize_rows_triton, scaled_launch
from torch import Tensor
from torch.nn import functional as F


def weight_only_rows(setting: Setting) -> Iterator[Row]:
    """The gate-up projection of 8B in int4 and int8: one row, eight, a decode batch, a chunk. torch's way is bf16 cuBLAS."""
    depth, columns = setting.size(4096, 128), setting.size(28672, 80)
    plain = setting.randn(columns, depth)
    forms = (("int4_g128", 4, 128, False), ("int4_g32_zero", 4, 32, True), ("int8_row", 8, None, False))
    for name, bits, group, zero_point in forms:
        weight = quantize_weight(plain, bits, group, zero_point)
        for rows in (1, setting.size(8, 5), setting.size(32, 17), setting.size(2048, 70)):
            x = setting.randn(rows, depth)
            yield Row(
                f"quant_linear/{name}/{rows}",
                lambda x=x, w=weight: quant_linear_triton(x, w, None),
                lambda x=x, w=weight: x.float() @ dequantize(w).T,
                TOLERANCES[setting.dtype],
                roofline.quant_linear(rows, depth, columns, bits, group or depth, setting.dtype.itemsize),
                {"mm": lambda x=x: F.linear(x, plain)},
            )


def both_sides_rows(setting: Setting) -> Iterator[Row]:
    """int8 x int8 and fp8 x fp8 on given codes, and the quantizer of activations."""
    depth, columns, rows = setting.size(4096, 128), setting.size(28672, 80), setting.size(2048, 70)
    plain, x = setting.randn(columns, depth), setting.randn(rows, depth)
    for name, dtype in (("int8", torch.int8), ("fp8", torch.float8_e4m3fn)):
        weight = quantize_both(plain, dtype)
        codes, scales = quantize_rows_torch(x, dtype)
        out = torch.empty(rows, columns, dtype=setting.dtype, device=setting.device)

        def multiply(codes=codes, scales=scales, weight=weight, out=out) -> Tensor:
            scaled_launch(out, codes, scales, weight, None).run()
            return out

        baselines = {"mm": lambda: F.linear(x, plain)}
        if not setting.dry and dtype == torch.int8:
            baselines["int_mm"] = lambda c=codes, w=weight: torch._int_mm(c, w.data.T)
        if not setting.dry and dtype == torch.float8_e4m3fn:
            baselines["scaled_mm"] = lambda c=codes, s=scales, w=weight: torch._scaled_mm(
                c, w.data.T, s[:, None], w.scales.T, out_dtype=setting.dtype
            )
        yield Row(
            f"quant_linear/{name}_{name}/{rows}",
            multiply,
            lambda w=weight: quant_linear_torch(x.float(), w, None),
            TOLERANCES[setting.dtype],
            roofline.quant_linear(rows, depth, columns, 8, depth, setting.dtype.itemsize, 4),
            baselines,
        )
    yield Row(
        f"quantize_rows/int8/{rows}",
        lambda: torch.mul(*_columns(quantize_rows_triton(x, torch.int8))),
        lambda: torch.mul(*_columns(quantize_rows_torch(x, torch.int8))),
        1e-3,
        roofline.Work(rows * depth * (setting.dtype.itemsize + 1)),
        {"torch": lambda: quantize_rows_torch(x, torch.int8)},
        lambda: quantize_rows_triton(x, torch.int8),
    )


def _columns(quantized: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return quantized[0].float(), quantized[1][:, None]


def moe_rows(setting: Setting) -> Iterator[Row]:
    """Mixtral 8x7B's feed-forward: a decode batch and a chunk. torch's way is a loop over experts."""
    width, ffn, experts = setting.size(4096, 64), setting.size(14336, 48), 8
    gate_up, down = setting.randn(experts, 2 * ffn, width), setting.randn(experts, width, ffn)
    weights = MoeWeights(gate_up.mul_(width**-0.5), down.mul_(ffn**-0.5), 2)
    for tokens in (setting.size(32, 5), setting.size(4096, 40)):
        x, logits = setting.randn(tokens, width), setting.randn(tokens, experts, dtype=torch.float32)
        yield Row(
            f"moe/{tokens}",
            lambda x=x, g=logits: moe_triton(x, g, weights),
            lambda x=x, g=logits: _float32_moe(x, g, weights),
            2 * TOLERANCES[setting.dtype],
            roofline.moe(tokens, experts, 2, width, ffn, setting.dtype.itemsize),
            {"loop": lambda x=x, g=logits: moe_torch(x, g, weights)},
        )


def _float32_moe(x: Tensor, logits: Tensor, weights: MoeWeights) -> Tensor:
    return moe_torch(x.float(), logits, MoeWeights(weights.gate_up.float(), weights.down.float(), weights.top_k))


def mla_rows(setting: Setting) -> Iterator[Row]:
    """DeepSeek's decode: 128 heads over latents of 512 and 64. torch's way is SDPA over gathered latents."""
    heads, latent, rope, block = setting.size(128, 20), setting.size(512, 32), setting.size(64, 16), 16
    for sequences, context in ((setting.size(32, 3), setting.size(4096, 40)), (1, setting.size(32768, 70))):
        width = -(-context // block)
        cache = setting.randn(sequences * width + 1, block, latent + rope)
        tables = (torch.randperm(sequences * width) + 1).int().view(sequences, width).to(setting.device)
        batch = paged_batch(
            torch.arange(sequences + 1, dtype=torch.int32, device=setting.device),
            torch.full((sequences,), context, dtype=torch.int32, device=setting.device),
            tables,
            [1] * sequences,
            [context] * sequences,
            block_tokens=block,
            scale=192**-0.5,
            processors=132 if setting.dry else torch.cuda.get_device_properties(0).multi_processor_count,
        )
        batch.splits = 3 if setting.dry and sequences == 1 else None
        q = setting.randn(sequences, heads, latent + rope)
        keys = cache[tables.long()].flatten(1, 2)[:, None, :context]
        yield Row(
            f"mla_decode/b{sequences}/c{context}",
            lambda q=q, c=cache, b=batch: mla_decode_triton(q[..., :latent], q[..., latent:], c, b),
            lambda q=q, c=cache, b=batch: mla_decode_torch(q[..., :latent].float(), q[..., latent:].float(), c, b),
            TOLERANCES[setting.dtype],
            roofline.mla_decode([context] * sequences, heads, latent, rope, setting.dtype.itemsize),
            {
                "sdpa": lambda q=q, k=keys: F.scaled_dot_product_attention(
                    q[:, :, None], k, k[..., :latent], scale=192**-0.5, enable_gqa=True
                )
            },
        )
