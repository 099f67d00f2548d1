"""Packer: fills the entries of a packed file from named tensors; and the names and sizes of those entries.

Entries: `embedding` (bf16, only where the head is another matrix), `norm`, `head`, and per layer `attn_norm`, `q_norm`, `k_norm`,
`mlp_norm`, `qkv`, `o`, `gate_up`, `down`; a matrix may have a `.bias`. Output columns:
qkv: heads of q, k, v, each padded to 32; gate_up: 32 of gate, then the same 32 of up. With int4 weights the head is int8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from octavo.artifacts import BadArtifact

from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.native import abi
from octavo_gpuworker.native.library import Library
from octavo_gpuworker.native.tensors import Tensors

PANEL: Final = 32
GROUPED: Final = {"int4": "octavo_pack_gguf_int4", "int8": "octavo_pack_gguf_int8"}
"""Formats that take GGUF's 4-bit blocks as they are, so that nothing is rounded twice."""
Entries = dict[str, NDArray[np.uint8]]


def padded(count: int) -> int:
    """Rounded up to a panel."""
    return -(-count // PANEL) * PANEL


def head_format(weights: str) -> str:
    """int4 keeps the head in int8: it is read once a step and decides every token."""
    return "int8" if weights == "int4" else weights


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one tensor that become consecutive runs of columns."""

    tensor: str
    rows: int
    run: int
    """Rows that stay together."""
    first: int
    """Column of the first run."""
    step: int
    """Columns from one run to the next."""


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """One packed matrix: where its columns come from."""

    name: str
    columns: int
    depth: int
    parts: tuple[Part, ...]
    format: str
    bias: bool = False


def matrices_of(config: ModelConfig, weights: str) -> Iterator[MatrixPlan]:
    """Every packed matrix of a model, the head last."""
    width, dim, wide = config.d_model, config.head_dim, padded(config.head_dim)
    q_rows, kv_rows = config.q_heads * dim, config.kv_heads * dim
    heads = config.q_heads + 2 * config.kv_heads
    for index in range(config.layers):
        layer, name = f"model.layers.{index}.", f"layers.{index}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        qkv = (
            Part(f"{attention}q_proj", q_rows, dim, 0, wide),
            Part(f"{attention}k_proj", kv_rows, dim, config.q_heads * wide, wide),
            Part(f"{attention}v_proj", kv_rows, dim, (config.q_heads + config.kv_heads) * wide, wide),
        )
        gate_up = (
            Part(f"{mlp}gate_proj", config.ffn, PANEL, 0, 2 * PANEL),
            Part(f"{mlp}up_proj", config.ffn, PANEL, PANEL, 2 * PANEL),
        )
        yield MatrixPlan(f"{name}qkv", heads * wide, width, qkv, weights, config.qkv_bias)
        yield _whole(f"{name}o", f"{attention}o_proj", width, q_rows, weights, config.o_bias)
        yield MatrixPlan(f"{name}gate_up", 2 * padded(config.ffn), width, gate_up, weights)
        yield _whole(f"{name}down", f"{mlp}down_proj", width, config.ffn, weights)
    head = "model.embed_tokens" if config.tied_embeddings else "lm_head"
    yield _whole("head", head, config.vocab_size, width, head_format(weights))


def _whole(name: str, tensor: str, rows: int, depth: int, weights: str, bias: bool = False) -> MatrixPlan:
    return MatrixPlan(name, padded(rows), depth, (Part(tensor, rows, rows, 0, rows),), weights, bias)


def vectors_of(config: ModelConfig) -> Iterator[tuple[str, str, int]]:
    """(entry, tensor, length) of every norm."""
    for index in range(config.layers):
        layer, name = f"model.layers.{index}.", f"layers.{index}."
        yield f"{name}attn_norm", f"{layer}input_layernorm.weight", config.d_model
        yield f"{name}mlp_norm", f"{layer}post_attention_layernorm.weight", config.d_model
        if config.qk_norm:
            yield f"{name}q_norm", f"{layer}self_attn.q_norm.weight", config.head_dim
            yield f"{name}k_norm", f"{layer}self_attn.k_norm.weight", config.head_dim
    yield "norm", "model.norm.weight", config.d_model


def entries_of(config: ModelConfig, weights: str, library: Library) -> dict[str, int]:
    """Bytes of every entry, in the order in which a step reads them."""
    sizes = {} if config.tied_embeddings else {"embedding": config.vocab_size * config.d_model * 2}
    for matrix in matrices_of(config, weights):
        sizes[matrix.name] = library.handle.octavo_packed_bytes(
            abi.FORMATS[matrix.format], matrix.columns, matrix.depth
        )
        if matrix.bias:
            sizes[f"{matrix.name}.bias"] = matrix.columns * 4
    sizes.update({entry: length * 4 for entry, _, length in vectors_of(config)})
    return sizes


class Packer:
    """Writes entries. BadArtifact: a tensor is missing or has another shape than the config says."""

    def __init__(self, library: Library, config: ModelConfig, weights: str, tensors: Tensors, where: str) -> None:
        self._library, self._config, self._weights = library.handle, config, weights
        self._tensors, self._where = tensors, where

    def fill(self, entries: Entries, progress: Callable[[int, int], None] | None) -> None:
        """Fills every entry; they start zeroed."""
        for entry, tensor, length in vectors_of(self._config):
            stored = self._floats(tensor, (length,))
            entries[entry].view(np.float32)[:] = stored + 1 if self._config.norm_offset else stored
        if not self._config.tied_embeddings:
            shape = (self._config.vocab_size, self._config.d_model)
            entries["embedding"].view(np.uint16)[:] = to_bf16(self._floats("model.embed_tokens.weight", shape)).ravel()
        plans = list(matrices_of(self._config, self._weights))
        for done, plan in enumerate(plans, 1):
            for part in plan.parts:
                self._part(plan, part, entries)
            if progress is not None:
                progress(done, len(plans))

    def _part(self, plan: MatrixPlan, part: Part, entries: Entries) -> None:
        name, shape = f"{part.tensor}.weight", (part.rows, plan.depth)
        self._check(name, shape)
        raw = self._tensors.raw_int4(name) if plan.format in GROUPED else None
        rows = raw[1] if raw is not None else self._floats(name, shape)
        for run, start in enumerate(range(0, part.rows, part.run)):
            piece = np.ascontiguousarray(rows[start : start + part.run])
            column = part.first + run * part.step
            size = (len(piece), plan.depth, column, plan.columns, padded(plan.depth))
            to = entries[plan.name].ctypes.data
            if raw is not None:
                failed = getattr(self._library, GROUPED[plan.format])(raw[0], piece.ctypes.data, *size, to)
            else:
                failed = self._library.octavo_pack(abi.FORMATS[plan.format], piece.ctypes.data, *size, to)
            if failed == -2:
                raise BadArtifact(
                    f"{self._where}: tensor {name} has values that {plan.format} cannot keep (not finite, or scales beyond "
                    "float16's range); convert the model again, or set engine.weights to bf16"
                )
            if failed:
                raise BadArtifact(
                    f"{self._where}: tensor {name} of {shape} does not fit its packed form; convert it again"
                )
        if plan.bias:
            self._bias(part, entries[f"{plan.name}.bias"].view(np.float32))

    def _bias(self, part: Part, to: NDArray[np.float32]) -> None:
        values = self._floats(f"{part.tensor}.bias", (part.rows,))
        for run, start in enumerate(range(0, part.rows, part.run)):
            column, piece = part.first + run * part.step, values[start : start + part.run]
            to[column : column + len(piece)] = piece

    def _floats(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        self._check(name, shape)
        return self._tensors.floats(name)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        found = self._tensors.shape(name)
        if found is None:
            raise BadArtifact(f"{self._where}: tensor {name} is missing; copy or convert the model again")
        if found != shape:
            raise BadArtifact(
                f"{self._where}: tensor {name} has shape {list(found)}, the config asks for {list(shape)}; "
                "convert the model again"
            )


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
