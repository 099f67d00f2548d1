"""Weights: what a decoder multiplies with, and how they are put together from any source of named tensors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from octavo.artifacts import BadArtifact
from torch import Tensor

from octavo_gpuworker.kernels import KernelTable
from octavo_gpuworker.model.config import ModelConfig

LOADER_THREADS: Final = 4
"""Dequantizing releases the GIL; more threads than this wait for memory."""


MAX_MISSING: Final = 1000
"""A config that asks for more absent tensors than this is damaged; stop counting them."""


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
    """The whole model; `head` is `embedding` itself, or its prepared form, when they are tied."""

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

    def matrix(self, columns: int, *parts: tuple[str, int]) -> Tensor:
        """[sum of rows, columns], filled by `parts` = (name, rows) one after the other."""
        return self._tensor(parts, (columns,))

    def vector(self, *parts: tuple[str, int]) -> Tensor:
        """[sum of lengths], filled by `parts` = (name, length) one after the other."""
        return self._tensor(parts, ())

    def _tensor(self, parts: tuple[tuple[str, int], ...], columns: tuple[int, ...]) -> Tensor:
        for name, rows in parts:
            found, expected = self.source.shape(name), (rows, *columns)
            if found is None:
                self.missing.append(self.source.file_name(name))
                if len(self.missing) > MAX_MISSING:
                    self.check()
            elif found != expected:
                raise BadArtifact(
                    f"{self.source.where}: tensor {self.source.file_name(name)} has shape {list(found)}, "
                    f"the config asks for {list(expected)}; convert the model again"
                )
        if self.missing:  # refused by check(); a damaged config may ask for any size, so nothing is allocated
            return torch.empty(0)
        whole = torch.empty((sum(rows for _, rows in parts), *columns), dtype=self.dtype, device=self.device)
        row = 0
        for name, rows in parts:
            self.fills.append(_Fill(name, whole[row : row + rows]))
            row += rows
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
    vocab, width = config.vocab_size, config.d_model
    embedding = planner.matrix(width, ("model.embed_tokens.weight", vocab))
    layers = [_plan_layer(planner, config, index) for index in range(config.layers)]
    norm = planner.vector(("model.norm.weight", width))
    head = embedding if config.tied_embeddings else planner.matrix(width, ("lm_head.weight", vocab))
    planner.check()
    total = len(planner.fills)
    with ThreadPoolExecutor(LOADER_THREADS) as threads:
        for done, _ in enumerate(threads.map(lambda fill: fill.target.copy_(source.read(fill.name)), planner.fills), 1):
            if progress is not None:
                progress(done, total)
    return Weights(embedding, layers, norm, head)


def prepare_weights(weights: Weights, kernels: KernelTable) -> None:
    """Replaces each matrix by the form that the chosen `linear` takes, one at a time: both forms never lie in memory."""
    for layer in weights.layers:
        for name in ("qkv", "o", "gate_up", "down"):
            setattr(layer, name, kernels.prepare("linear", getattr(layer, name)))
    weights.head = kernels.prepare("linear", weights.head)


def _plan_layer(planner: _Planner, config: ModelConfig, index: int) -> LayerWeights:
    layer = f"model.layers.{index}."
    attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
    width, q_rows, kv_rows = config.d_model, config.q_heads * config.head_dim, config.kv_heads * config.head_dim
    qkv = [("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)]
    matrix, vector = planner.matrix, planner.vector
    return LayerWeights(
        attn_norm=vector((f"{layer}input_layernorm.weight", width)),
        qkv=matrix(width, *((f"{attention}{name}.weight", rows) for name, rows in qkv)),
        qkv_bias=vector(*((f"{attention}{name}.bias", rows) for name, rows in qkv)) if config.qkv_bias else None,
        q_norm=vector((f"{attention}q_norm.weight", config.head_dim)) if config.qk_norm else None,
        k_norm=vector((f"{attention}k_norm.weight", config.head_dim)) if config.qk_norm else None,
        o=matrix(q_rows, (f"{attention}o_proj.weight", width)),
        o_bias=vector((f"{attention}o_proj.bias", width)) if config.o_bias else None,
        mlp_norm=vector((f"{layer}post_attention_layernorm.weight", width)),
        gate_up=matrix(width, (f"{mlp}gate_proj.weight", config.ffn), (f"{mlp}up_proj.weight", config.ffn)),
        down=matrix(config.ffn, (f"{mlp}down_proj.weight", width)),
    )
