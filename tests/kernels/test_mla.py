"""The latent attention's twin against transformers' DeepSeek layers: absorbed decode over a paged latent cache."""

from __future__ import annotations

import pytest
import torch
from octavo_gpuworker.kernels.mla import (
    absorb_query,
    expand_output,
    mla_decode_torch,
    split_projection,
    store_latent,
)
from octavo_gpuworker.kernels.paged_batch import PagedBatch, paged_batch
from torch import Tensor
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

HEADS, LATENT, ROPE, NOPE, VALUE, WIDTH, BLOCK = 6, 32, 16, 24, 20, 48, 8


def layer_of(version: int, q_lora: int | None):
    """transformers' attention with random weights, and its rotary embedding."""
    module = v2 if version == 2 else v3
    config = getattr(module, f"DeepseekV{version}Config")(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=q_lora,
        kv_lora_rank=LATENT,
        qk_rope_head_dim=ROPE,
        qk_nope_head_dim=NOPE,
        v_head_dim=VALUE,
        head_dim=ROPE,
        num_hidden_layers=1,
    )
    config._attn_implementation = "eager"
    attention = getattr(module, f"DeepseekV{version}Attention")(config, 0).eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(std=0.2)
    return attention, getattr(module, f"DeepseekV{version}RotaryEmbedding")(config)


def rotated(version: int, q_rope: Tensor, k_rope: Tensor, positions) -> tuple[Tensor, Tensor]:
    if version == 2:
        return v2.apply_rotary_emb(q_rope, k_rope, positions)
    return v3.apply_rotary_pos_emb_interleave(q_rope, k_rope, *positions)


def paged(contexts: list[int], new: list[int], scale: float) -> PagedBatch:
    counts = [-(-context // BLOCK) for context in contexts]
    order = (torch.randperm(sum(counts)) + 1).int()
    tables = torch.full((len(contexts), max(counts)), 2**30, dtype=torch.int32)
    for row, ids in enumerate(order.split(counts)):
        tables[row, : len(ids)] = ids
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    return paged_batch(
        starts, torch.tensor(contexts, dtype=torch.int32), tables, new, contexts, block_tokens=BLOCK, scale=scale
    )


@pytest.mark.parametrize(("version", "q_lora"), [(2, None), (2, 40), (3, 40)])
@pytest.mark.parametrize("new", [1, 3])
def test_absorbed_decode_is_deepseeks_layer(version, q_lora, new, check) -> None:
    attention, rotary = layer_of(version, q_lora)
    context = 21
    hidden = torch.randn(1, context, WIDTH)
    positions = rotary(hidden, torch.arange(context)[None])
    mask = torch.full((context, context), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        expected = attention(hidden, attention_mask=mask, position_embeddings=positions)[0][0, -new:]
        result = absorbed(attention, version, hidden, positions, new)
    error = (result - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()
    assert error < 1e-5


def absorbed(attention, version: int, hidden: Tensor, positions, new: int) -> Tensor:
    """The last `new` tokens' output by way of a paged cache of latents."""
    context = hidden.shape[1]
    q = attention.q_proj(hidden) if attention.q_lora_rank is None else None
    if q is None:
        q = attention.q_b_proj(attention.q_a_layernorm(attention.q_a_proj(hidden)))
    q_nope, q_rope = q.view(1, context, HEADS, -1).transpose(1, 2).split([NOPE, ROPE], dim=-1)
    latent, k_rope = attention.kv_a_proj_with_mqa(hidden).split([LATENT, ROPE], dim=-1)
    q_rope, k_rope = rotated(version, q_rope, k_rope[:, None], positions)
    batch = paged([context], [new], attention.scaling)
    cache = torch.full((9, 2, BLOCK, LATENT + ROPE), float("nan"))[:, 1]  # one layer of two
    at = torch.arange(context)
    store_latent(
        attention.kv_a_layernorm(latent)[0],
        k_rope[0, 0],
        batch.block_tables[0].long()[at // BLOCK],
        at % BLOCK,
        cache,
    )
    projection = split_projection(attention.kv_b_proj.weight, HEADS, NOPE)
    last = (part[0, :, -new:].transpose(0, 1) for part in (q_nope, q_rope))
    q_nope, q_rope = last
    attended = mla_decode_torch(absorb_query(q_nope, projection), q_rope, cache, batch)
    return attention.o_proj(expand_output(attended, projection))


def test_a_projection_that_does_not_fit_the_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="kv_b_proj has 10 rows, no multiple of 4 heads"):
        split_projection(torch.zeros(10, 8), 4, 1)
