"""Every binary that the table can choose, from the launchers themselves run on tensors without data (device "meta").

A variant's name says what sets it apart; GQA ratio and block size are runtime arguments, so one binary serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

import torch
from torch import Tensor

from octavo_gpuworker.kernels.needs import KernelNeeds
from octavo_gpuworker.kernels.paged_batch import VERIFY_QUERIES, PagedBatch
from octavo_gpuworker.kernels.store_kv import KvWrite
from octavo_gpuworker.kernels.triton.activation import gated_mul_launch, soft_cap_launch
from octavo_gpuworker.kernels.triton.attention import attention_launches
from octavo_gpuworker.kernels.triton.block_moves import move_launch
from octavo_gpuworker.kernels.triton.linear import linear_launch
from octavo_gpuworker.kernels.triton.model_variants import mla_variants, moe_variants, quant_variants
from octavo_gpuworker.kernels.triton.requirements import BLOCK_TOKENS, DTYPES, HEAD_DIMS, QUANTIZED_KV
from octavo_gpuworker.kernels.triton.rms_norm import rms_norm_launch
from octavo_gpuworker.kernels.triton.sampling_variants import sampling_variants
from octavo_gpuworker.kernels.triton.store_kv import TOKENS_PER_PROGRAM, store_kv_launch
from octavo_gpuworker.kernels.triton.variant import META, SHORT, Variant

HALVES: Final = (torch.bfloat16, torch.float16)
GROUPS: Final = (1, 3, 4, 8)
WIDTHS: Final = (512, 576, 1024, 2048, 4096, 8192, 16384)
ROWS: Final = (1, 17, 65)
"""One for each tiled form of linear."""


def choosable(groups: Sequence[int] = GROUPS) -> Iterator[KernelNeeds]:
    """Dtypes and shapes of paged kernels that the table accepts on a GPU of compute capability 8.9 or later, each once."""
    pairs = [(dtype, dtype) for dtype in DTYPES]
    pairs += [(dtype, kv) for dtype in DTYPES if dtype != torch.float32 for kv in QUANTIZED_KV]
    for (dtype, kv), head_dim, group, block in product(pairs, HEAD_DIMS, groups, BLOCK_TOKENS):
        needs = KernelNeeds(torch.device("cuda"), dtype, kv, head_dim, 2 * group, 2, block)
        yield needs
        if not needs.quantized:
            yield replace(needs, soft_cap=30.0)


def _pool(needs: KernelNeeds) -> tuple[Tensor, Tensor | None]:
    """One layer of a pool of three, with the strides it has there."""
    per_head = (9, 3, 2, needs.kv_heads, needs.block_tokens)
    pool = torch.empty(*per_head, needs.head_dim, dtype=needs.kv_dtype, device=META)[:, 1]
    return pool, torch.empty(per_head, device=META)[:, 1] if needs.quantized else None


def _tag(needs: KernelNeeds) -> str:
    kv = f"-kv_{SHORT[needs.kv_dtype]}" if needs.quantized else ""
    return f"{SHORT[needs.dtype]}{kv}-d{needs.head_dim}" + ("-softcap" if needs.soft_cap else "")


def attention_variants(needs: KernelNeeds, capability: int) -> Iterator[Variant]:
    """Decode in one pass and split, one token and each verify width, the reduce, prefill with and without a window."""
    layer, scales = _pool(needs)
    tokens, sequences = 64, 4
    q = torch.empty(tokens, needs.q_heads, needs.head_dim, dtype=needs.dtype, device=META)
    out = torch.empty(tokens, needs.q_heads * needs.head_dim, dtype=needs.dtype, device=META)
    ints = [
        torch.empty(shape, dtype=torch.int32, device=META) for shape in ((sequences + 1,), (sequences,), (sequences, 9))
    ]
    batch = PagedBatch(
        ints[0], ints[1], ints[2], tokens, 0, True, 128, needs.block_tokens, 0.125, None, needs.soft_cap, 132, capability
    )  # fmt: skip
    forms = [replace(batch, window=window) for window in (None, 64)]
    forms += [
        replace(batch, prefills=False, decode_query=width, splits=splits)
        for width in range(1, VERIFY_QUERIES + 1)
        for splits in (1, 4)
    ]
    mma = needs.dtype != torch.float32
    for form in forms:
        for launch in attention_launches(out, q, layer, scales, form):
            if launch.name == "paged_decode_reduce":
                yield Variant(f"{SHORT[needs.dtype]}-d{needs.head_dim}", launch, False)
                continue
            constants = launch.constants
            tail = f"-m{constants['TILE_M']}"
            tail += "-split" if constants.get("SPLIT") else "-window" if constants.get("WINDOWED") else ""
            yield Variant(_tag(needs) + tail, launch, mma)


def store_kv_variants(needs: KernelNeeds) -> Iterator[Variant]:
    """With and without q/k norm, for decode batches and for chunks."""
    layer, scales = _pool(needs)
    for tokens, normed in product((4, 16 * 1024), (False, True)):
        heads, half = needs.q_heads + 2 * needs.kv_heads, needs.head_dim // 2
        qkv = torch.empty(tokens, heads * needs.head_dim, dtype=needs.dtype, device=META)
        queries = torch.empty(tokens, needs.q_heads, needs.head_dim, dtype=needs.dtype, device=META)
        table = torch.empty(tokens, 1, 2, half, device=META)
        slots = torch.empty(tokens, dtype=torch.int64, device=META)
        weight = torch.empty(needs.head_dim, dtype=needs.dtype, device=META) if normed else None
        write = KvWrite(table[:, :, 0], table, slots, slots, needs.q_heads, needs.kv_heads, needs.head_dim, 1e-5)
        launch = store_kv_launch(queries, qkv, write, weight, weight, layer, scales)
        tail = f"-t{TOKENS_PER_PROGRAM}" if launch.constants["TILE_M"] > 1 else "-t1"
        yield Variant(_tag(needs) + tail + ("-norm" if normed else ""), launch, False)


def row_variants(dtype: torch.dtype) -> Iterator[Variant]:
    """Norms of every width, gated activations, soft cap."""
    for width, add in product(WIDTHS, (False, True)):
        x = torch.empty(4, width, dtype=dtype, device=META)
        launch = rms_norm_launch(x, x, x.float() if add else None, x[0], 1e-5)
        yield Variant(f"{SHORT[dtype]}-w{launch.constants['WIDTH']}" + ("-add" if add else ""), launch, False)
    x = torch.empty(4, 1536, dtype=dtype, device=META)
    for gelu in (False, True):
        yield Variant(f"{SHORT[dtype]}-{'gelu' if gelu else 'silu'}", gated_mul_launch(x[:, :768], x, gelu), False)
    yield Variant(SHORT[dtype], soft_cap_launch(x, x, 30.0), False)


def linear_variants(dtype: torch.dtype) -> Iterator[Variant]:
    """Every tiled form, with and without bias, for columns that are and are not a multiple of 16."""
    for rows, columns, biased in product(ROWS, (576, 577), (False, True)):
        x = torch.empty(rows, 512, dtype=dtype, device=META)
        weight = torch.empty(columns, 512, dtype=dtype, device=META)
        out = torch.empty(rows, columns, dtype=dtype, device=META)
        launch = linear_launch(out, x, weight, weight[:, 0] if biased else None)
        tail = f"-m{launch.constants['TILE_M']}" + ("-bias" if biased else "") + ("-ragged" if columns % 16 else "")
        yield Variant(SHORT[dtype] + tail, launch, dtype != torch.float32)


def move_variants() -> Iterator[Variant]:
    """Gather, scatter and copy; dtype and block size make no difference."""
    rows, ids = torch.empty(4, 96, dtype=torch.int64, device=META), torch.empty(4, dtype=torch.int64, device=META)
    yield Variant("gather", move_launch(rows, rows, None, ids, 4), False)
    yield Variant("scatter", move_launch(rows, rows, ids, None, 4), False)
    yield Variant("copy", move_launch(rows, rows, ids, ids, 4), False)


FAMILIES: Final[tuple[Callable[[int], Iterator[Variant]], ...]] = (
    lambda capability: (variant for needs in choosable() for variant in attention_variants(needs, capability)),
    lambda _: (variant for needs in choosable() if not needs.soft_cap for variant in store_kv_variants(needs)),
    lambda _: (variant for dtype in DTYPES for variant in row_variants(dtype)),
    lambda _: (variant for dtype in DTYPES for variant in linear_variants(dtype)),
    lambda _: move_variants(),
    lambda _: sampling_variants(),
    lambda _: (variant for dtype in HALVES for variant in quant_variants(dtype)),
    lambda _: (variant for dtype in HALVES for variant in moe_variants(dtype)),
    lambda _: (variant for dtype in HALVES for variant in mla_variants(dtype)),
)
"""Variants of each family for a compute capability (80, 90, ...); a new family adds its own."""


def all_variants(capability: int) -> list[Variant]:
    """Each variant once, in the order of FAMILIES."""
    found: dict[str, Variant] = {}
    for family in FAMILIES:
        for variant in family(capability):
            found.setdefault(variant.path, variant)
    return list(found.values())
