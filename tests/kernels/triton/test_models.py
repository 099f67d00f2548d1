"""Models that use every family, under the interpreter: logits of Triton's rows equal the oracle's, and nothing fell back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from octavo.artifacts import resolve_model
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.load import load_model

from tests.gpuworker.model.conftest import Runner, hf_model, write_tokenizer

IDS = [random.Random(i).randrange(3, 211) for i in range(40)]
HEADS = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32}
DEEPSEEK = {
    "num_hidden_layers": 2, "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 16, "head_dim": 16,
}  # fmt: skip
DENSE = {"rms_norm", "add_rms_norm", "store_kv", "paged_attention", "silu_mul"}
CASES = {
    "mixtral": ("Mixtral", HEADS | {"num_local_experts": 4}, "auto", DENSE - {"silu_mul"} | {"linear", "moe"}),
    "deepseek": (
        "DeepseekV2", DEEPSEEK, "auto",
        {"linear", "rms_norm", "add_rms_norm", "silu_mul", "moe", "mla_decode", "mla_prefill"},
    ),
    "gemma2": (
        "Gemma2", HEADS | {"query_pre_attn_scalar": 20, "sliding_window": 21}, "auto",
        DENSE - {"silu_mul"} | {"linear", "gelu_mul", "soft_cap"},
    ),
    "int8": ("Qwen2", HEADS, "int8", DENSE | {"quant_linear"}),
    "int4": ("Qwen2", HEADS, "int4", DENSE | {"quant_linear"}),
    "w8a8": ("Qwen2", HEADS, "w8a8", DENSE | {"quant_linear"}),
}  # fmt: skip


def logits_of(decoder: Decoder) -> torch.Tensor:
    """A prompt, then a chunk beside decodes of another sequence, then decodes of both."""
    runner = Runner(decoder, block_tokens=8)
    seq, other = runner.add(IDS), runner.add(IDS[::-1])
    rows = [torch.cat(runner.step([(seq, 13), (other, 3)])), torch.cat(runner.step([(seq, 17), (other, 1)]))]
    rows += [torch.cat(runner.step([(seq, 1), (other, 1)])) for _ in range(2)]
    return torch.cat(rows)


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_the_oracles_and_every_call_is_tritons(name, tmp_path: Path) -> None:
    kind, sizes, weights, operations = CASES[name]
    hf_model(kind, **sizes).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    files = resolve_model(str(tmp_path))
    settings = {"dtype": "float32", "weights": weights, "block_tokens": 8}
    expected = logits_of(load_model(files, kernels="torch", **settings))
    decoder = load_model(files, kernels="triton", **settings)
    ours = logits_of(decoder)
    # a w8a8 activation that lies on the edge between two codes may fall on either side
    assert (ours - expected).abs().max() < (0.2 if weights == "w8a8" else 1e-3)
    used = {key for key, calls in decoder.kernels.kernel_calls_by_reason.items() if calls}
    assert used == {(operation, "triton", "chosen") for operation in operations}
    assert load_model(files, kernels="strict", **settings).kernels.choices, "strict: nothing that it needs falls back"
