"""moe: a mixture of experts' feed-forward (Mixtral, arXiv 2401.04088): route, sort by expert, grouped products, combine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """Experts of one layer and how tokens choose among them."""

    gate_up: Tensor
    """[E, 2 * ffn, d]: each expert's gate rows, then its up rows."""
    down: Tensor
    """[E, d, ffn]."""
    top_k: int
    renormalize: bool = True
    """The chosen experts' weights are made to add up to 1 (Mixtral does; Qwen2-MoE and DeepSeek-V2 do not)."""


def route_torch(logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """Router logits [T, E] -> (weights [T, K] float32, experts [T, K] int32), best first; of equal ones the lower expert."""
    probabilities = logits.float().softmax(dim=1)
    weights, experts = (part[:, :top_k] for part in probabilities.sort(dim=1, descending=True, stable=True))
    if renormalize:
        weights = weights / weights.sum(dim=1, keepdim=True)
    return weights.contiguous(), experts.int().contiguous()


def sort_by_expert_torch(experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """experts [T, K] -> (order [T * K], position [T * K], starts [E + 1]), all int32.

    Assignment a = t * K + k of expert e lies at position[a], inside [starts[e], starts[e + 1]); order[position[a]] = a.
    Stable: an expert's assignments keep their order.
    """
    flat = experts.flatten().long()
    order = flat.argsort(stable=True)
    position = torch.empty_like(order)
    position[order] = torch.arange(len(order), device=order.device)
    starts = torch.zeros(num_experts + 1, dtype=torch.int64, device=order.device)
    torch.cumsum(flat.bincount(minlength=num_experts), 0, out=starts[1:])
    return order.int(), position.int(), starts.int()


def moe_torch(x: Tensor, router_logits: Tensor, weights: MoeWeights) -> Tensor:
    """x [T, d], router_logits [T, E] float32 -> [T, d] in x's dtype: expert after expert, summed in float32."""
    shares, experts = route_torch(router_logits, weights.top_k, weights.renormalize)
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(weights.gate_up.shape[0]):
        token, choice = (experts == expert).nonzero(as_tuple=True)
        gate, up = F.linear(x[token], weights.gate_up[expert]).chunk(2, dim=1)
        out = F.linear(F.silu(gate) * up, weights.down[expert])
        total.index_add_(0, token, out.float() * shares[token, choice, None])
    return total.to(x.dtype)
