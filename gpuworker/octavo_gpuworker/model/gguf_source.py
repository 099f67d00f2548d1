"""Tensors and config of a GGUF: names and row order back to Hugging Face's, quantized data to floats by the gguf library."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from octavo.artifacts import BadArtifact, GgufFile, GgufTensor

from octavo_gpuworker.model.config import ModelConfig, RopeScaling

if TYPE_CHECKING:
    from torch import Tensor

    from octavo_gpuworker.kernels.quant_gemm import QuantWeight

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
"""general.architecture; a Mistral is a `llama` there."""

PERMUTED: Final = ("llama",)
"""llama.cpp stores q and k rows of these with the two halves of each head interleaved."""

LAYER_NAMES: Final = {
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

TOP_NAMES: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

REPACKED: Final = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0)
"""Kinds that kernels multiply with as they are."""
DIRECT: Final = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


def gguf_name(name: str) -> str:
    """The GGUF name of a tensor that Hugging Face calls `name`."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if match is None:
        return TOP_NAMES[name]
    return f"blk.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"


class GgufSource:
    """A TensorSource over one GGUF; BadArtifact at once when a tensor has an unknown type or ends beyond the file."""

    def __init__(self, header: GgufFile, config: ModelConfig) -> None:
        self.where = str(header.path)
        self._config = config
        self._permuted = header.text("general.architecture") in PERMUTED
        self._data = np.frombuffer(header.buffer(), dtype=np.uint8)
        self._tensors = {tensor.name: (tensor, *self._layout(tensor)) for tensor in header.tensors}

    def _layout(self, tensor: GgufTensor) -> tuple[GGMLQuantizationType, int]:
        """The tensor's type and its length in bytes."""
        try:
            kind = GGMLQuantizationType(tensor.type_id)
        except ValueError:
            raise BadArtifact(
                f"{self.where}: tensor {tensor.name} has unknown type id {tensor.type_id}; convert the model again, or upgrade gguf"
            ) from None
        block, size = GGML_QUANT_SIZES[kind]
        elements = int(np.prod(tensor.shape, dtype=object))
        if tensor.shape and tensor.shape[-1] % block:
            raise BadArtifact(
                f"{self.where}: tensor {tensor.name} has rows of {tensor.shape[-1]}, no multiple of {kind.name}'s block of {block}; convert the model again"
            )
        length = elements // block * size
        if tensor.offset + length > len(self._data):
            raise BadArtifact(
                f"{self.where}: truncated GGUF: tensor {tensor.name} ends at byte {tensor.offset + length}, "
                f"the file has {len(self._data)}; copy or download the file again"
            )
        return kind, length

    def file_name(self, name: str) -> str:
        """See TensorSource."""
        return gguf_name(name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """See TensorSource."""
        entry = self._tensors.get(gguf_name(name))
        return None if entry is None else entry[0].shape

    def read(self, name: str) -> Tensor:
        """See TensorSource; float32, or float16 and bfloat16 as stored."""
        import torch  # here alone: the native path reads arrays and has no torch

        kind, rows = self._rows(name)
        if kind == GGMLQuantizationType.BF16:
            return torch.from_numpy(rows.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(self._dequantized(name, kind, rows))

    def packed_kind(self, name: str) -> str:
        """See TensorSource."""
        entry = self._tensors.get(gguf_name(name))
        return entry[1].name if entry is not None and entry[1] in REPACKED else ""

    def read_packed(self, name: str) -> QuantWeight:
        """See TensorSource."""
        from octavo_gpuworker.kernels.quant_gemm import repack_gguf  # imports torch

        kind, rows = self._rows(name)
        height, width = self._tensors[gguf_name(name)][0].shape
        return repack_gguf(rows.reshape(-1), kind.name, (height, width))

    def read_array(self, name: str) -> NDArray[np.float32]:
        """The tensor in float32, without torch."""
        kind, rows = self._rows(name)
        if kind == GGMLQuantizationType.BF16:
            return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return self._dequantized(name, kind, rows).astype(np.float32, copy=False)

    def raw_rows(self, name: str) -> tuple[str, NDArray[np.uint8]]:
        """The type's name and the tensor's rows as bytes [..., bytes of a row], in Hugging Face's order."""
        kind, rows = self._rows(name)
        return kind.name, rows

    def _rows(self, name: str) -> tuple[GGMLQuantizationType, NDArray[np.uint8]]:
        tensor, kind, length = self._tensors[gguf_name(name)]
        block, size = GGML_QUANT_SIZES[kind]
        raw = self._data[tensor.offset : tensor.offset + length]
        vector = len(tensor.shape) == 1 and block == 1  # its elements are what is permuted
        rows = raw.reshape(-1, size) if vector else raw.reshape(*tensor.shape[:-1], tensor.shape[-1] // block * size)
        if self._permuted and ".self_attn.q_proj." in name:
            rows = _interleaved_to_halves(rows, self._config.q_heads)
        elif self._permuted and ".self_attn.k_proj." in name:
            rows = _interleaved_to_halves(rows, self._config.kv_heads)
        else:
            rows = rows.copy()  # the file's bytes may be unaligned, and are read-only
        return kind, rows.reshape(-1) if vector else rows

    def _dequantized(self, name: str, kind: GGMLQuantizationType, rows: NDArray[np.uint8]) -> NDArray[np.floating]:
        if kind in DIRECT:
            return rows.view(DIRECT[kind])
        try:
            return dequantize(rows, kind)
        except NotImplementedError:
            raise BadArtifact(
                f"{self.where}: tensor {self.file_name(name)} has type {kind.name}, which the gguf library cannot dequantize; use a Q4_K_M, Q8_0 or F16 file"
            ) from None


def _interleaved_to_halves(rows: NDArray[np.uint8], heads: int) -> NDArray[np.uint8]:
    """Undoes llama.cpp's permute: rows (pair, half) of each head to Hugging Face's (half, pair)."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def config_from_gguf(header: GgufFile) -> ModelConfig:
    """ModelConfig from GGUF metadata. BadArtifact names the architecture or the key at fault."""
    where = header.path
    architecture = header.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise BadArtifact(
            f"{where}: architecture {architecture or '(none)'!r} is not supported; {', '.join(ARCHITECTURES)} are (a Mistral GGUF says llama)"
        )

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    d_model = header.integer(key("embedding_length"))
    heads = header.integer(key("attention.head_count"))
    if heads < 1:
        raise BadArtifact(f"{where}: {key('attention.head_count')} is {heads}; convert the model again")
    head_dim = header.integer(key("attention.key_length"), d_model // heads)
    if header.integer(key("rope.dimension_count"), head_dim) != head_dim:
        raise BadArtifact(
            f"{where}: partial rotation ({key('rope.dimension_count')} below the head dim) is not supported"
        )
    if header.get(key("expert_count")):
        raise BadArtifact(f"{where}: mixture-of-experts models are not supported; use a dense model")
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    embedding = shapes.get("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        raise BadArtifact(f"{where}: tensor token_embd.weight is missing; copy or convert the model again")
    window = header.integer(key("attention.sliding_window"), 0)
    eos = header.get("tokenizer.ggml.eos_token_id")
    eot = header.get("tokenizer.ggml.eot_token_id")
    bos = header.get("tokenizer.ggml.bos_token_id")
    try:
        return ModelConfig(
            architecture=architecture,
            layers=header.integer(key("block_count")),
            d_model=d_model,
            q_heads=heads,
            kv_heads=header.integer(key("attention.head_count_kv"), heads),
            head_dim=head_dim,
            ffn=header.integer(key("feed_forward_length")),
            vocab_size=embedding[0],
            max_position=header.integer(key("context_length")),
            norm_eps=header.number(key("attention.layer_norm_rms_epsilon")),
            rope_theta=header.number(key("rope.freq_base"), 10000.0),
            rope_scaling=_rope_scaling(header, architecture),
            tied_embeddings="output.weight" not in shapes,
            qkv_bias="blk.0.attn_q.bias" in shapes,
            o_bias="blk.0.attn_output.bias" in shapes,
            qk_norm="blk.0.attn_q_norm.weight" in shapes,
            sliding_window=window or None,
            eos_token_ids=tuple(dict.fromkeys(value for value in (eos, eot) if isinstance(value, int))),
            bos_token_id=bos if isinstance(bos, int) else None,
        )
    except BadArtifact:
        raise
    except ValueError as error:
        raise BadArtifact(f"{where}: {error}; convert the model again") from error


def _rope_scaling(header: GgufFile, architecture: str) -> RopeScaling | None:
    for tensor in header.tensors:
        if tensor.name == "rope_freqs.weight":  # llama3 scaling, worked out by the converter
            raw = header.buffer()[tensor.offset : tensor.offset + 4 * tensor.shape[0]]
            if tensor.type_id != GGMLQuantizationType.F32 or len(raw) < 4 * tensor.shape[0]:
                raise BadArtifact(
                    f"{header.path}: tensor rope_freqs.weight is no complete F32 tensor; copy or convert the model again"
                )
            return RopeScaling("factors", factors=tuple(np.frombuffer(raw, dtype="<f4").tolist()))
    kind = header.text(f"{architecture}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling("linear", factor=header.number(f"{architecture}.rope.scaling.factor"))
    raise BadArtifact(
        f"{header.path}: rope scaling {kind!r} is not supported; none and linear are, and llama3 by rope_freqs"
    )
