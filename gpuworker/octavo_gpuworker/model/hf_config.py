"""config_from_hf: a ModelConfig from a Hugging Face folder's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from octavo.artifacts import BadArtifact

from octavo_gpuworker.model.config import ModelConfig, RopeScaling
from octavo_gpuworker.model.hf_families import FAMILIES, yarn_amplitude

HF_ARCHITECTURES: Final = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Gemma2ForCausalLM": "gemma2",
    "DeepseekV2ForCausalLM": "deepseek_v2",
}

ACTIVATIONS: Final[dict[str, Literal["silu", "gelu_tanh"]]] = {
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
    name = raw.get("hidden_activation") or raw.get("hidden_act") or "silu"
    activation = ACTIVATIONS.get(name)
    if activation is None:
        raise BadArtifact(f"{where}: hidden_act {name!r} is not supported; {', '.join(ACTIVATIONS)} are")
    try:
        heads = int(raw["num_attention_heads"])
        theta, scaling = _rope_from_hf(raw, where)
        config = ModelConfig(
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
            tied_embeddings=bool(raw.get("tie_word_embeddings", architecture == "gemma2")),
            qkv_bias=architecture == "qwen2" or bool(raw.get("attention_bias")),
            o_bias=architecture != "qwen2" and bool(raw.get("attention_bias")),
            qk_norm=architecture == "qwen3",
            sliding_window=_window_from_hf(raw, architecture, where),
            activation=activation,
            eos_token_ids=_ids(raw.get("eos_token_id")),
            bos_token_id=raw.get("bos_token_id"),
        )
        return FAMILIES[architecture](config, raw, where) if architecture in FAMILIES else config
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
    if kind == "yarn":
        return theta, _yarn(scaling, int(raw["max_position_embeddings"]))
    raise BadArtifact(f"{where}: rope type {kind!r} is not supported; default, linear, llama3 and yarn are")


def _yarn(scaling: Mapping[str, Any], max_position: int) -> RopeScaling:
    original = int(scaling["original_max_position_embeddings"])
    factor = float(scaling.get("factor") or max_position / original)
    amplitude = scaling.get("attention_factor")
    if amplitude is None:
        over = scaling.get("mscale_all_dim") if scaling.get("mscale") else None
        both = yarn_amplitude(factor, scaling["mscale"]) / yarn_amplitude(factor, over) if over else None
        amplitude = both or yarn_amplitude(factor, 1.0)
    return RopeScaling(
        "yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=float(scaling.get("beta_fast") or 32),
        beta_slow=float(scaling.get("beta_slow") or 1),
        amplitude=float(amplitude),
    )


def _window_from_hf(raw: Mapping[str, Any], architecture: str, where: str) -> int | None:
    window = raw.get("sliding_window")
    if window is None or architecture in ("llama", "deepseek_v2"):
        return None
    if architecture in ("mistral", "mixtral", "gemma2"):
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
