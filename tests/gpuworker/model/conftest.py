"""Tiny random checkpoints of each architecture, and a runner that steps a decoder over scattered blocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from octavo.artifacts import ModelFiles, resolve_model
from octavo_gpuworker.model.decoder import Decoder, StepInputs
from octavo_gpuworker.model.pool import KvPool
from torch import Tensor

VOCAB = 211
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # large enough that logits differ by units, not by rounding
    "eos_token_id": 2,
    "bos_token_id": 1,
}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@dataclass
class Sequence:
    ids: list[int]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


class Runner:
    """Steps a decoder; every sequence gets blocks in random order from one pool, so nothing lies side by side."""

    def __init__(self, decoder: Decoder, block_tokens: int = 16, num_blocks: int = 128, seed: int = 0) -> None:
        self.decoder = decoder
        self.pool = KvPool(decoder.config, num_blocks, block_tokens, decoder.kv_dtype)
        self.free = list(range(1, num_blocks))
        random.Random(seed).shuffle(self.free)

    def add(self, ids: list[int]) -> Sequence:
        return Sequence(list(ids))

    def release(self, seq: Sequence) -> None:
        self.free.extend(seq.blocks)
        seq.blocks.clear()

    def inputs(self, work: list[tuple[Sequence, int]], sample: list[int] | None = None) -> StepInputs:
        size = self.pool.block_tokens
        ids, positions, slots, starts, contexts = [], [], [], [0], []
        for seq, count in work:
            end = seq.computed + count
            while len(seq.blocks) * size < end:
                seq.blocks.append(self.free.pop())
            span = range(seq.computed, end)
            ids += seq.ids[seq.computed : end]
            positions += span
            slots += [seq.blocks[p // size] * size + p % size for p in span]
            starts.append(starts[-1] + count)
            contexts.append(end)
        width = max(len(seq.blocks) for seq, _ in work)
        # Entries beyond a sequence's blocks are nonsense on purpose: they must never be read.
        tables = [seq.blocks + [2**30] * (width - len(seq.blocks)) for seq, _ in work]
        rows = list(range(starts[-1])) if sample is None else sample
        return StepInputs(
            torch.tensor(ids),
            torch.tensor(positions),
            torch.tensor(slots),
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor(contexts, dtype=torch.int32),
            torch.tensor(tables, dtype=torch.int32),
            torch.tensor(rows, dtype=torch.int64),
        )

    def step(self, work: list[tuple[Sequence, int]]) -> list[Tensor]:
        """One forward; per sequence the logits [count, vocab] of its new tokens."""
        logits = self.decoder.forward(self.inputs(work), self.pool)
        for seq, count in work:
            seq.computed += count
        return list(logits.split([count for _, count in work]))


@pytest.fixture
def make_runner() -> Callable[..., Runner]:
    return Runner


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"t{i}": i for i in range(3, VOCAB)}
    Tokenizer(models.WordLevel(vocab, unk_token="<unk>")).save(str(folder / "tokenizer.json"))


def hf_model(kind: str, **changes: Any) -> Any:
    """A random transformers model of one of the four architectures, float32, eager attention."""
    import transformers

    settings = SIZES | {"attn_implementation": "eager"} | changes
    torch.manual_seed(len(kind) + 17)
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():  # biases and norms start at 0 and 1, which would hide a missing one
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * (0.5 if name.endswith("bias") else 0.2))
    return model


@pytest.fixture
def save_hf(tmp_path: Path) -> Callable[..., tuple[Any, ModelFiles]]:
    """save_hf(kind, **config) -> (transformers model, its saved files)."""

    def save(kind: str, shard_size: str = "5GB", **changes: Any) -> tuple[Any, ModelFiles]:
        model = hf_model(kind, **changes)
        folder = tmp_path / kind.lower()
        model.save_pretrained(folder, max_shard_size=shard_size)
        write_tokenizer(folder)
        return model, resolve_model(str(folder))

    return save


@pytest.fixture
def reference_logits() -> Callable[[Any, list[int]], Tensor]:
    """Logits [len(ids), vocab] of a transformers model."""

    def run(model: Any, ids: list[int]) -> Tensor:
        with torch.inference_mode():
            return model(torch.tensor([ids]), use_cache=False).logits[0]

    return run


LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def permute(rows: Any, heads: int) -> Any:
    """What llama.cpp's convert_hf_to_gguf.py does to q and k rows of a Llama."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_tensors(model: Any, arch: str) -> dict[str, Any]:
    """The model's tensors as float32 arrays under GGUF names, rows ordered as a GGUF of `arch` orders them."""
    config, result = model.config, {}
    for name, parameter in model.state_dict().items():
        array = parameter.float().numpy()
        parts = name.split(".")
        if parts[1] == "layers":
            if arch == "llama" and parts[4] in ("q_proj", "k_proj"):
                array = permute(array, config.num_attention_heads if parts[4][0] == "q" else config.num_key_value_heads)
            inner = ".".join(parts[3:-1])
            result[f"blk.{parts[2]}.{LAYER_NAMES[inner]}.{parts[-1]}"] = array
        elif name == "lm_head.weight":
            if not config.tie_word_embeddings:
                result["output.weight"] = array
        else:
            result["token_embd.weight" if "embed" in name else "output_norm.weight"] = array
    return result


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """write_gguf(model, arch, quant="F32", **extra metadata) -> path of a GGUF of that transformers model."""
    import gguf

    def write(
        model: Any, arch: str, quant: str = "F32", *, name: str = "tiny.gguf", drop: str = "",
        general: str | None = None, extra: dict[str, Any] | None = None, endian: Any = gguf.GGUFEndian.LITTLE,
    ) -> Path:  # fmt: skip
        config, path = model.config, tmp_path / name
        writer = gguf.GGUFWriter(path, general or arch, endianess=endian)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        if arch == "qwen3":
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        for key, value in (extra or {}).items():
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
        kind = gguf.GGMLQuantizationType[quant]
        for tensor, array in gguf_tensors(model, arch).items():
            if tensor == drop:
                continue
            if array.ndim == 1 or quant == "F32":
                writer.add_tensor(tensor, array)
            else:
                writer.add_tensor(tensor, gguf.quants.quantize(array, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
