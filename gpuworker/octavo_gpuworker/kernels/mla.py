"""mla_decode: multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) over a paged cache of latents.

All heads share one row per token: the normalised latent, then the rotated key part. With the key up-projection absorbed into
the queries and the value up-projection into the output, a decode attends in latent space and never expands the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo_gpuworker.kernels.attention_plan import AttentionPlan
from octavo_gpuworker.kernels.paged_batch import VERIFY_QUERIES, PagedBatch


@dataclass(frozen=True, slots=True)
class MlaProjection:
    """kv_b_proj of one layer, cut into its two halves."""

    key: Tensor
    """[H, nope, latent]."""
    value: Tensor
    """[H, v, latent]."""


def split_projection(kv_b_proj: Tensor, heads: int, nope: int) -> MlaProjection:
    """kv_b_proj [H * (nope + v), latent] as Hugging Face stores it. ValueError: its rows are no multiple of the heads."""
    if kv_b_proj.shape[0] % heads:
        raise ValueError(f"kv_b_proj has {kv_b_proj.shape[0]} rows, no multiple of {heads} heads")
    per_head = kv_b_proj.view(heads, -1, kv_b_proj.shape[1])
    return MlaProjection(per_head[:, :nope], per_head[:, nope:])


def absorb_query(q_nope: Tensor, projection: MlaProjection) -> Tensor:
    """q_nope [T, H, nope] -> [T, H, latent]: what dots with a latent as q_nope does with its expanded key."""
    return torch.einsum("thn,hnl->thl", q_nope, projection.key)


def expand_output(attended: Tensor, projection: MlaProjection) -> Tensor:
    """attended [T, H, latent] -> [T, H * v]."""
    return torch.einsum("thl,hvl->thv", attended, projection.value).flatten(1)


def store_latent(latent: Tensor, rotary: Tensor, blocks: Tensor, offsets: Tensor, cache: Tensor) -> None:
    """Writes latent [T, latent] and rotary [T, rope] to slots (blocks, offsets) [T] int64 of one layer's cache."""
    cache.index_put_((blocks, offsets), torch.cat((latent, rotary), dim=1).to(cache.dtype))


def chunks_of(plan: AttentionPlan) -> list[tuple[int, int, int]]:
    """(sequence, first row, new tokens) of the sequences that `mla_decode` leaves alone."""
    starts = [0, *accumulate(plan.new_tokens)]
    return [(seq, starts[seq], new) for seq, new in enumerate(plan.new_tokens) if new > VERIFY_QUERIES]


def mla_prefill_torch(
    q_nope: Tensor, q_rope: Tensor, projection: MlaProjection, cache: Tensor, plan: AttentionPlan, out: Tensor
) -> None:
    """Fills the rows of out [T, H * v] that belong to chunks (`chunks_of`), causal, from q_nope [T, H, nope], q_rope [T, H, rope].

    Keys and values are expanded once per chunk: a chunk of n tokens then costs a third of attending in latent space, where
    every head has the latent's 512 dims instead of 128.
    """
    size, rank = plan.batch.block_tokens, projection.key.shape[2]
    for seq, row, new in chunks_of(plan):
        context = plan.contexts[seq]
        blocks = plan.batch.block_tables[seq, : -(-context // size)].long()
        held = cache[blocks].flatten(0, 1)[:context]
        key = torch.einsum("cl,hnl->hcn", held[:, :rank], projection.key)
        value = torch.einsum("cl,hvl->hcv", held[:, :rank], projection.value)
        key = torch.cat((key, held[:, rank:].expand(len(key), -1, -1)), dim=2)
        query = torch.cat((q_nope[row : row + new], q_rope[row : row + new]), dim=2).transpose(0, 1)
        at = torch.arange(context - new, context, device=out.device)[:, None]
        seen = torch.arange(context, device=out.device) <= at
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=plan.batch.scale)
        out[row : row + new] = attended.transpose(0, 1).flatten(1)


def mla_decode_torch(q_latent: Tensor, q_rope: Tensor, cache: Tensor, batch: PagedBatch) -> Tensor:
    """q_latent [T, H, latent], q_rope [T, H, rope] -> [T, H, latent] in the queries' dtype; causal.

    `cache` [num_blocks, block_tokens, latent + rope]: one layer, any strides. Sequences with more than VERIFY_QUERIES new
    tokens are left alone, their rows zero.
    """
    out = torch.zeros_like(q_latent)
    latent = q_latent.shape[2]
    starts = batch.query_start.tolist()
    for row, context in enumerate(batch.context_len.tolist()):
        begin, end = starts[row], starts[row + 1]
        if not 0 < end - begin <= VERIFY_QUERIES:
            continue
        blocks = batch.block_tables[row, : -(-context // batch.block_tokens)].long()
        keys = cache[blocks].flatten(0, 1)[:context].float()
        queries = torch.cat((q_latent[begin:end], q_rope[begin:end]), dim=2).float()
        scores = torch.einsum("thc,kc->thk", queries, keys) * batch.scale
        position = torch.arange(context - (end - begin), context, device=out.device)
        hidden = torch.arange(context, device=out.device) > position[:, None]
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(dim=2)
        out[begin:end] = torch.einsum("thk,kl->thl", weights, keys[:, :latent]).to(out.dtype)
    return out
