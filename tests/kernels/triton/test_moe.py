"""Mixture of experts in the interpreter: each kernel against its twin, the whole against transformers' Mixtral block."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from octavo_gpuworker.kernels.moe import MoeWeights, moe_torch, route_torch, sort_by_expert_torch
from octavo_gpuworker.kernels.triton.moe import grouped_gemm_launch, moe_triton, route_launch, sort_launch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

EXAMPLES = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TOKENS = st.sampled_from([0, 1, 3, 17, 70])


@EXAMPLES
@given(tokens=TOKENS, experts=st.sampled_from([1, 3, 8, 60]), top_k=st.integers(1, 8), renormalize=st.booleans())
def test_routing(tokens, experts, top_k, renormalize) -> None:
    top_k = min(top_k, experts)
    logits = torch.randint(-8, 8, (tokens, experts + 3)).float()[:, :experts]  # many are equal
    shares, chosen = torch.empty(tokens, top_k), torch.empty(tokens, top_k, dtype=torch.int32)
    route_launch(shares, chosen, logits, renormalize).run()
    expected = route_torch(logits, top_k, renormalize)
    assert chosen.equal(expected[1])
    assert torch.allclose(shares, expected[0], atol=1e-6)


@EXAMPLES
@given(count=st.sampled_from([0, 1, 5, 1024, 1500]), experts=st.sampled_from([1, 5, 8]), only=st.booleans())
def test_sorting(count, experts, only) -> None:
    """`only`: one expert takes everything, the others' runs are empty."""
    chosen = torch.randint(0, 1 if only else experts, (count, 2), dtype=torch.int32)
    order, position = (torch.full((2 * count + 1,), -7, dtype=torch.int32) for _ in range(2))
    starts = torch.empty(experts + 1, dtype=torch.int32)
    sort_launch(order, position, starts, chosen).run()
    expected = sort_by_expert_torch(chosen, experts)
    assert (order[:-1].equal(expected[0]), position[:-1].equal(expected[1])) == (True, True)
    assert starts.equal(expected[2])
    assert (order[-1], position[-1]) == (-7, -7)


@EXAMPLES
@given(
    tokens=TOKENS,
    experts=st.sampled_from([1, 4, 9]),
    sizes=st.sampled_from([(16, 48), (33, 20), (70, 65)]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    gathered=st.booleans(),
)
def test_grouped_product(tokens, experts, sizes, dtype, gathered, check) -> None:
    columns, depth = sizes
    top_k = min(2, experts)
    chosen = torch.rand(tokens, experts).argsort(dim=1)[:, :top_k].int()
    order, _, starts = sort_by_expert_torch(chosen, experts)
    x = torch.randn(tokens if gathered else tokens * top_k, depth + 8).to(dtype)[:, :depth]
    weight = torch.randn(experts, columns, depth).to(dtype)
    out = torch.full((tokens * top_k + 1, columns), 77.0, dtype=dtype)
    if tokens:
        grouped_gemm_launch(out[:-1], x, weight, order if gathered else None, starts, top_k).run()
    of_row = chosen.flatten()[order.long()].long()
    rows = x[order.long() // top_k] if gathered else x
    check(out[:-1], torch.einsum("rd,rcd->rc", rows.double(), weight[of_row].double()))
    assert (out[-1] == 77).all()


@EXAMPLES
@given(tokens=TOKENS, top_k=st.integers(1, 3), renormalize=st.booleans())
def test_the_whole(tokens, top_k, renormalize, check) -> None:
    weights = MoeWeights(torch.randn(6, 2 * 24, 32), torch.randn(6, 32, 24), top_k, renormalize)
    x, logits = torch.randn(tokens, 32), torch.randn(tokens, 6)
    check(moe_triton(x, logits, weights), moe_torch(x.double(), logits, _double(weights)).double())


def _double(weights: MoeWeights) -> MoeWeights:
    return MoeWeights(weights.gate_up.double(), weights.down.double(), weights.top_k, weights.renormalize)


def test_against_mixtrals_block(check) -> None:
    config = MixtralConfig(hidden_size=32, intermediate_size=48, num_local_experts=8, num_experts_per_tok=2)
    config._experts_implementation = "eager"
    block = MixtralSparseMoeBlock(config).eval()
    x = torch.randn(1, 40, 32)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.3)
        expected, logits = block(x)[0], block.gate(x)[0]
    weights = MoeWeights(block.experts.gate_up_proj.detach(), block.experts.down_proj.detach(), 2)
    check(moe_triton(x[0], logits, weights), expected.double())


def test_too_many_experts_are_refused() -> None:
    weights = MoeWeights(torch.empty(257, 4, 2, device="meta"), torch.empty(257, 2, 2, device="meta"), 1)
    with pytest.raises(ValueError, match="257 experts are more than 256; use the torch row"):
        moe_triton(torch.empty(1, 2, device="meta"), torch.empty(1, 257, device="meta"), weights)
