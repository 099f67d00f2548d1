"""One layer at a time over plain tensors: what blending needs and the paged decoder does not show."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo_gpuworker.blending.fit import model_refusal
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.projection import project
from octavo_gpuworker.model.rope import frequencies
from octavo_gpuworker.model.weights import LayerWeights


@dataclass(slots=True)
class LayerKv:
    """keys, values [tokens, kv_heads, head_dim]; keys are rotated."""

    keys: Tensor
    values: Tensor


class DenseLayers:
    """The decoder's own weights and kernels. ValueError for a model with latents, experts, windows or soft caps."""

    def __init__(self, decoder: Decoder) -> None:
        config = decoder.config
        if reason := model_refusal(config):
            raise ValueError(reason)
        self.config = config
        self.weights = decoder.weights
        self._kernels = decoder.kernels
        self._act_mul = decoder.kernels.silu_mul if config.activation == "silu" else decoder.kernels.gelu_mul
        self._frequencies = torch.from_numpy(frequencies(config))
        scaling = config.rope_scaling
        self._amplitude = 1.0 if scaling is None else scaling.amplitude

    def embed(self, ids: Tensor) -> Tensor:
        """ids [T] -> hidden [T, d], float32 residual stream."""
        return F.embedding(ids, self.weights.embedding).float() * self.config.embedding_scale

    def qkv(self, index: int, hidden: Tensor, positions: Tensor) -> tuple[Tensor, LayerKv]:
        """hidden [T, d] at positions [T] -> rotated queries [T, q_heads, dim] and the layer's KV."""
        config, layer = self.config, self.weights.layers[index]
        normed = self._norm(hidden, layer.attn_norm)
        fused = project(self._kernels, normed, layer.qkv, layer.qkv_bias)
        heads = fused.view(len(hidden), -1, config.head_dim)
        q, k, v = torch.split(heads, [config.q_heads, config.kv_heads, config.kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        return self._rotate(q, positions, self._amplitude), LayerKv(self._rotate(k, positions, self._amplitude), v)

    def moved(self, keys: Tensor, by: int) -> Tensor:
        """Rotated keys as if they stood `by` positions later: rotations add up (RoPE, arXiv 2104.09864, section 3.2.2)."""
        return self._rotate(keys, torch.full((len(keys),), by), 1.0)

    def _rotate(self, x: Tensor, positions: Tensor, amplitude: float) -> Tensor:
        angles = positions[:, None].float() * self._frequencies
        cos, sin = angles.cos()[:, None] * amplitude, angles.sin()[:, None] * amplitude
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

    def attend(self, queries: Tensor, at: Tensor, kv: LayerKv) -> Tensor:
        """queries [S, q_heads, dim] of positions `at` [S] over positions 0, 1, ... of `kv` -> [S, q_heads * dim], causal."""
        mask = torch.arange(len(kv.keys))[None, :] <= at[:, None]
        keys, values = (
            part.repeat_interleave(self.config.group, dim=1).transpose(0, 1) for part in (kv.keys, kv.values)
        )
        scores = F.scaled_dot_product_attention(
            queries.transpose(0, 1), keys, values, attn_mask=mask, scale=self.config.score_scale
        )
        return scores.transpose(0, 1).flatten(1)

    def after(self, index: int, attended: Tensor, hidden: Tensor) -> Tensor:
        """The rest of the layer: output projection and feed-forward, both added to the residual."""
        layer: LayerWeights = self.weights.layers[index]
        if layer.gate_up is None or layer.down is None:
            raise ValueError("a layer has no feed-forward")
        hidden = hidden + project(self._kernels, attended, layer.o, layer.o_bias).float()
        gated = self._act_mul(project(self._kernels, self._norm(hidden, layer.mlp_norm), layer.gate_up))
        return hidden + project(self._kernels, gated, layer.down).float()

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, d] -> [R, vocab] float32."""
        return project(self._kernels, self._norm(hidden, self.weights.norm), self.weights.head).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), weight.shape, weight.float(), self.config.norm_eps).to(
            self.weights.embedding.dtype
        )
