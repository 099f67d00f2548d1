"""Decoder: one forward pass of a Llama-like model over paged KV. Every architecture is a setting of ModelConfig."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo_gpuworker.kernels import KernelTable
from octavo_gpuworker.kernels.attention_plan import PoolShape, plan_attention
from octavo_gpuworker.kernels.store_kv import KvWrite
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.inputs import StepInputs
from octavo_gpuworker.model.pool import KvPool
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
        self._act_mul = kernels.silu_mul if config.activation == "silu" else kernels.gelu_mul

    @torch.inference_mode()
    def forward(self, inputs: StepInputs, pool: KvPool) -> Tensor:
        """Computes one step: writes the KV of all T new tokens to `pool`, returns [R, vocab] float32 logits of sample_rows.

        ValueError when a block table is shorter than its context.
        """
        config, weights, kernels = self.config, self.weights, self.kernels
        shape = PoolShape(
            config.layers,
            config.q_heads,
            config.kv_heads,
            config.head_dim,
            pool.block_tokens,
            config.sliding_window,
            self.dtype,
        )
        plan = plan_attention(
            inputs.query_start, inputs.context_len, inputs.block_tables, shape, inputs.new_tokens, inputs.contexts
        )
        write = self._kv_write(inputs, pool)
        last = config.layers - 1
        hidden, residual = F.embedding(inputs.token_ids, weights.embedding), None
        for index, layer in enumerate(weights.layers):
            if residual is None:
                residual, hidden = hidden.float(), kernels.rms_norm(hidden, layer.attn_norm, config.norm_eps)
            else:
                hidden, residual = kernels.add_rms_norm(hidden, residual, layer.attn_norm, config.norm_eps)
            qkv = kernels.linear(hidden, layer.qkv, layer.qkv_bias)
            scales = None if pool.scales is None else pool.scales[:, index]
            queries = kernels.store_kv(qkv, write, layer.q_norm, layer.k_norm, pool.tensor[:, index], scales)
            if index == last and not inputs.sample_rows.numel():
                break  # a chunk that samples nothing needs no more than its KV
            attended = kernels.paged_attention(queries, pool.tensor, index, plan, pool.scales)
            if index == last:
                attended, residual = attended[inputs.sample_rows], residual[inputs.sample_rows]
            hidden, residual = self._after_attention(layer, attended, residual)
        else:
            hidden, _ = kernels.add_rms_norm(hidden, residual, weights.norm, config.norm_eps)
            return kernels.linear(hidden, weights.head, None).float()
        return torch.empty(0, config.vocab_size, device=self.device)

    def _after_attention(self, layer: LayerWeights, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        kernels = self.kernels
        hidden = kernels.linear(attended, layer.o, layer.o_bias)
        hidden, residual = kernels.add_rms_norm(hidden, residual, layer.mlp_norm, self.config.norm_eps)
        hidden = self._act_mul(kernels.linear(hidden, layer.gate_up, None))
        return kernels.linear(hidden, layer.down, None), residual

    def _kv_write(self, inputs: StepInputs, pool: KvPool) -> KvWrite:
        config = self.config
        angles = inputs.positions[:, None].float() * self._frequencies
        sin = angles.sin()
        return KvWrite(
            cos=angles.cos()[:, None, None, :],
            sin=torch.stack((-sin, sin), dim=1)[:, None],
            blocks=torch.div(inputs.slot_mapping, pool.block_tokens, rounding_mode="floor"),
            offsets=inputs.slot_mapping % pool.block_tokens,
            q_heads=config.q_heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
        )
