"""Weights: what a decoder multiplies with, and how they are put together from any source of named tensors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from octavo.artifacts import BadArtifact
from torch import Tensor

from octavo_gpuworker.model.config import ModelConfig

LOADER_THREADS: Final = 4
"""Dequantizing releases the GIL; more threads than this wait for memory."""


class TensorSource(Protocol):
    """Named tensors of one checkpoint, in Hugging Face's names and row order whatever the file's own are."""

    where: str
    """Begins every error message: the file or folder."""

    def file_name(self, name: str) -> str:
        """What the file itself calls the tensor: for messages."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The tensor's shape without reading it; None when the checkpoint has no such tensor."""

    def read(self, name: str) -> Tensor:
        """The tensor, in any float dtype, on the CPU. BadArtifact when its data cannot be used."""


@dataclass(slots=True)
class LayerWeights:
    """One layer; matrices are [out, in]."""

    attn_norm: Tensor
    qkv: Tensor
    """[(q_heads + 2 kv_heads) * head_dim, d_model]: queries, keys, values."""
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    """[2 * ffn, d_model]: gate, up."""
    down: Tensor


@dataclass(slots=True)
class Weights:
    """The whole model; `head` is `embedding` itself when they are tied."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor


@dataclass(slots=True)
class _Fill:
    """One piece of work: read `name` into `target` (a slice of a fused matrix, or a whole tensor)."""

    name: str
    target: Tensor


class _Planner:
    """Allocates targets and notes which tensor fills which rows; checks names and shapes before anything is read."""

    def __init__(self, source: TensorSource, dtype: torch.dtype, device: torch.device) -> None:
        self.source, self.dtype, self.device = source, dtype, device
        self.fills: list[_Fill] = []
        self.missing: list[str] = []

    def tensor(self, shape: tuple[int, ...], *names: str) -> Tensor:
        """A tensor of `shape` whose leading rows are filled by `names` one after the other."""
        whole = torch.empty(shape, dtype=self.dtype, device=self.device)
        row = 0
        for name in names:
            found = self.source.shape(name)
            if found is None:
                self.missing.append(self.source.file_name(name))
                continue
            expected = (found[0] if found and len(names) > 1 else shape[0], *shape[1:])
            if found != expected or row + found[0] > shape[0]:
                raise BadArtifact(
                    f"{self.source.where}: tensor {self.source.file_name(name)} has shape {list(found)}, the config asks for {list(expected)}; convert the model again"
                )
            self.fills.append(_Fill(name, whole[row : row + found[0]]))
            row += found[0]
        if not self.missing and row != shape[0]:
            raise BadArtifact(
                f"{self.source.where}: {' + '.join(map(self.source.file_name, names))} have {row} rows, the config asks for {shape[0]}; convert the model again"
            )
        return whole

    def check(self) -> None:
        if self.missing:
            more = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
            raise BadArtifact(
                f"{self.source.where}: tensor {self.missing[0]}{more} missing; copy or convert the model again"
            )


def load_weights(
    source: TensorSource,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None] | None,
) -> Weights:
    """Reads every tensor into its place, fusing q, k, v and gate, up. `progress(done, total)` counts tensors.

    BadArtifact: a tensor is missing, has another shape than the config says, or cannot be read.
    """
    planner = _Planner(source, dtype, device)
    embedding = planner.tensor((config.vocab_size, config.d_model), "model.embed_tokens.weight")
    layers = [_plan_layer(planner, config, index) for index in range(config.layers)]
    norm = planner.tensor((config.d_model,), "model.norm.weight")
    tied = config.tied_embeddings
    head = embedding if tied else planner.tensor((config.vocab_size, config.d_model), "lm_head.weight")
    planner.check()
    total = len(planner.fills)
    with ThreadPoolExecutor(LOADER_THREADS) as threads:
        for done, _ in enumerate(threads.map(lambda fill: fill.target.copy_(source.read(fill.name)), planner.fills), 1):
            if progress is not None:
                progress(done, total)
    return Weights(embedding, layers, norm, head)


def _plan_layer(planner: _Planner, config: ModelConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}."
    width = config.q_heads * config.head_dim
    projections = [f"{prefix}self_attn.{name}_proj" for name in "qkv"]
    per_head = (config.head_dim,)
    return LayerWeights(
        attn_norm=planner.tensor((config.d_model,), f"{prefix}input_layernorm.weight"),
        qkv=planner.tensor((config.qkv_rows, config.d_model), *(f"{name}.weight" for name in projections)),
        qkv_bias=planner.tensor((config.qkv_rows,), *(f"{name}.bias" for name in projections))
        if config.qkv_bias
        else None,
        q_norm=planner.tensor(per_head, f"{prefix}self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=planner.tensor(per_head, f"{prefix}self_attn.k_norm.weight") if config.qk_norm else None,
        o=planner.tensor((config.d_model, width), f"{prefix}self_attn.o_proj.weight"),
        o_bias=planner.tensor((config.d_model,), f"{prefix}self_attn.o_proj.bias") if config.o_bias else None,
        mlp_norm=planner.tensor((config.d_model,), f"{prefix}post_attention_layernorm.weight"),
        gate_up=planner.tensor(
            (2 * config.ffn, config.d_model), f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"
        ),
        down=planner.tensor((config.d_model, config.ffn), f"{prefix}mlp.down_proj.weight"),
    )
