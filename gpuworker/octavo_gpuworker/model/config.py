"""ModelConfig: the flags that drive the one decoder, whatever file they were read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from octavo.artifacts import BadArtifact


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context; numbers as in Hugging Face's rope_parameters."""

    kind: Literal["linear", "llama3", "factors"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    factors: tuple[float, ...] = ()
    """kind "factors": one divisor per frequency, as a GGUF's rope_freqs.weight holds them."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and flags of one decoder-only model; lengths in tokens, sizes in elements."""

    architecture: str
    """llama, mistral, qwen2 or qwen3: for people and the fingerprint; the decoder reads only the flags below."""
    layers: int
    d_model: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    max_position: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tied_embeddings: bool = False
    qkv_bias: bool = False
    """Qwen2, and Llama with attention_bias."""
    o_bias: bool = False
    qk_norm: bool = False
    """Qwen3: RMS norm of each query and key head before the rotation."""
    sliding_window: int | None = None
    """A query at position p sees keys in (p - window, p]."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        # ValueError: whoever read the numbers says which file they came from.
        for name in ("layers", "d_model", "q_heads", "kv_heads", "head_dim", "ffn", "vocab_size", "max_position"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a positive integer")
        if self.q_heads % self.kv_heads:
            raise ValueError(f"{self.q_heads} query heads are no multiple of {self.kv_heads} KV heads")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd, rotary embedding needs an even one")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window is {self.sliding_window}, expected a positive integer or none")

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q_heads // self.kv_heads

    @property
    def qkv_rows(self) -> int:
        """Output rows of the fused query-key-value projection."""
        return (self.q_heads + 2 * self.kv_heads) * self.head_dim


HF_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def config_from_hf(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """ModelConfig from a parsed config.json. BadArtifact names the key at fault; `where` begins the message.

    Reads both spellings of rotary settings: rope_theta + rope_scaling, and transformers 5's rope_parameters.
    """
    names = raw.get("architectures") or ["(none)"]
    architecture = HF_ARCHITECTURES.get(names[0])
    if architecture is None:
        raise BadArtifact(f"{where}: architecture {names[0]} is not supported; {', '.join(HF_ARCHITECTURES)} are")
    if raw.get("mlp_bias"):
        raise BadArtifact(f"{where}: mlp_bias is not supported; use a checkpoint without it")
    if raw.get("quantization_config"):
        raise BadArtifact(f"{where}: quantization_config is not supported; use an unquantized checkpoint, or a GGUF")
    activation = ACTIVATIONS.get(raw.get("hidden_act", "silu"))
    if activation is None:
        raise BadArtifact(f"{where}: hidden_act {raw['hidden_act']!r} is not supported; {', '.join(ACTIVATIONS)} are")
    try:
        heads = int(raw["num_attention_heads"])
        theta, scaling = _rope_from_hf(raw, where)
        return ModelConfig(
            architecture=architecture,
            layers=int(raw["num_hidden_layers"]),
            d_model=int(raw["hidden_size"]),
            q_heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
            ffn=int(raw["intermediate_size"]),
            vocab_size=int(raw["vocab_size"]),
            max_position=int(raw["max_position_embeddings"]),
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2" or bool(raw.get("attention_bias")),
            o_bias=architecture != "qwen2" and bool(raw.get("attention_bias")),
            qk_norm=architecture == "qwen3",
            sliding_window=_window_from_hf(raw, architecture, where),
            activation=activation,
            eos_token_ids=_ids(raw.get("eos_token_id")),
            bos_token_id=raw.get("bos_token_id"),
        )
    except KeyError as error:
        raise BadArtifact(f"{where}: {error.args[0]} is missing; copy the model folder again") from error
    except BadArtifact:
        raise
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise BadArtifact(f"{where}: a wrong value or type ({error}); copy the model folder again") from error


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(value),)


def _rope_from_hf(raw: Mapping[str, Any], where: str) -> tuple[float, RopeScaling | None]:
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if float(scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise BadArtifact(f"{where}: partial_rotary_factor is not supported; use a model that rotates whole heads")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", factor=float(scaling["factor"]))
    if kind == "llama3":
        return theta, RopeScaling(
            "llama3",
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_max_position=int(scaling["original_max_position_embeddings"]),
        )
    raise BadArtifact(f"{where}: rope type {kind!r} is not supported; default, linear and llama3 are")


def _window_from_hf(raw: Mapping[str, Any], architecture: str, where: str) -> int | None:
    window = raw.get("sliding_window")
    if window is None or architecture == "llama":
        return None
    if architecture == "mistral":
        return int(window)
    if not raw.get("use_sliding_window", False):
        return None
    kinds = set(raw.get("layer_types") or ())
    if not kinds and int(raw.get("max_window_layers", 0)) > 0:
        kinds = {"full_attention", "sliding_attention"}
    if len(kinds) > 1:
        raise BadArtifact(
            f"{where}: use_sliding_window with layers of both kinds is not supported; set use_sliding_window to false"
        )
    return None if kinds == {"full_attention"} else int(window)
