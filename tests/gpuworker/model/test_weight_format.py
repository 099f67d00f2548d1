"""Quantized matrices in the decoder: the table's product, bounds against the floating model, and a GGUF's own codes without loss."""

from __future__ import annotations

import random

import pytest
import torch
from octavo.artifacts import resolve_model
from octavo_gpuworker.kernels.quant_gemm import QuantWeight, dequantize
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.load import load_model
from octavo_gpuworker.model.weight_format import FORMATS, STORED

IDS = [random.Random(i).randrange(3, 211) for i in range(60)]
BOUNDS = {"int8": 0.015, "w8a8": 0.02, "fp8": 0.08, "int4": 0.25}
"""Relative RMS error of the logits against the float32 oracle, four fifths of it measured; random weights spread evenly over
their range, so each is as hard to round as can be."""


def logits_of(decoder: Decoder, make_runner) -> torch.Tensor:
    """A prompt in two chunks, then decodes."""
    runner = make_runner(decoder)
    seq = runner.add(IDS)
    parts = [runner.step([(seq, count)])[0] for count in (40, 13, *[1] * 7)]
    return torch.cat(parts)


def error_of(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).pow(2).mean().sqrt() / theirs.pow(2).mean().sqrt())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", BOUNDS)
def test_quantized_weights_stay_within_their_bound(weights, dtype, save_hf, make_runner) -> None:
    _, files = save_hf("Qwen2", tie_word_embeddings=True, initializer_range=0.06)
    oracle = logits_of(load_model(files, dtype="float32", kernels="torch"), make_runner)
    decoder = load_model(files, dtype=dtype, kernels="torch", weights=weights)
    error = error_of(logits_of(decoder, make_runner), oracle)
    assert 1e-5 < error < BOUNDS[weights]
    layer = decoder.weights.layers[0]
    matrices = (layer.qkv, layer.o, layer.gate_up, layer.down, decoder.weights.head)
    assert all(isinstance(matrix, QuantWeight) and matrix.data.dtype == STORED[weights] for matrix in matrices)
    assert isinstance(decoder.weights.embedding, torch.Tensor), "a row that is looked up stays floating"
    calls = decoder.kernels.kernel_calls
    assert calls["quant_linear", "torch"] == 9 * (4 * 3 + 1)
    assert calls["linear", "torch"] == 0


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_a_ggufs_own_codes_are_multiplied_as_they_are(arch, quant, save_hf, write_gguf, make_runner) -> None:
    """The same logits as of the dequantized file: repacking loses nothing, and llama.cpp's row order is undone on codes too."""
    model, _ = save_hf("Llama" if arch == "llama" else "Qwen2", tie_word_embeddings=arch == "qwen2")
    files = resolve_model(str(write_gguf(model, arch, quant)))
    floating = load_model(files, dtype="float32", kernels="torch")
    packed = load_model(files, dtype="float32", kernels="torch", weights="file")
    assert error_of(logits_of(packed, make_runner), logits_of(floating, make_runner)) < 1e-6
    for ours, theirs in zip(packed.weights.layers, floating.weights.layers, strict=True):
        assert isinstance(ours.qkv, QuantWeight)
        assert torch.equal(dequantize(ours.qkv), theirs.qkv)
    assert isinstance(packed.weights.head, QuantWeight)
    assert packed.kernels.kernel_calls["linear", "torch"] == 0
    assert packed.fingerprint != floating.fingerprint


def test_a_file_of_several_kinds_keeps_what_can_be_repacked(save_hf, write_gguf, make_runner) -> None:
    model, _ = save_hf("Llama")
    floats = load_model(resolve_model(str(write_gguf(model, "llama", "F16"))), dtype="float32", weights="file")
    assert all(isinstance(layer.qkv, torch.Tensor) for layer in floats.weights.layers)
    assert logits_of(floats, make_runner).isfinite().all()


def test_every_format_is_another_fingerprint(save_hf) -> None:
    _, files = save_hf("Llama")
    prints = {weights: load_model(files, dtype="bfloat16", weights=weights).fingerprint for weights in FORMATS[:-1]}
    assert prints["auto"] == prints["bf16"]
    assert len(set(prints.values())) == len(prints) - 1


@pytest.mark.parametrize(
    ("sizes", "settings", "words"),
    [
        ({}, {"weights": "int3"}, "weights is 'int3'; expected auto, bf16, int8, int4, w8a8, fp8, file"),
        ({}, {"weights": "file"}, "weights is 'file', but only a GGUF holds quantized matrices"),
        ({}, {"weights": "bf16"}, "weights is 'bf16' beside dtype torch.float32; set dtype to bfloat16"),
        ({"intermediate_size": 90}, {"weights": "int4"}, "multiples of 32; use int8"),
    ],
)
def test_formats_that_cannot_be(sizes, settings, words, save_hf) -> None:
    _, files = save_hf("Llama", **sizes)
    with pytest.raises(ValueError, match=words):
        load_model(files, dtype="float32", **settings)
