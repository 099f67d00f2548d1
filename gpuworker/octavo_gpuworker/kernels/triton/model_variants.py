"""Binaries of the quantized products, the mixture of experts and the latent attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

import torch

from octavo_gpuworker.kernels.moe import MoeWeights
from octavo_gpuworker.kernels.paged_batch import PagedBatch
from octavo_gpuworker.kernels.quant_gemm import QuantWeight
from octavo_gpuworker.kernels.triton.mla import mla_launches
from octavo_gpuworker.kernels.triton.moe import moe_launches
from octavo_gpuworker.kernels.triton.quant_gemm import quantize_rows_launch, scaled_launch, weight_only_launch
from octavo_gpuworker.kernels.triton.requirements import COMPILED_LATENTS
from octavo_gpuworker.kernels.triton.variant import META, SHORT, Variant

ROWS: Final = (1, 4, 8, 16, 64, 128)
"""One for each form of a weight-only product."""
HEADS: Final = (16, 128)


def _weight(columns: int, depth: int, form: str) -> QuantWeight:
    """A weight of one of the five stored forms, without data."""
    rows_of_scales = torch.empty(columns, 1 if form == "int8_row" else depth // 64, dtype=torch.float16, device=META)
    offsets = rows_of_scales if form.endswith("_zero") else None
    if form.startswith("int4"):
        return QuantWeight(torch.empty(columns, depth // 2, dtype=torch.uint8, device=META), rows_of_scales, offsets)
    return QuantWeight(torch.empty(columns, depth, dtype=torch.int8, device=META), rows_of_scales, offsets)


def quant_variants(dtype: torch.dtype) -> Iterator[Variant]:
    """Weight-only forms by rows and stored form; both sides quantized; the quantizer of activations."""
    columns, depth = 576, 1024
    for rows, form in product(ROWS, ("int4", "int4_zero", "int8", "int8_zero")):
        x = torch.empty(rows, depth, dtype=dtype, device=META)
        out = torch.empty(rows, columns, dtype=dtype, device=META)
        launch = weight_only_launch(out, x, _weight(columns, depth, form), None)
        tall = launch.constants.get("ROWS") or launch.constants["TILE_M"]
        name = f"{SHORT[dtype]}-{form}-m{tall}"
        yield Variant(name, launch, launch.name == "quant_gemm")
    for codes, rows in product((torch.int8, torch.float8_e4m3fn), (16, 64, 128)):
        held = torch.empty(rows, depth, dtype=codes, device=META)
        weight = QuantWeight(
            torch.empty(columns, depth, dtype=codes, device=META), torch.empty(columns, 1, device=META), None, codes
        )
        out = torch.empty(rows, columns, dtype=dtype, device=META)
        launch = scaled_launch(out, held, torch.empty(rows, device=META), weight, None)
        name = f"{SHORT[codes]}-{SHORT[dtype]}-m{launch.constants['TILE_M']}"
        yield Variant(name, launch, True)
        x = torch.empty(rows, depth, dtype=dtype, device=META)
        yield Variant(
            f"{SHORT[dtype]}-{SHORT[codes]}", quantize_rows_launch(held, torch.empty(rows, device=META), x), False
        )


def moe_variants(dtype: torch.dtype) -> Iterator[Variant]:
    """Few and many rows per expert; experts and experts per token are runtime arguments."""
    weights = MoeWeights(
        torch.empty(8, 1024, 1024, dtype=dtype, device=META), torch.empty(8, 1024, 512, dtype=dtype, device=META), 2
    )
    for tokens in (16, 8192):
        x = torch.empty(tokens, 1024, dtype=dtype, device=META)
        logits = torch.empty(tokens, 8, dtype=torch.float32, device=META)
        for launch in moe_launches(x, x, logits, weights):
            constants = launch.constants
            if launch.name == "gated_mul":
                continue  # the feed-forward's own variant
            parts = [] if launch.name in ("moe_sort", "moe_route") else [SHORT[dtype]]
            parts += [f"m{constants['TILE_M']}"] if "TILE_M" in constants else []
            parts += ["gather"] if constants.get("GATHER") else []
            yield Variant("-".join(parts) or "any", launch, launch.name == "moe_grouped_gemm")


def mla_variants(dtype: torch.dtype) -> Iterator[Variant]:
    """One pass and split, tiles of 16 and 32 heads; the reduce at the latent's width."""
    for (latent, rope), heads, splits in product(COMPILED_LATENTS, HEADS, (1, 4)):
        ints = [torch.empty(shape, dtype=torch.int32, device=META) for shape in ((5,), (4,), (4, 9))]
        batch = PagedBatch(ints[0], ints[1], ints[2], 4, 1, False, 4096, 16, 0.1, processors=132)
        q = torch.empty(4, heads, latent + rope, dtype=dtype, device=META)
        out = torch.empty(4, heads, latent, dtype=dtype, device=META)
        cache = torch.empty(9, 3, 16, latent + rope, dtype=dtype, device=META)[:, 1]
        for launch in mla_launches(out, q[..., :latent], q[..., latent:], cache, replace(batch, splits=splits)):
            if launch.name == "paged_decode_reduce":
                yield Variant(f"{SHORT[dtype]}-d{latent}", launch, False)
                continue
            tail = f"-h{launch.constants['TILE_H']}" + ("-split" if splits > 1 else "")
            yield Variant(f"{SHORT[dtype]}-d{latent}{tail}", launch, True)
