"""Decoder: one forward pass of a Llama-like model over paged KV. Every architecture is a setting of ModelConfig."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo_gpuworker.kernels import KernelTable
from octavo_gpuworker.kernels.attention_plan import AttentionPlan, PoolShape, plan_attention
from octavo_gpuworker.kernels.store_kv import KvWrite
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.inputs import StepInputs
from octavo_gpuworker.model.latent_attention import LatentAttention
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.model.projection import project
from octavo_gpuworker.model.rope import frequencies
from octavo_gpuworker.model.weights import LayerWeights, Weights

__all__ = ["Decoder", "StepInputs"]


class Decoder:
    """The model on one device. `forward` keeps no state of its own: all context lies in the pool it is given."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kernels: KernelTable,
        *,
        kv_dtype: torch.dtype,
        fingerprint: bytes,
    ) -> None:
        self.config = config
        self.weights = weights
        self.kernels = kernels
        self.dtype = weights.embedding.dtype
        self.kv_dtype = kv_dtype
        """What a pool for this decoder must be made of; part of the fingerprint."""
        self.device = weights.embedding.device
        self.fingerprint = fingerprint
        """32 bytes: whatever decides the KV bytes of given token ids, except the block size; the root of block keys."""
        self._frequencies = torch.from_numpy(frequencies(config)).to(self.device)
        self._latent = None if config.latent is None else LatentAttention(config, config.latent, kernels)
        self._act_mul = kernels.silu_mul if config.activation == "silu" else kernels.gelu_mul

    def beginning(self, layers: int) -> Decoder:
        """The first `layers` layers with the same weights; what follows them sees a residual that is not the last one."""
        return Decoder(
            replace(self.config, layers=layers),
            replace(self.weights, layers=self.weights.layers[:layers]),
            self.kernels,
            kv_dtype=self.kv_dtype,
            fingerprint=self.fingerprint,
        )

    @torch.inference_mode()
    def forward(self, inputs: StepInputs, pool: KvPool) -> Tensor:
        """Computes one step: writes the KV of all T new tokens to `pool`, returns [R, vocab] float32 logits of sample_rows.

        ValueError when a block table is shorter than its context.
        """
        config, weights, kernels = self.config, self.weights, self.kernels
        plans = self._plans(inputs, pool)
        write = self._kv_write(inputs, pool)
        last = config.layers - 1
        hidden, residual = F.embedding(inputs.token_ids, weights.embedding), None
        if config.embedding_scale != 1.0:
            hidden = hidden * config.embedding_scale
        for index, layer in enumerate(weights.layers):
            if residual is None:
                residual, hidden = hidden.float(), kernels.rms_norm(hidden, layer.attn_norm, config.norm_eps)
            else:
                hidden, residual = kernels.add_rms_norm(hidden, residual, layer.attn_norm, config.norm_eps)
            # a chunk that samples nothing needs no more of the last layer than its KV
            wanted = index < last or inputs.sample_rows.numel() > 0
            attended = self._attention(index, hidden, write, plans[index in config.full_layers], pool, wanted)
            if attended is None:
                return torch.empty(0, config.vocab_size, device=self.device)
            if index == last:
                attended, residual = attended[inputs.sample_rows], residual[inputs.sample_rows]
            hidden, residual = self._after_attention(layer, attended, residual)
        hidden, _ = kernels.add_rms_norm(hidden, residual, weights.norm, config.norm_eps)
        logits = project(kernels, hidden, weights.head)
        if config.logit_soft_cap:
            logits = kernels.soft_cap(logits, config.logit_soft_cap)
        return logits.float()

    def _plans(self, inputs: StepInputs, pool: KvPool) -> tuple[AttentionPlan, AttentionPlan]:
        """How layers attend: with the model's window, and without; the same plan where it makes no difference."""
        config = self.config
        shape = PoolShape(
            config.layers,
            config.q_heads,
            config.kv_heads,
            config.head_dim,
            pool.block_tokens,
            config.sliding_window,
            self.dtype,
            config.attention_soft_cap,
            config.score_scale,
        )

        def plan(shape: PoolShape) -> AttentionPlan:
            return plan_attention(
                inputs.query_start, inputs.context_len, inputs.block_tables, shape, inputs.new_tokens, inputs.contexts
            )

        usual = plan(shape)
        if config.sliding_window is None or not config.full_layers:
            return usual, usual
        return usual, plan(replace(shape, sliding_window=None))

    def _attention(
        self, index: int, hidden: Tensor, write: KvWrite, plan: AttentionPlan, pool: KvPool, wanted: bool
    ) -> Tensor | None:
        """Writes the layer's KV, and returns what the heads attended to, side by side, unless it is not `wanted`."""
        kernels, layer = self.kernels, self.weights.layers[index]
        if self._latent is not None and layer.latent is not None:
            cache = pool.tensor[:, index, 0, 0]
            queries = self._latent.queries(hidden, layer, layer.latent, write, cache)
            return self._latent.attend(queries, layer.latent, cache, plan) if wanted else None
        qkv = project(kernels, hidden, layer.qkv, layer.qkv_bias)
        scales = None if pool.scales is None else pool.scales[:, index]
        rotated = kernels.store_kv(qkv, write, layer.q_norm, layer.k_norm, pool.tensor[:, index], scales)
        return kernels.paged_attention(rotated, pool.tensor, index, plan, pool.scales) if wanted else None

    def _after_attention(self, layer: LayerWeights, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        kernels, eps = self.kernels, self.config.norm_eps
        hidden = project(kernels, attended, layer.o, layer.o_bias)
        if layer.post_attn_norm is not None:
            hidden = kernels.rms_norm(hidden, layer.post_attn_norm, eps)
        hidden, residual = kernels.add_rms_norm(hidden, residual, layer.mlp_norm, eps)
        hidden = self._feed_forward(layer, hidden)
        if layer.post_mlp_norm is not None:
            hidden = kernels.rms_norm(hidden, layer.post_mlp_norm, eps)
        return hidden, residual

    def _feed_forward(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        """The dense one, or the experts' sum, or both added: [T, d] of [T, d]."""
        dense = None
        if layer.gate_up is not None and layer.down is not None:
            gated = self._act_mul(project(self.kernels, hidden, layer.gate_up))
            dense = project(self.kernels, gated, layer.down)
        if layer.experts is None or layer.router is None or self.config.experts is None:
            if dense is None:
                raise ValueError("a layer has neither a feed-forward nor experts")
            return dense
        # Routing in float32: a rounded logit may choose another expert.
        mixed = self.kernels.moe(hidden, F.linear(hidden.float(), layer.router), layer.experts)
        if self.config.experts.scale != 1.0:
            mixed = mixed * self.config.experts.scale
        return mixed if dense is None else mixed + dense

    def _kv_write(self, inputs: StepInputs, pool: KvPool) -> KvWrite:
        config = self.config
        angles = inputs.positions[:, None].float() * self._frequencies
        sin = angles.sin()
        cos = angles.cos()
        if config.rope_scaling is not None and config.rope_scaling.amplitude != 1.0:
            cos, sin = cos * config.rope_scaling.amplitude, sin * config.rope_scaling.amplitude
        return KvWrite(
            cos=cos[:, None, None, :],
            sin=torch.stack((-sin, sin), dim=1)[:, None],
            blocks=torch.div(inputs.slot_mapping, pool.block_tokens, rounding_mode="floor"),
            offsets=inputs.slot_mapping % pool.block_tokens,
            q_heads=config.q_heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
        )
