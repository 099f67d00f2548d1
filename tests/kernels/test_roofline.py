"""Floors against hand counts, and the tables of docs/kernels.md against code and budget."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from octavo_gpuworker.kernels.triton.budget import read_budget
from octavo_gpuworker.kernels.triton.roofline import (
    Heads,
    Work,
    gated_mul,
    linear,
    mla_decode,
    moe,
    move_blocks,
    paged_attention,
    quant_linear,
    rms_norm,
    sample,
    soft_cap,
    store_kv,
)

PAGE = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
BF16, INT8 = Heads(32, 8, 128), Heads(32, 8, 128, 2, 1, 4)
CALLS = {
    "decode, batch 32, context 4096": paged_attention(BF16, [(1, 4096)] * 32),
    "decode, int8 cache, batch 32, context 4096": paged_attention(INT8, [(1, 4096)] * 32),
    "decode, batch 1, context 32768": paged_attention(BF16, [(1, 32768)]),
    "prefill 16384": paged_attention(BF16, [(16384, 16384)]),
    "prefill chunk 512 at context 8192": paged_attention(BF16, [(512, 8192)]),
    "prefill 16384, window 4096": paged_attention(BF16, [(16384, 16384)], 4096),
    "store_kv, 4096 tokens": store_kv(BF16, 4096),
    "rms_norm with residual, 4096 tokens": rms_norm(4096, 4096, 2, 4),
    "gated_mul, 4096 tokens": gated_mul(4096, 14336),
    "soft_cap, 64 x 128256": soft_cap(64 * 128256),
    "move_blocks, 256 of 2 MiB": move_blocks(256, 2**21),
    "linear 4096 x 28672, 1 row": linear(1, 4096, 28672),
    "linear 4096 x 28672, 2048 rows": linear(2048, 4096, 28672),
    "sample, 64 x 128256": sample(64, 128256),
    "int4 group 128, 4096 x 28672, 1 row": quant_linear(1, 4096, 28672, 4, 128),
    "int8 per row, 4096 x 28672, 1 row": quant_linear(1, 4096, 28672, 8, 4096),
    "int4 group 128, 4096 x 28672, 2048 rows": quant_linear(2048, 4096, 28672, 4, 128),
    "moe of Mixtral 8x7B, 32 tokens": moe(32, 8, 2, 4096, 14336),
    "moe of Mixtral 8x7B, 4096 tokens": moe(4096, 8, 2, 4096, 14336),
    "mla_decode of DeepSeek, batch 32, context 4096": mla_decode([4096] * 32, 128),
}


def test_the_page_shows_what_the_formulas_give() -> None:
    for name, work in CALLS.items():
        line = f"| {name} | {work.bytes / 1e6:.2f} | {work.flops / 1e9:.2f} | {work.floor_us:.2f} |"
        assert line in PAGE, line


def test_the_page_shows_what_the_budget_holds() -> None:
    budget = read_budget(Path(__file__).with_name("budget.json"), "3.6")
    rows = re.findall(r"^\| `(\S+/sm_\d+)` \| (\d+) \| (\d+) \| (\S+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 12
    for row, *shown in rows:
        held = budget[row]
        assert [float(value) for value in shown] == [held.registers, held.shared_bytes, held.occupancy, held.mma], row


def test_attention_counts_each_visible_key_once() -> None:
    """Two new tokens over three: 2 + 3 pairs; keys of both KV heads once, queries and results of four heads."""
    heads = Heads(4, 2, 8)
    assert paged_attention(heads, [(2, 3)]) == Work(3 * 2 * 2 * 8 * 2 + 2 * 2 * 4 * 8 * 2, 4 * 5 * 4 * 8)
    windowed = paged_attention(heads, [(2, 30)], 4)
    assert windowed == Work(5 * 2 * 2 * 8 * 2 + 2 * 2 * 4 * 8 * 2, 4 * 8 * 4 * 8)
    assert paged_attention(heads, [(1, 3), (1, 5)]) == paged_attention(heads, [(1, 3)]) + paged_attention(
        heads, [(1, 5)]
    )


@pytest.mark.parametrize(("work", "floor_us"), [(Work(4_300_000, 1), 1.0), (Work(1, 790_000_000), 1.0), (Work(0), 0.0)])
def test_the_longer_of_traffic_and_arithmetic_is_the_floor(work, floor_us) -> None:
    assert work.floor_us == pytest.approx(floor_us)


def test_products_count_packed_weights_and_reached_experts() -> None:
    """4 x 32 in int4 with one scale a row: 64 + 8 bytes, 3 rows of 32 + 4 elements; 1 token reaches 2 of 8 experts."""
    assert quant_linear(3, 32, 4, 4, 32) == Work(64 + 8 + 3 * 36 * 2, 2 * 3 * 32 * 4)
    assert moe(1, 8, 2, 4, 6) == Work(3 * 2 * 4 * 6 * 2 + 2 * 4 * 2, 6 * 2 * 4 * 6)
    assert mla_decode([3], 2, 8, 4) == Work((3 * 12 + 2 * 20) * 2, 2 * 3 * 2 * 20)
    assert sample(2, 10) == Work(80)
