"""load_model: shards, progress, fingerprints, dtypes, and folders that are refused."""

from __future__ import annotations

import json

import pytest
import torch
from octavo.artifacts import BadArtifact, resolve_model
from octavo_gpuworker.model.load import auto_dtype, load_config, load_model

from .conftest import hf_model

IDS = list(range(3, 60))


def test_shards_load_like_one_file(save_hf, make_runner, reference_logits) -> None:
    model, files = save_hf("Qwen2", shard_size="40KB")
    assert len(files.weights) > 2
    runner = make_runner(load_model(files, dtype="float32"))
    assert (runner.step([(runner.add(IDS), len(IDS))])[0] - reference_logits(model, IDS)).abs().max() < 1e-4


def test_progress_counts_every_tensor_once(save_hf) -> None:
    model, files = save_hf("Llama", tie_word_embeddings=False)
    seen: list[tuple[int, int]] = []
    load_model(files, progress=lambda done, total: seen.append((done, total)))
    total = len(model.state_dict())
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_fingerprint_changes_with_whatever_changes_kv(save_hf) -> None:
    _, files = save_hf("Llama")

    def print_of(**settings: str) -> bytes:
        return load_model(files, **settings).fingerprint

    base = print_of()
    assert len(base) == 32
    assert print_of() == base
    prints = {base, print_of(dtype="float32"), print_of(kv_dtype="float32")}
    config = json.loads(files.config_json.read_text())
    config["rope_parameters"]["rope_theta"] = 12345.0
    files.config_json.write_text(json.dumps(config))
    prints.add(print_of())
    tokenizer = json.loads(files.tokenizer_json.read_text())
    tokenizer["model"]["vocab"]["another"] = 300
    files.tokenizer_json.write_text(json.dumps(tokenizer))
    prints.add(print_of())
    raw = bytearray(files.weights[0].read_bytes())
    raw[-1] ^= 1
    files.weights[0].write_bytes(raw)
    prints.add(print_of())
    assert len(prints) == 6


def test_dtypes(save_hf) -> None:
    _, files = save_hf("Llama")
    decoder = load_model(files, dtype="float32", kv_dtype="bfloat16")
    assert (decoder.dtype, decoder.kv_dtype) == (torch.float32, torch.bfloat16)
    assert load_model(files, dtype="auto").dtype == auto_dtype(torch.device("cpu"))
    assert auto_dtype(torch.device("cuda")) == torch.bfloat16
    with pytest.raises(ValueError, match="dtype is 'int3'; expected auto, bfloat16"):
        load_model(files, dtype="int3")
    with pytest.raises(ValueError, match="kv_dtype is 'fp7'"):
        load_model(files, kv_dtype="fp7")
    with pytest.raises(ValueError, match="kernels is 'cuda'; expected auto, triton, native, onednn, torch"):
        load_model(files, kernels="cuda")


def test_kv_in_bfloat16_under_float32_weights(save_hf, make_runner, reference_logits) -> None:
    model, files = save_hf("Llama")
    runner = make_runner(load_model(files, dtype="float32", kv_dtype="bfloat16"))
    seq = runner.add(IDS)
    ours = torch.cat([runner.step([(seq, 50)])[0], runner.step([(seq, 7)])[0]])
    expected = reference_logits(model, IDS)
    error = ((ours - expected).norm() / expected.norm()).item()
    assert 1e-5 < error < 0.02


def test_stop_ids_of_generation_config_are_taken(save_hf) -> None:
    _, files = save_hf("Llama")
    (files.path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert load_config(files).eos_token_ids == (2, 9)


def refusal(files) -> str:
    with pytest.raises(BadArtifact) as caught:
        load_model(files, dtype="float32")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("keep", [4, 100, 0.5, 0.99])
def test_damaged_safetensors_are_refused(save_hf, keep) -> None:
    _, files = save_hf("Llama")
    data = files.weights[0].read_bytes()
    files.weights[0].write_bytes(data[: int(len(data) * keep) if keep < 1 else keep])
    message = refusal(files)
    assert "bad safetensors file" in message
    assert "model.safetensors" in message


def test_a_header_that_lies_is_refused(save_hf) -> None:
    _, files = save_hf("Llama")
    data = files.weights[0].read_bytes()
    files.weights[0].write_bytes(b"\xff" * 8 + data[8:])
    assert "bad safetensors file" in refusal(files)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported; LlamaForCausalLM"),
        ({"architectures": None}, "(none) is not supported"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 4.0}}, "rope type 'longrope'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"num_hidden_layers": 4}, "model.layers.3.input_layernorm.weight and 8 more missing"),
        ({"intermediate_size": 64}, "mlp.gate_proj.weight has shape [96, 64], the config asks for [64, 64]"),
        ({"num_hidden_layers": 10**9}, "and 1000 more missing"),
        ({"num_key_value_heads": 4}, "self_attn.k_proj.weight has shape [32, 64], the config asks for [64, 64]"),
        ({"vocab_size": 200}, "model.embed_tokens.weight has shape [211, 64]"),
        ({"num_attention_heads": 3}, "3 query heads are no multiple of 2 KV heads"),
        ({"hidden_size": "many"}, "config.json: a wrong value or type"),
        ({"num_attention_heads": 0}, "q_heads is 0, expected a positive integer"),
    ],
)
def test_configs_that_are_refused(change, words, save_hf) -> None:
    _, files = save_hf("Llama")
    config = json.loads(files.config_json.read_text())
    files.config_json.write_text(json.dumps(config | change))
    assert words in refusal(files)


def test_qwen2_with_windows_in_some_layers_is_refused(save_hf) -> None:
    _, files = save_hf("Qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert "layers of both kinds" in refusal(files)


def test_integer_tensors_are_refused(save_hf) -> None:
    from safetensors.torch import load_file, save_file

    _, files = save_hf("Llama")
    tensors = load_file(files.weights[0])
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int32)
    save_file(tensors, files.weights[0])
    assert "model.norm.weight is torch.int32" in refusal(files)


def test_smollm2_loads_as_what_it_is() -> None:
    decoder = load_model(resolve_model("smollm2"))
    config = decoder.config
    assert (config.layers, config.q_heads, config.kv_heads, config.head_dim, config.d_model) == (30, 9, 3, 64, 576)
    assert (config.ffn, config.vocab_size, config.max_position, config.rope_theta) == (1536, 49152, 8192, 100000.0)
    assert config.tied_embeddings
    assert config.eos_token_ids == (2,)


def test_hf_model_is_deterministic() -> None:
    """The other tests compare two builds of one checkpoint."""
    first, second = hf_model("Qwen3"), hf_model("Qwen3")
    assert all(a.equal(b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))
