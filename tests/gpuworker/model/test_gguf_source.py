"""GGUF files answer like the checkpoint they were made of, and the ones that cannot are refused in one line."""

from __future__ import annotations

import struct

import gguf
import pytest
import torch
from octavo.artifacts import BadArtifact, resolve_model
from octavo_gpuworker.model.gguf_source import gguf_name
from octavo_gpuworker.model.load import load_config, load_model

from .conftest import hf_model

IDS = [(7 * i) % 200 + 3 for i in range(90)]


def logits_of(path, make_runner) -> torch.Tensor:
    runner = make_runner(load_model(resolve_model(str(path)), dtype="float32"))
    seq = runner.add(IDS)
    return torch.cat([runner.step([(seq, 80)])[0], *(runner.step([(seq, 1)])[0] for _ in range(10))])


@pytest.mark.parametrize(
    ("arch", "kind", "changes"),
    [
        ("llama", "Llama", {"tie_word_embeddings": False}),
        ("llama", "Llama", {"tie_word_embeddings": True, "attention_bias": True}),
        ("qwen2", "Qwen2", {"tie_word_embeddings": True}),
        ("qwen3", "Qwen3", {"head_dim": 24}),
    ],
)
def test_f32_is_the_checkpoint(arch, kind, changes, write_gguf, make_runner, reference_logits) -> None:
    model = hf_model(kind, **changes)
    ours = logits_of(write_gguf(model, arch), make_runner)
    assert (ours - reference_logits(model, IDS)).abs().max() < 1e-4


def test_mistral_is_a_llama_with_a_window(write_gguf, make_runner, reference_logits) -> None:
    model = hf_model("Mistral", sliding_window=21, head_dim=16)
    path = write_gguf(model, "llama", extra={"llama.attention.sliding_window": 21})
    assert (logits_of(path, make_runner) - reference_logits(model, IDS)).abs().max() < 1e-4


def test_rope_factors_of_llama3(write_gguf, make_runner, reference_logits) -> None:
    """A converter writes llama3 scaling as one divisor per frequency."""
    rope = {
        "rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    model = hf_model("Llama", rope_parameters=rope)
    plain = 1.0 / 5000.0 ** (torch.arange(0, 16, 2).float() / 16)
    model_factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    path = write_gguf(model, "llama")
    unscaled = logits_of(path, make_runner)
    writer = gguf.GGUFWriter(path.with_name("rope.gguf"), "llama")
    _rewrite_with_tensor(path, writer, "rope_freqs.weight", model_factors)
    expected = reference_logits(model, IDS)
    assert (logits_of(path.with_name("rope.gguf"), make_runner) - expected).abs().max() < 1e-4
    assert (unscaled - expected).abs().max() > 0.1


def _rewrite_with_tensor(path, writer, name, array) -> None:
    reader = gguf.GGUFReader(path)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            writer.add_key_value(
                field.name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None
            )
    writer.add_tensor(name, array)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("quant", "worst"), [("F16", 2e-3), ("BF16", 0.02), ("Q8_0", 0.05), ("Q5_1", 0.3), ("Q4_1", 0.6), ("Q4_0", 0.6)]
)
def test_quantized_within_tolerance(quant, worst, write_gguf, make_runner, reference_logits) -> None:
    """Bounds are a third above what is measured; a wrong row order gives about 1.4."""
    model = hf_model("Llama", hidden_size=128, head_dim=32, intermediate_size=128, initializer_range=0.1)
    expected = reference_logits(model, IDS)
    ours = logits_of(write_gguf(model, "llama", quant), make_runner)
    error = ((ours - expected).norm() / expected.norm()).item()
    assert error < worst
    assert error > worst / 100, "suspiciously exact: was it quantized at all?"


@pytest.mark.parametrize("quant", ["F16", "Q8_0", "Q4_1", "Q4_0", "Q5_0", "Q5_1"])
def test_quantized_equals_its_own_dequantized_values(quant, write_gguf, make_runner, reference_logits) -> None:
    """Against the very numbers the file holds there is no tolerance left for a wrong row or block."""
    model = hf_model("Llama", hidden_size=64)
    path = write_gguf(model, "llama", quant)
    kind = gguf.GGMLQuantizationType[quant]
    with torch.no_grad():
        for _name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                rounded = gguf.quants.dequantize(gguf.quants.quantize(parameter.numpy(), kind), kind)
                parameter.copy_(torch.from_numpy(rounded))
    assert (logits_of(path, make_runner) - reference_logits(model, IDS)).abs().max() < 1e-4


def test_k_quants_load(write_gguf) -> None:
    """gguf dequantizes K-quants but cannot write them: a file with well-formed Q4_K and Q6_K bytes must load."""
    for quant in ("Q4_K", "Q6_K"):
        kind = gguf.GGMLQuantizationType[quant]
        model = hf_model("Llama", hidden_size=256, head_dim=64, intermediate_size=256, num_hidden_layers=1)
        path = write_gguf(model, "llama", name=f"{quant}.gguf")
        writer = gguf.GGUFWriter(path.with_name(f"{quant}-k.gguf"), "llama")
        reader = gguf.GGUFReader(path)
        for field in reader.fields.values():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                writer.add_key_value(
                    field.name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None
                )
        block, size = gguf.GGML_QUANT_SIZES[kind]
        for tensor in reader.tensors:
            if tensor.data.ndim == 2:
                rows, width = tensor.data.shape
                raw = torch.zeros(rows, width // block * size, dtype=torch.uint8).numpy()
                writer.add_tensor(tensor.name, raw, raw_dtype=kind)
            else:
                writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        decoder = load_model(resolve_model(str(path.with_name(f"{quant}-k.gguf"))), dtype="float32", kernels="torch")
        assert decoder.weights.layers[0].down.abs().max() == 0, "all-zero blocks are zeros in every K-quant"


def test_config_of_a_gguf(write_gguf) -> None:
    config = load_config(resolve_model(str(write_gguf(hf_model("Qwen3", head_dim=24), "qwen3"))))
    assert (config.architecture, config.head_dim, config.qk_norm, config.qkv_bias) == ("qwen3", 24, True, False)
    assert (config.eos_token_ids, config.bos_token_id, config.vocab_size) == ((2,), 1, 211)


def refusal(path) -> str:
    with pytest.raises(BadArtifact) as caught:
        load_model(resolve_model(str(path)), dtype="float32")
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


@pytest.fixture
def good(write_gguf):
    return write_gguf(hf_model("Llama"), "llama", "Q8_0")


@pytest.mark.parametrize("keep", [5, 20, 200, 3000, 0.5, 0.9, -64])
def test_truncated_anywhere_is_refused(good, keep) -> None:
    data = good.read_bytes()
    size = int(len(data) * keep) if isinstance(keep, float) else keep
    good.write_bytes(data[:size])
    assert "truncated GGUF" in refusal(good)
    assert "again" in refusal(good)


def test_wrong_magic_is_refused(good) -> None:
    good.write_bytes(b"GGML" + good.read_bytes()[4:])
    assert "not a GGUF file" in refusal(good)


def test_big_endian_is_refused(write_gguf) -> None:
    path = write_gguf(hf_model("Llama"), "llama", "F16", endian=gguf.GGUFEndian.BIG)
    message = refusal(path)
    assert "big-endian" in message
    assert "gguf_convert_endian" in message


def test_unknown_version_is_refused(good) -> None:
    data = bytearray(good.read_bytes())
    data[4:8] = struct.pack("<I", 9)
    good.write_bytes(data)
    assert "version 9" in refusal(good)


def _patch_tensor_type(path, name: str, type_id: int) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
    dims = struct.unpack_from("<I", data, at)[0]
    struct.pack_into("<I", data, at + 4 + 8 * dims, type_id)
    path.write_bytes(data)


def test_unknown_type_is_refused(good) -> None:
    _patch_tensor_type(good, "blk.1.ffn_up.weight", 77)
    message = refusal(good)
    assert "blk.1.ffn_up.weight" in message
    assert "unknown type id 77" in message


def test_type_that_gguf_cannot_dequantize_is_refused_by_name(good) -> None:
    _patch_tensor_type(good, "blk.2.attn_norm.weight", int(gguf.GGMLQuantizationType.I32))
    assert "I32" in refusal(good)


def test_unsupported_architecture_is_refused(write_gguf) -> None:
    message = refusal(write_gguf(hf_model("Llama"), "llama", general="mamba"))
    assert "'mamba' is not supported" in message
    assert "llama, qwen2, qwen3" in message


def test_missing_tensor_is_refused(write_gguf) -> None:
    assert "tensor blk.1.ffn_down.weight missing" in refusal(
        write_gguf(hf_model("Llama"), "llama", drop="blk.1.ffn_down.weight")
    )


def test_tensor_of_another_shape_is_refused(write_gguf) -> None:
    message = refusal(
        write_gguf(hf_model("Llama"), "llama", extra={"llama.feed_forward_length": 64}, name="shape.gguf")
    )
    assert "shape" in message


def test_partial_rotation_and_experts_and_yarn_are_refused(write_gguf) -> None:
    model = hf_model("Llama")
    for index, (extra, word) in enumerate(
        [
            ({"llama.rope.dimension_count": 8}, "partial rotation"),
            ({"llama.expert_count": 8}, "mixture-of-experts"),
            ({"llama.rope.scaling.type": "yarn"}, "'yarn'"),
        ]
    ):
        assert word in refusal(write_gguf(model, "llama", extra=extra, name=f"bad{index}.gguf"))


def test_names() -> None:
    assert gguf_name("model.layers.12.mlp.gate_proj.weight") == "blk.12.ffn_gate.weight"
    assert gguf_name("model.layers.0.self_attn.q_proj.bias") == "blk.0.attn_q.bias"
    assert gguf_name("lm_head.weight") == "output.weight"
