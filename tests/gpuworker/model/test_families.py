"""Mixtral, Gemma 2 and DeepSeek-V2 against transformers in float32: whole prompts, uneven chunks, decode, mixed batches."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
import torch
from octavo.artifacts import BadArtifact
from octavo_gpuworker.model.config import ExpertConfig, LatentConfig
from octavo_gpuworker.model.load import load_config, load_model

TOLERANCE = 1e-4
MIXTRAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 12,
    "head_dim": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
}
GEMMA2 = {"head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 21}
VARIANTS = {
    "mixtral": ("Mixtral", MIXTRAL),
    "mixtral-window": ("Mixtral", MIXTRAL | {"sliding_window": 21}),
    "deepseek": ("DeepseekV2", DEEPSEEK),
    "deepseek-lite": ("DeepseekV2", DEEPSEEK | {"q_lora_rank": None, "routed_scaling_factor": 2.5}),
    "deepseek-yarn": ("DeepseekV2", DEEPSEEK | {"rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.9}}),
    "deepseek-experts-everywhere": ("DeepseekV2", DEEPSEEK | {"first_k_dense_replace": 0}),
    "qwen3-yarn": ("Qwen3", {"head_dim": 24, "rope_parameters": YARN}),
    "gemma2": ("Gemma2", GEMMA2),
    "gemma2-strong-caps": ("Gemma2", GEMMA2 | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2-no-caps": ("Gemma2", GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
}


def ids_of(count: int, seed: int) -> list[int]:
    return [random.Random(f"{seed}/{i}").randrange(3, 211) for i in range(count)]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.3, "the reference is too flat to show an error"
    assert (ours - theirs).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("variant", VARIANTS)
def test_parity(variant, save_hf, make_runner, reference_logits) -> None:
    kind, changes = VARIANTS[variant]
    model, files = save_hf(kind, **changes)
    ids = ids_of(120, 1)
    expected = reference_logits(model, ids)

    runner = make_runner(load_model(files, dtype="float32"))
    runner.pool.tensor[1:] = float("nan")  # what an earlier owner left behind
    whole = runner.add(ids)
    close(runner.step([(whole, 100)])[0], expected[:100])
    for position in range(100, 110):
        close(runner.step([(whole, 1)])[0], expected[position : position + 1])
    close(runner.step([(whole, 3)])[0], expected[110:113])

    chunked, other = runner.add(ids), runner.add(ids[:50])
    for count in (1, 37, 8, 9, 3, 40):
        start = chunked.computed
        work = [(chunked, count)] + ([(other, 30)] if other.computed < 30 else [(other, 1)])
        before = other.computed
        ours, theirs = runner.step(work)
        close(ours, expected[start : start + count])
        close(theirs, expected[before : before + work[1][1]])


@pytest.mark.parametrize("variant", ["mixtral", "deepseek", "gemma2"])
def test_a_chunk_without_samples_leaves_the_same_cache(variant, save_hf, make_runner, reference_logits) -> None:
    kind, changes = VARIANTS[variant]
    model, files = save_hf(kind, **changes)
    runner = make_runner(load_model(files, dtype="float32"))
    ids = ids_of(40, 2)
    seq = runner.add(ids)
    logits = runner.decoder.forward(runner.inputs([(seq, 30)], sample=[]), runner.pool)
    assert logits.shape == (0, 211)
    seq.computed = 30
    close(runner.step([(seq, 10)])[0], reference_logits(model, ids)[30:])


def test_a_latent_cache_is_as_small_as_its_latents(save_hf) -> None:
    _, files = save_hf("DeepseekV2", **DEEPSEEK)
    config = load_config(files)
    assert config.latent == LatentConfig(rank=32, nope=16, rope=16, value=12, q_rank=24)
    assert config.experts == ExpertConfig(6, 3, 32, renormalize=False, shared_ffn=64, first_layer=1)
    assert config.cache_shape == (1, 1, 48)
    assert config.head_dim == 32
    assert dataclasses.replace(config, latent=None).cache_shape == (2, 4, 32)


@pytest.mark.parametrize(
    ("kind", "sizes", "change", "words"),
    [
        ("DeepseekV2", DEEPSEEK, {"topk_method": "group_limited_greedy"}, "topk_method 'group_limited_greedy' is not"),
        ("DeepseekV2", DEEPSEEK, {"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported"),
        ("DeepseekV2", DEEPSEEK, {"attention_bias": True}, "attention_bias is not supported beside latent attention"),
        ("DeepseekV2", DEEPSEEK, {"qk_rope_head_dim": 15}, "rope is even"),
        ("DeepseekV2", DEEPSEEK, {"kv_lora_rank": "wide"}, "a wrong value or type"),
        ("Mixtral", MIXTRAL, {"num_experts_per_tok": 9}, "9 of 5 experts"),
        ("Mixtral", MIXTRAL, {"hidden_act": "gelu_new"}, "activation is gelu_tanh beside experts"),
        (
            "Mixtral",
            MIXTRAL,
            {"num_local_experts": 6},
            "block_sparse_moe.gate.weight has shape [5, 64], the config asks for [6, 64]",
        ),
        ("Gemma2", GEMMA2, {"query_pre_attn_scalar": 0}, "a wrong value or type"),
    ],
)
def test_configs_that_are_refused(kind, sizes, change, words, save_hf) -> None:
    _, files = save_hf(kind, **sizes)
    config = json.loads(files.config_json.read_text())
    files.config_json.write_text(json.dumps(config | change))
    with pytest.raises(BadArtifact) as error:
        load_model(files, dtype="float32")
    assert words in str(error.value)
    assert str(files.path) in str(error.value)


@pytest.mark.parametrize("setting", [{"kv_dtype": "int8"}, {"kv_dtype": "fp8"}, {"weights": "int8"}])
def test_settings_that_a_latent_cache_or_experts_cannot_have(setting, save_hf) -> None:
    _, files = save_hf("DeepseekV2", **DEEPSEEK)
    with pytest.raises(
        ValueError, match=r"kv_dtype is '(int8|fp8)', but a latent cache|weights is 'int8', but a mixture"
    ):
        load_model(files, dtype="float32", **setting)
