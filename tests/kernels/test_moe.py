"""The mixture of experts' twin against transformers' Mixtral and Qwen2-MoE blocks."""

from __future__ import annotations

import torch
from octavo_gpuworker.kernels.moe import MoeWeights, moe_torch, route_torch, sort_by_expert_torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

WIDTH, FFN, EXPERTS, TOP_K = 32, 48, 8, 2


def mixtral_block() -> tuple[MixtralSparseMoeBlock, MoeWeights]:
    """transformers' block with random weights, and ours over the same tensors."""
    config = MixtralConfig(
        hidden_size=WIDTH, intermediate_size=FFN, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K
    )
    config._experts_implementation = "eager"
    block = MixtralSparseMoeBlock(config).eval()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.3)
    return block, MoeWeights(block.experts.gate_up_proj.detach(), block.experts.down_proj.detach(), TOP_K)


def test_the_twin_is_mixtrals_block(check) -> None:
    block, weights = mixtral_block()
    x = torch.randn(1, 50, WIDTH)
    with torch.no_grad():
        expected = block(x)[0]
        logits = block.gate(x)[0]
    check(moe_torch(x[0], logits, weights), expected.double())


def test_equal_logits_choose_the_lower_expert() -> None:
    shares, experts = route_torch(torch.zeros(2, 5), 3, renormalize=False)
    assert experts.tolist() == [[0, 1, 2]] * 2
    assert torch.allclose(shares, torch.full((2, 3), 0.2))


def test_sorting_is_stable_and_inverts() -> None:
    experts = torch.tensor([[3, 1], [1, 0], [3, 1]], dtype=torch.int32)
    order, position, starts = sort_by_expert_torch(experts, 4)
    assert order.tolist() == [3, 1, 2, 5, 0, 4]
    assert order[position.long()].tolist() == [0, 1, 2, 3, 4, 5]
    assert starts.tolist() == [0, 1, 4, 4, 6]
