"""The structs and functions of csrc/api.h, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from typing import Final

ABI: Final = 4
FORMATS: Final[dict[str, int]] = {"bf16": 0, "int8": 1, "int4": 2}
KV_DTYPES: Final[dict[str, int]] = {"bf16": 0, "f32": 1, "int8": 2}
ACTIVATIONS: Final[dict[str, int]] = {"silu": 0, "gelu_tanh": 1}
ERROR_BYTES: Final = 512


class Config(ctypes.Structure):
    """OctavoConfig."""

    _fields_ = (
        *((name, c_int32) for name in ("layers", "d_model", "q_heads", "kv_heads", "head_dim", "ffn", "vocab", "activation")),
        *((name, c_int32) for name in ("format", "head_format", "kv_dtype", "block_tokens", "num_blocks", "qk_norm")),
        *((name, c_int32) for name in ("tied", "threads")),
        *((name, c_float) for name in ("norm_eps", "attention_scale", "embedding_scale")),
        ("isa", c_int32),
        ("deterministic", c_int32),
    )  # fmt: skip


class Matrix(ctypes.Structure):
    """OctavoMatrix."""

    _fields_ = (
        ("data", c_void_p), ("bias", c_void_p), ("columns", c_int64), ("depth", c_int64),
    )  # fmt: skip


class Layer(ctypes.Structure):
    """OctavoLayer."""

    _fields_ = (
        *((name, c_void_p) for name in ("attn_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, Matrix) for name in ("qkv", "o", "gate_up", "down")),
        ("window", c_int32),
        ("reserved", c_int32),
    )


class Weights(ctypes.Structure):
    """OctavoWeights."""

    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        ("norm", c_void_p),
        ("inverse_frequencies", c_void_p),
        ("embedding", c_void_p),
        ("head", Matrix),
    )


class Batch(ctypes.Structure):
    """OctavoBatch."""

    _fields_ = (
        *((name, c_int32) for name in ("tokens", "sequences", "rows", "table_stride")),
        *((name, c_void_p) for name in ("token_ids", "query_start", "context_len", "block_tables", "sample_rows")),
        *((name, c_void_p) for name in ("temperature", "top_p", "min_p", "top_k", "logprobs", "seeds", "positions")),
        *((name, c_void_p) for name in ("repetition", "presence", "frequency", "history_start", "history")),
        *((name, c_void_p) for name in ("prompt_len", "bias_start", "bias_ids", "bias_values", "grammar_rows", "grammar")),
        ("grammar_masks", c_int32),
        ("top_stride", c_int32),
        ("bell", c_int32),
        *((name, c_void_p) for name in ("out_tokens", "out_logprobs", "out_top_ids", "out_top_logprobs", "out_logits")),
    )  # fmt: skip


class Flight(ctypes.Structure):
    """OctavoFlight."""

    _fields_ = (
        ("room", c_int32), ("stop_count", c_int32), ("stops", c_void_p), ("tokens", c_void_p), ("elapsed_ns", c_void_p),
        ("limit", c_int64), ("waits", c_int32), ("hold", c_void_p),
    )  # fmt: skip


def declare(library: ctypes.CDLL) -> None:
    """Gives every function its types; a call without them would cut pointers to 32 bits."""
    text = (c_char_p, c_int64)
    signatures = {
        "octavo_abi": (c_int32, ()),
        "octavo_isas": (c_int32, ()),
        "octavo_create": (
            c_int32,
            (ctypes.POINTER(Config), ctypes.POINTER(Weights), c_void_p, c_int64, ctypes.POINTER(c_void_p), *text),
        ),
        "octavo_step": (c_int32, (c_void_p, ctypes.POINTER(Batch), *text)),
        "octavo_begin": (c_int32, (c_void_p, ctypes.POINTER(Batch), ctypes.POINTER(Flight), *text)),
        "octavo_extend": (None, (c_void_p, c_int64)),
        "octavo_halt": (None, (c_void_p,)),
        "octavo_taken": (c_int64, (c_void_p, c_int64, c_int32, ctypes.POINTER(c_int32), *text)),
        "octavo_destroy": (None, (c_void_p,)),
        "octavo_isa_of": (c_int32, (c_void_p,)),
        "octavo_sample": (c_int32, (ctypes.POINTER(Batch), c_void_p, c_int32, c_int32, *text)),
        "octavo_packed_bytes": (c_int64, (c_int32, c_int64, c_int64)),
        "octavo_pack": (c_int32, (c_int32, c_void_p, *(c_int64,) * 5, c_void_p)),
        "octavo_pack_gguf_int4": (c_int32, (c_int32, c_void_p, *(c_int64,) * 5, c_void_p)),
        "octavo_pack_gguf_int8": (c_int32, (c_int32, c_void_p, *(c_int64,) * 5, c_void_p)),
        "octavo_unpack": (None, (c_int32, c_void_p, c_int64, c_int64, c_void_p)),
        "octavo_stream_bytes_per_s": (c_double, (c_void_p, c_int64, c_int32, c_int32)),
        "octavo_copy_xxh3": (None, (c_void_p, c_void_p, c_int64, c_int64, c_void_p)),
        "octavo_touch": (None, (c_void_p, c_int64)),
        "octavo_peak_macs_per_s": (c_double, (c_int32, c_int32, c_int32)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
