"""Blending against full prefills of a tiny model: exact where it must be, and better the more is computed again."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from octavo.artifacts import ModelFiles
from octavo_gpuworker.blending.__main__ import measure
from octavo_gpuworker.blending.blend import Blender
from octavo_gpuworker.blending.dense import DenseLayers
from octavo_gpuworker.model.load import load_model

VOCAB = 97


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import transformers

    torch.manual_seed(5)
    folder: Path = tmp_path_factory.mktemp("tiny")
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    from tokenizers import Tokenizer, models

    vocab = {f"t{i}": i for i in range(VOCAB)}
    Tokenizer(models.WordLevel(vocab, unk_token="t0")).save(str(folder / "tokenizer.json"))
    files = ModelFiles("tiny", "hf", folder, tuple(sorted(folder.glob("*.safetensors"))))
    return load_model(files, dtype="float32", kernels="torch")


@pytest.fixture(scope="module")
def blender(decoder: Any) -> Blender:
    return Blender(DenseLayers(decoder))


def passages(count: int = 3, tokens: int = 20) -> list[list[int]]:
    draw = Random(2)
    return [[draw.randrange(3, VOCAB) for _ in range(tokens)] for _ in range(count)]


def test_a_dense_prefill_is_the_paged_decoder_s(blender: Blender, decoder: Any) -> None:
    from octavo_gpuworker.model.inputs import StepInputs
    from octavo_gpuworker.model.pool import KvPool

    ids = passages(1, 40)[0]
    pool = KvPool(decoder.config, 6, 16, torch.float32)
    inputs = StepInputs(
        torch.tensor(ids), torch.arange(40), torch.arange(16, 56), torch.tensor([0, 40], dtype=torch.int32),
        torch.tensor([40], dtype=torch.int32), torch.tensor([[1, 2, 3]], dtype=torch.int32), torch.arange(40),
    )  # fmt: skip
    assert torch.allclose(blender.full(ids, 40), decoder.forward(inputs, pool), atol=2e-4)


def test_moved_keys_are_those_of_a_chunk_that_stands_there(decoder: Any) -> None:
    dense = DenseLayers(decoder)
    hidden = dense.embed(torch.tensor(passages(1)[0]))
    _queries, here = dense.qkv(0, hidden, torch.arange(20))
    _queries, there = dense.qkv(0, hidden, torch.arange(100, 120))
    assert torch.allclose(dense.moved(here.keys, 100), there.keys, atol=1e-4)
    assert not torch.allclose(here.keys, there.keys, atol=0.1)


def test_computing_everything_again_is_a_full_prefill(blender: Blender) -> None:
    parts, fresh = passages(), [5, 6, 7, 8]
    blended = blender.blend([blender.chunk(part) for part in parts], fresh, 1.0, 4)
    whole = blender.full([token for part in parts for token in part] + fresh, 4)
    assert torch.allclose(blended.logits, whole, atol=1e-4)
    # but for the first chunk, which stands where it stood alone, above the layers at which the others are chosen
    assert blended.computed == blended.all - 2 * 20 and len(blended.chosen) == 40


def test_a_chunk_at_the_front_is_a_prefix_and_exact_without_computing_it(blender: Blender) -> None:
    part, fresh = passages(1)[0], [5, 6, 7]
    blended = blender.blend([blender.chunk(part)], fresh, 0.0, 3)
    assert torch.allclose(blended.logits, blender.full(part + fresh, 3), atol=1e-4)
    assert blended.chosen == () and blended.computed < 0.7 * blended.all


def test_tokens_of_the_first_chunk_never_deviate(blender: Blender) -> None:
    parts = passages()
    chosen = blender.blend([blender.chunk(part) for part in parts], [5], 0.2, 1).chosen
    assert len(chosen) == 8 and min(chosen) >= 20


def test_the_more_is_computed_the_closer_it_is(blender: Blender) -> None:
    draw = Random(4)
    sums: dict[str, float] = {}
    for _ in range(12):
        parts = [[draw.randrange(3, VOCAB) for _ in range(20)] for _ in range(3)]
        case = {"chunks": parts, "question": [draw.randrange(3, VOCAB) for _ in range(4)], "steps": 3}
        for name, found in measure(blender, {**case, "ratios": [0, 0.3, 1]}).items():
            sums[name] = sums.get(name, 0.0) + found["kl"]
    assert sums["1"] < 1e-4 < sums["0.3"] < sums["0"] < sums["unrotated"], sums


def test_what_cannot_be_blended_is_refused(blender: Blender, decoder: Any) -> None:
    with pytest.raises(ValueError, match="ratio is 2"):
        blender.blend([], [1], 2.0, 1)
    with pytest.raises(ValueError, match="give tokens"):
        measure(blender, {"chunks": [], "question": [1], "steps": 1, "ratios": [0]})

    class Windowed:
        config = type(decoder.config)(
            **{**{name: getattr(decoder.config, name) for name in decoder.config.__slots__}, "sliding_window": 8}
        )

    with pytest.raises(ValueError, match="Llama-like"):
        DenseLayers(Windowed())  # type: ignore[arg-type]
