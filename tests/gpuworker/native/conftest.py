"""The library, tiny models packed from random weights, and what a native step is compared with: the torch decoder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from octavo.artifacts import ModelFiles
from octavo_gpuworker.kernels import select_kernels
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.inputs import StepInputs
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.model.safetensors_source import SafetensorsSource
from octavo_gpuworker.model.weights import Weights, load_weights
from octavo_gpuworker.native.abi import FORMATS
from octavo_gpuworker.native.batch import StepArrays
from octavo_gpuworker.native.library import Library, NativeUnavailable, load_library
from octavo_gpuworker.native.model import NativeModel, new_pool
from octavo_gpuworker.native.packer import MatrixPlan, matrices_of, padded
from octavo_gpuworker.native.packing import Packed, pack
from safetensors.torch import save_file

TINY = ModelConfig(
    architecture="llama", layers=2, d_model=64, q_heads=4, kv_heads=2, head_dim=32, ffn=96, vocab_size=301,
    max_position=2048, norm_eps=1e-5, rope_theta=10000.0, tied_embeddings=True,
)  # fmt: skip
CONFIGS = {
    "llama": TINY,
    "mistral window": dataclasses.replace(TINY, sliding_window=5, tied_embeddings=False),
    "qwen2": dataclasses.replace(TINY, qkv_bias=True, o_bias=True),
    "qwen3": dataclasses.replace(TINY, qk_norm=True, q_heads=6, head_dim=64),
    "gelu": dataclasses.replace(TINY, activation="gelu_tanh", embedding_scale=8.0, query_scale=0.25),
    "both windows": dataclasses.replace(TINY, sliding_window=7, full_layers=(1,)),
    "odd sizes": dataclasses.replace(TINY, d_model=50, head_dim=10, ffn=70, kv_heads=1, vocab_size=97),
    "wide heads": dataclasses.replace(TINY, layers=1, q_heads=5, kv_heads=1, head_dim=256),
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Skips where neither an installed library nor a compiler is."""
    try:
        return load_library()
    except NativeUnavailable as error:
        pytest.skip(f"native kernels: {error}")


@dataclasses.dataclass
class Checkpoint:
    """A Hugging Face folder of random weights."""

    files: ModelFiles
    config: ModelConfig


def make_checkpoint(folder: Path, config: ModelConfig, seed: int = 0) -> Checkpoint:
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)

    def rand(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.25).to(torch.bfloat16)

    width, q_rows, kv_rows = config.d_model, config.q_heads * config.head_dim, config.kv_heads * config.head_dim
    tensors = {"model.embed_tokens.weight": rand(config.vocab_size, width), "model.norm.weight": 1 + rand(width)}
    if not config.tied_embeddings:
        tensors["lm_head.weight"] = rand(config.vocab_size, width)
    for index in range(config.layers):
        layer = f"model.layers.{index}."
        for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            tensors[f"{layer}self_attn.{name}_proj.weight"] = rand(rows, width)
            if config.qkv_bias:
                tensors[f"{layer}self_attn.{name}_proj.bias"] = rand(rows)
        tensors[f"{layer}self_attn.o_proj.weight"] = rand(width, q_rows)
        if config.o_bias:
            tensors[f"{layer}self_attn.o_proj.bias"] = rand(width)
        if config.qk_norm:
            tensors |= {f"{layer}self_attn.{name}_norm.weight": 1 + rand(config.head_dim) for name in "qk"}
        tensors[f"{layer}input_layernorm.weight"] = 1 + rand(width)
        tensors[f"{layer}post_attention_layernorm.weight"] = 1 + rand(width)
        tensors[f"{layer}mlp.gate_proj.weight"] = rand(config.ffn, width)
        tensors[f"{layer}mlp.up_proj.weight"] = rand(config.ffn, width)
        tensors[f"{layer}mlp.down_proj.weight"] = rand(width, config.ffn)
    path = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    (folder / "config.json").write_text(json.dumps({}))
    return Checkpoint(ModelFiles(folder.name, "hf", folder, (path,)), config)


@dataclasses.dataclass
class Step:
    """One ragged step of a random batch: per sequence the tokens so far, how many of them are new, and its blocks."""

    tokens: list[list[int]]
    new: list[int]
    block_tokens: int

    def tables(self, columns: int) -> np.ndarray:
        """Blocks dealt out in turn, so that neighbours of one sequence are no neighbours in the pool."""
        table = np.zeros((len(self.tokens), columns), np.int32)
        for column in range(columns):
            for row in range(len(self.tokens)):
                table[row, column] = 1 + column * len(self.tokens) + row
        return table

    @property
    def columns(self) -> int:
        return max(-(-len(tokens) // self.block_tokens) for tokens in self.tokens)

    @property
    def num_blocks(self) -> int:
        return 2 + self.columns * len(self.tokens)


def unpacked(library: Library, packed: Packed, plan: MatrixPlan) -> torch.Tensor:
    """A packed matrix as float32 [columns, depth], padding included."""
    depth = padded(plan.depth)
    out = np.zeros((plan.columns, depth), np.float32)
    data = packed.array(plan.name)
    assert data is not None
    library.handle.octavo_unpack(FORMATS[plan.format], data.ctypes.data, plan.columns, depth, out.ctypes.data)
    return torch.from_numpy(out)


def use_packed(weights: Weights, config: ModelConfig, packed: Packed, library: Library) -> None:
    """Puts the packed form's values in the place of the checkpoint's, rounding and all."""
    for plan in matrices_of(config, packed.format):
        whole = unpacked(library, packed, plan)[:, : plan.depth]
        parts = [whole[p.first + (r // p.run) * p.step + r % p.run] for p in plan.parts for r in range(p.rows)]
        _, index, name = plan.name.split(".") if "." in plan.name else ("", "", "head")
        setattr(weights.layers[int(index)] if index else weights, name, torch.stack(parts))
    if config.tied_embeddings:
        weights.embedding = weights.head


def oracle(
    checkpoint: Checkpoint,
    step: Step,
    dtype: torch.dtype = torch.float32,
    packed: Packed | None = None,
    library: Library | None = None,
) -> np.ndarray:
    """Logits [all new tokens, vocab] of the torch decoder, the earlier tokens prefilled first; by the packed weights if given."""
    config, size = checkpoint.config, step.block_tokens
    source = SafetensorsSource(checkpoint.files)
    weights = load_weights(source, config, dtype, torch.device("cpu"), None)
    source.close()
    if packed is not None and library is not None:
        use_packed(weights, config, packed, library)
    decoder = Decoder(config, weights, select_kernels("cpu", dtype, "torch"), kv_dtype=dtype, fingerprint=b"f" * 32)
    pool = KvPool(config, step.num_blocks, size, dtype)
    logits = np.zeros(0)
    for new in ([len(t) - n for t, n in zip(step.tokens, step.new, strict=True)], step.new):
        ends = [len(t) - n for t, n in zip(step.tokens, step.new, strict=True)]
        if new is step.new:
            ends = [len(tokens) for tokens in step.tokens]
        rows = [row for row, count in enumerate(new) if count]
        if not rows:
            continue
        table = torch.from_numpy(step.tables(step.columns))[rows]
        positions = [range(ends[row] - new[row], ends[row]) for row in rows]
        flat = torch.tensor([p for span in positions for p in span])
        owner = torch.tensor([i for i, span in enumerate(positions) for _ in span])
        inputs = StepInputs(
            token_ids=torch.tensor(
                [step.tokens[row][p] for row, span in zip(rows, positions, strict=True) for p in span]
            ),
            positions=flat,
            slot_mapping=table[owner, flat // size].long() * size + flat % size,
            query_start=torch.tensor([0, *np.cumsum([len(span) for span in positions])], dtype=torch.int32),
            context_len=torch.tensor([ends[row] for row in rows], dtype=torch.int32),
            block_tables=table,
            sample_rows=torch.arange(len(flat)),
            new_tokens=[len(span) for span in positions],
            contexts=[ends[row] for row in rows],
        )
        logits = decoder.forward(inputs, pool).numpy()
    return logits


def fill(arrays: StepArrays, step: Step, new: list[int], ends: list[int]) -> tuple[int, int]:
    """Writes a step of `new` tokens per sequence ending at `ends`; every new token samples. Returns tokens, sequences."""
    rows = [row for row, count in enumerate(new) if count]
    total = sum(new)
    arrays.reserve(tokens=total, sequences=len(rows), rows=total, columns=step.columns)
    arrays.token_ids[:total] = [t for row in rows for t in step.tokens[row][ends[row] - new[row] : ends[row]]]
    arrays.query_start[: len(rows) + 1] = np.cumsum([0, *(new[row] for row in rows)])
    arrays.context_len[: len(rows)] = [ends[row] for row in rows]
    arrays.block_tables[: len(rows), : step.columns] = step.tables(step.columns)[rows]
    arrays.sample_rows[:total] = np.arange(total)
    arrays.greedy(total)
    return total, len(rows)


def native(model: NativeModel, step: Step) -> np.ndarray:
    """The same logits by the native model, which must also answer with their argmax."""
    arrays = model.arrays(want_logits=True)
    for new, ends in (
        ([len(t) - n for t, n in zip(step.tokens, step.new, strict=True)],) * 2,
        (step.new, [len(tokens) for tokens in step.tokens]),
    ):
        if sum(new):
            total, sequences = fill(arrays, step, new, ends)
            model.step(arrays, tokens=total, sequences=sequences, rows=total)
    logits = arrays.out_logits[: sum(step.new)].copy()
    assert np.array_equal(arrays.out_tokens[: len(logits)], logits.argmax(1))
    return logits


MakeModel = Callable[..., NativeModel]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    made: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in made:
            made[name] = make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "model", CONFIGS[name])
        return made[name]

    return get


@pytest.fixture(scope="session")
def packed(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Checkpoint, str], Packed]:
    cache = tmp_path_factory.mktemp("packed")
    return lambda checkpoint, weights: pack(checkpoint.files, checkpoint.config, weights, library, cache=cache)


@pytest.fixture
def make_model(library: Library, packed: Callable[[Checkpoint, str], Packed]) -> MakeModel:
    """make_model(checkpoint, step, weights=, kv=, threads=, isa=) over a pool full of what an earlier owner left."""

    def make(checkpoint: Checkpoint, step: Step, weights="bf16", kv="bf16", threads=2, isa="auto") -> NativeModel:
        pool = new_pool(checkpoint.config, kv, step.num_blocks, step.block_tokens)
        pool[1:] = 0xFF  # NaN in bf16 and float32: what is not written must not be read
        return NativeModel(
            library, checkpoint.config, packed(checkpoint, weights),
            kv_dtype=kv, pool=pool, block_tokens=step.block_tokens, threads=threads, isa=isa,
        )  # fmt: skip

    return make
