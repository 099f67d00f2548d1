"""Weights: what a decoder multiplies with, and how they are put together from any source of named tensors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Protocol

import torch
from octavo.artifacts import BadArtifact
from torch import Tensor

from octavo_gpuworker.kernels import KernelTable
from octavo_gpuworker.kernels.mla import MlaProjection, split_projection
from octavo_gpuworker.kernels.moe import MoeWeights
from octavo_gpuworker.kernels.quant_gemm import BLOCK, QuantWeight
from octavo_gpuworker.model.config import ExpertConfig, LatentConfig, ModelConfig
from octavo_gpuworker.model.weight_format import WeightFormat

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

    def packed_kind(self, name: str) -> str:
        """Q4_0, Q4_1 or Q8_0 where the file holds the matrix so; else empty."""

    def read_packed(self, name: str) -> QuantWeight:
        """Such a matrix as the file holds it, repacked without loss, on the CPU. BadArtifact as `read`."""


Matrix = Tensor | QuantWeight
"""A matrix [out, in] that a projection multiplies with."""


@dataclass(slots=True)
class LayerWeights:
    """One layer; matrices are [out, in]."""

    attn_norm: Tensor
    qkv: Matrix
    """[(q_heads + 2 kv_heads) * head_dim, d_model]: queries, keys, values; under latent attention the queries (or their
    latent), the latent and the rotated part."""
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Matrix
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Matrix | None
    """[2 * ffn, d_model]: gate, up; beside experts those of the shared ones, None where there are none."""
    down: Matrix | None
    post_attn_norm: Tensor | None = None
    post_mlp_norm: Tensor | None = None
    latent: LatentWeights | None = None
    router: Tensor | None = None
    """[experts, d_model] float32."""
    experts: MoeWeights | None = None


@dataclass(slots=True)
class LatentWeights:
    """What latent attention has beside `qkv` and `o`; rotated rows are in halves, as `rotate` wants them."""

    q_norm: Tensor | None
    q_up: Matrix | None
    """[q_heads * (nope + rope), q_rank]; None where `qkv` makes the queries at once."""
    norm: Tensor
    """[rank]."""
    up: MlaProjection


@dataclass(slots=True)
class Weights:
    """The whole model; `head` is `embedding` itself, or its prepared form, when they are tied."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Matrix


@dataclass(slots=True)
class _Fill:
    """One piece of work: read `name` into `target` (a slice of a fused matrix, or a whole tensor)."""

    name: str
    target: Matrix
    change: Callable[[Tensor], Tensor] | None = None

    def run(self, source: TensorSource) -> None:
        if isinstance(self.target, Tensor):
            read = source.read(self.name)
            self.target.copy_(read if self.change is None else self.change(read))
            return
        packed = source.read_packed(self.name)
        self.target.data.copy_(packed.data)
        self.target.scales.copy_(packed.scales)
        if self.target.offsets is not None and packed.offsets is not None:
            self.target.offsets.copy_(packed.offsets)


class _Planner:
    """Allocates targets and notes which tensor fills which rows; checks names and shapes before anything is read."""

    def __init__(
        self, source: TensorSource, dtype: torch.dtype, device: torch.device, weights: WeightFormat, norm_offset: bool
    ) -> None:
        self.source, self.dtype, self.device = source, dtype, device
        self.weights, self.norm_offset = weights, norm_offset
        self.fills: list[_Fill] = []
        self.missing: list[str] = []

    def matrix(self, columns: int, *parts: tuple[str, int]) -> Matrix:
        """[sum of rows, columns], filled by `parts` = (name, rows) one after the other; as the file holds them where all of
        them are of one kind that can be repacked and the format asks for it."""
        kinds = {self.source.packed_kind(name) for name, _ in parts} if self.weights == "file" else {""}
        if len(kinds) == 1 and (kind := kinds.pop()):
            self._check_shapes(parts, (columns,))
            if not self.missing:
                return self._packed(parts, columns, kind)
        return self.floating(columns, *parts)

    def floating(
        self, columns: int, *parts: tuple[str, int], change: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """As `matrix`, always in the compute dtype; each part passes `change`."""
        return self._tensor(parts, (columns,), change)

    def vector(self, *parts: tuple[str, int]) -> Tensor:
        """[sum of lengths], filled by `parts` = (name, length) one after the other."""
        return self._tensor(parts, ())

    def norm(self, name: str, width: int) -> Tensor:
        """[width] of a norm; 1 is added where the files hold them without it."""
        return self._tensor(((name, width),), (), (lambda held: held.float() + 1) if self.norm_offset else None)

    def _packed(self, parts: tuple[tuple[str, int], ...], columns: int, kind: str) -> QuantWeight:
        rows, blocks = sum(count for _, count in parts), columns // BLOCK
        wide = kind == "Q8_0"
        data = torch.empty(rows, columns if wide else columns // 2, dtype=torch.int8 if wide else torch.uint8)
        whole = QuantWeight(
            data.to(self.device),
            torch.empty(rows, blocks, dtype=torch.float16, device=self.device),
            torch.empty(rows, blocks, dtype=torch.float16, device=self.device) if kind == "Q4_1" else None,
        )
        row = 0
        for name, count in parts:
            self.fills.append(_Fill(name, whole.rows(row, row + count)))
            row += count
        return whole

    def _check_shapes(self, parts: tuple[tuple[str, int], ...], columns: tuple[int, ...]) -> None:
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

    def _tensor(
        self,
        parts: tuple[tuple[str, int], ...],
        columns: tuple[int, ...],
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        self._check_shapes(parts, columns)
        if self.missing:  # refused by check(); a damaged config may ask for any size, so nothing is allocated
            return torch.empty(0)
        whole = torch.empty((sum(rows for _, rows in parts), *columns), dtype=self.dtype, device=self.device)
        row = 0
        for name, rows in parts:
            self.fills.append(_Fill(name, whole[row : row + rows], change))
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
    weights: WeightFormat = "auto",
) -> Weights:
    """Reads every tensor into its place, fusing q, k, v and gate, up. `progress(done, total)` counts tensors.

    `weights` "file": matrices that the file holds in a kind that can be repacked stay so; the other formats are made by
    `prepare_weights`. BadArtifact: a tensor is missing, has another shape than the config says, or cannot be read.
    """
    planner = _Planner(source, dtype, device, weights, config.norm_offset)
    vocab, width = config.vocab_size, config.d_model
    embedding = planner.floating(width, ("model.embed_tokens.weight", vocab))
    layers = [_plan_layer(planner, config, index) for index in range(config.layers)]
    norm = planner.norm("model.norm.weight", width)
    head: Matrix = embedding
    head_name = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
    if not config.tied_embeddings or (weights == "file" and source.packed_kind(head_name)):
        head = planner.matrix(width, (head_name, vocab))
    planner.check()
    total = len(planner.fills)
    with ThreadPoolExecutor(LOADER_THREADS) as threads:
        for done, _ in enumerate(threads.map(lambda fill: fill.run(source), planner.fills), 1):
            if progress is not None:
                progress(done, total)
    for layer in layers:
        _finish_layer(layer, config)
    return Weights(embedding, layers, norm, head)


def prepare_weights(weights: Weights, kernels: KernelTable, quantize: Callable[[Tensor], Matrix] | None = None) -> None:
    """Replaces each matrix by `quantize`'s form of it, or by the one that the chosen `linear` takes, one at a time: both forms
    never lie in memory."""

    def prepared(matrix: Matrix | None) -> Matrix | None:
        if isinstance(matrix, Tensor) and quantize is not None:
            matrix = quantize(matrix)
        return kernels.prepare("linear", matrix) if isinstance(matrix, Tensor) else matrix

    for layer in weights.layers:
        for name in ("qkv", "o", "gate_up", "down"):
            setattr(layer, name, prepared(getattr(layer, name)))
        if layer.latent is not None:
            layer.latent.q_up = prepared(layer.latent.q_up)
    head = prepared(weights.head)
    weights.head = weights.head if head is None else head


def _plan_layer(planner: _Planner, config: ModelConfig, index: int) -> LayerWeights:
    layer = f"model.layers.{index}."
    attention, width = f"{layer}self_attn.", config.d_model
    qkv = [(f"{attention}{name}", rows) for name, rows in _projections(config)]
    o_columns = config.q_heads * (config.head_dim if config.latent is None else config.latent.value)
    ours = LayerWeights(
        attn_norm=planner.norm(f"{layer}input_layernorm.weight", width),
        qkv=planner.matrix(width, *((f"{name}.weight", rows) for name, rows in qkv)),
        qkv_bias=planner.vector(*((f"{name}.bias", rows) for name, rows in qkv)) if config.qkv_bias else None,
        q_norm=planner.norm(f"{attention}q_norm.weight", config.head_dim) if config.qk_norm else None,
        k_norm=planner.norm(f"{attention}k_norm.weight", config.head_dim) if config.qk_norm else None,
        o=planner.matrix(o_columns, (f"{attention}o_proj.weight", width)),
        o_bias=planner.vector((f"{attention}o_proj.bias", width)) if config.o_bias else None,
        mlp_norm=planner.norm(
            f"{layer}{'pre_feedforward' if config.post_norms else 'post_attention'}_layernorm.weight", width
        ),
        gate_up=None,
        down=None,
    )
    if config.post_norms:
        ours.post_attn_norm = planner.norm(f"{layer}post_attention_layernorm.weight", width)
        ours.post_mlp_norm = planner.norm(f"{layer}post_feedforward_layernorm.weight", width)
    if config.latent is not None:
        ours.latent = _plan_latent(planner, config, config.latent, attention)
    if config.experts is None or index < config.experts.first_layer:
        ours.gate_up, ours.down = _plan_mlp(planner, config, f"{layer}mlp.", config.ffn)
    else:
        _plan_experts(planner, config, config.experts, layer, ours)
    return ours


def _projections(config: ModelConfig) -> list[tuple[str, int]]:
    """The parts of the first fused projection, in order, and their rows."""
    latent = config.latent
    if latent is None:
        q_rows, kv_rows = config.q_heads * config.head_dim, config.kv_heads * config.head_dim
        return [("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)]
    queries = ("q_a_proj", latent.q_rank) if latent.q_rank else ("q_proj", config.q_heads * config.head_dim)
    return [queries, ("kv_a_proj_with_mqa", latent.rank + latent.rope)]


def _plan_mlp(planner: _Planner, config: ModelConfig, mlp: str, ffn: int) -> tuple[Matrix, Matrix]:
    gate_up = planner.matrix(config.d_model, (f"{mlp}gate_proj.weight", ffn), (f"{mlp}up_proj.weight", ffn))
    return gate_up, planner.matrix(ffn, (f"{mlp}down_proj.weight", config.d_model))


def _plan_latent(planner: _Planner, config: ModelConfig, latent: LatentConfig, attention: str) -> LatentWeights:
    q_rows = config.q_heads * config.head_dim
    up = planner.floating(latent.rank, (f"{attention}kv_b_proj.weight", config.q_heads * (latent.nope + latent.value)))
    return LatentWeights(
        q_norm=planner.norm(f"{attention}q_a_layernorm.weight", latent.q_rank) if latent.q_rank else None,
        q_up=planner.matrix(latent.q_rank, (f"{attention}q_b_proj.weight", q_rows)) if latent.q_rank else None,
        norm=planner.norm(f"{attention}kv_a_layernorm.weight", latent.rank),
        up=MlaProjection(up, up),  # cut in two once it is filled
    )


def _plan_experts(
    planner: _Planner, config: ModelConfig, experts: ExpertConfig, layer: str, ours: LayerWeights
) -> None:
    """Fills the layer's router, experts and shared feed-forward; Mixtral's files have names of their own."""
    width, ffn, numbers = config.d_model, experts.ffn, range(experts.count)
    if config.architecture == "mixtral":
        block, gate, up, down = f"{layer}block_sparse_moe.", "w1", "w3", "w2"
    else:
        block, gate, up, down = f"{layer}mlp.", "gate_proj", "up_proj", "down_proj"
    ours.router = planner.floating(width, (f"{block}gate.weight", experts.count))
    both = [(f"{block}experts.{number}.{name}.weight", ffn) for number in numbers for name in (gate, up)]
    gate_up = planner.floating(width, *both)
    back = planner.floating(ffn, *((f"{block}experts.{number}.{down}.weight", width) for number in numbers))
    ours.experts = MoeWeights(gate_up, back, experts.per_token, experts.renormalize)
    if experts.shared_ffn:
        ours.gate_up, ours.down = _plan_mlp(planner, config, f"{block}shared_experts.", experts.shared_ffn)


def _finish_layer(layer: LayerWeights, config: ModelConfig) -> None:
    """What can only be cut or reordered once everything is read."""
    if layer.experts is not None and config.experts is not None and layer.router is not None:
        count = config.experts.count
        layer.router = layer.router.float()
        layer.experts = replace(
            layer.experts,
            gate_up=layer.experts.gate_up.view(count, 2 * config.experts.ffn, config.d_model),
            down=layer.experts.down.view(count, config.d_model, config.experts.ffn),
        )
    if layer.latent is None or config.latent is None:
        return
    latent = config.latent
    layer.latent.up = split_projection(layer.latent.up.key, config.q_heads, latent.nope)
    if not isinstance(layer.qkv, Tensor) or isinstance(layer.latent.q_up, QuantWeight):
        raise TypeError("latent attention is read from unquantized files only")
    _pairs_to_halves(layer.qkv, 1, latent.rope)
    queries = layer.qkv[: config.q_heads * config.head_dim] if layer.latent.q_up is None else layer.latent.q_up
    _pairs_to_halves(queries, config.q_heads, latent.rope)


def _pairs_to_halves(rows: Tensor, heads: int, rope: int) -> None:
    """Turns the last `rope` rows of each head from DeepSeek's interleaved pairs into halves, in place."""
    turned = rows.view(heads, -1, rows.shape[-1])[:, -rope:]
    turned.copy_(torch.cat((turned[:, 0::2], turned[:, 1::2]), dim=1))
