"""latent_attention: one layer of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) over the paged cache of latents.

Up to VERIFY_QUERIES new tokens of a sequence attend in latent space; longer chunks go to `mla_prefill`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_gpuworker.kernels import KernelTable
from octavo_gpuworker.kernels.attention_plan import AttentionPlan
from octavo_gpuworker.kernels.mla import absorb_query, expand_output, store_latent
from octavo_gpuworker.kernels.store_kv import KvWrite, rotate
from octavo_gpuworker.model.config import LatentConfig, ModelConfig
from octavo_gpuworker.model.projection import project
from octavo_gpuworker.model.weights import LatentWeights, LayerWeights


class LatentAttention:
    """Latent attention of one model; holds no state but its numbers."""

    def __init__(self, config: ModelConfig, latent: LatentConfig, kernels: KernelTable) -> None:
        self._config, self._latent, self._kernels = config, latent, kernels

    def queries(
        self, hidden: Tensor, layer: LayerWeights, weights: LatentWeights, write: KvWrite, cache: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Writes hidden's [T, d] latents to `cache` [blocks, tokens, rank + rope] and returns its queries: [T, H, nope] and,
        rotated, [T, H, rope]."""
        config, latent, kernels = self._config, self._latent, self._kernels
        first = project(kernels, hidden, layer.qkv)
        ours, held, key = first.split_with_sizes(
            (first.shape[1] - latent.rank - latent.rope, latent.rank, latent.rope), dim=1
        )
        if weights.q_norm is not None and weights.q_up is not None:
            ours = project(kernels, self._normed(ours, weights.q_norm), weights.q_up)
        turned = rotate(key[:, None], write.cos, write.sin)[:, 0]
        store_latent(self._normed(held, weights.norm), turned.to(hidden.dtype), write.blocks, write.offsets, cache)
        plain, turning = ours.view(-1, config.q_heads, config.head_dim).split_with_sizes(
            (latent.nope, latent.rope), dim=2
        )
        return plain, rotate(turning, write.cos, write.sin).to(hidden.dtype)

    def attend(
        self, queries: tuple[Tensor, Tensor], weights: LatentWeights, cache: Tensor, plan: AttentionPlan
    ) -> Tensor:
        """[T, H * value] in the queries' dtype."""
        plain, turned = queries
        if plan.batch.decode_query:
            found = self._kernels.mla_decode(absorb_query(plain, weights.up), turned, cache, plan.batch)
            out = expand_output(found, weights.up)
        else:
            out = torch.empty(
                len(plain), self._config.q_heads * self._latent.value, dtype=plain.dtype, device=plain.device
            )
        if plan.batch.prefills:
            self._kernels.mla_prefill(plain, turned, weights.up, cache, plan, out)
        return out

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        normed: Tensor = self._kernels.rms_norm(x.contiguous(), weight, self._config.norm_eps)
        return normed
