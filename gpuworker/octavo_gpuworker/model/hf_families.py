"""What Mixtral, Gemma 2 and DeepSeek-V2 add to a Llama-like config, read from the same config.json.

KeyError, TypeError and ValueError pass to config_from_hf, which names the file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from octavo.artifacts import BadArtifact

from octavo_gpuworker.model.config import ExpertConfig, LatentConfig, ModelConfig


def yarn_amplitude(factor: float, mscale: float) -> float:
    """How much larger scores of a context stretched by `factor` must be (YaRN, arXiv 2309.00071, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def mixtral(config: ModelConfig, raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Every feed-forward is a mixture; shares of the chosen experts add up to 1."""
    experts = ExpertConfig(int(raw["num_local_experts"]), int(raw["num_experts_per_tok"]), config.ffn, renormalize=True)
    return dataclasses.replace(config, experts=experts)


def gemma2(config: ModelConfig, raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Soft caps, four norms a layer, scaled embeddings, and a window in every second layer (arXiv 2408.00118)."""
    kinds = raw.get("layer_types") or [
        "full_attention" if index % 2 else "sliding_attention" for index in range(config.layers)
    ]
    return dataclasses.replace(
        config,
        full_layers=tuple(index for index, kind in enumerate(kinds) if kind == "full_attention"),
        query_scale=float(raw["query_pre_attn_scalar"]) ** -0.5,
        attention_soft_cap=float(raw.get("attn_logit_softcapping") or 0.0),
        logit_soft_cap=float(raw.get("final_logit_softcapping") or 0.0),
        embedding_scale=config.d_model**0.5,
        norm_offset=True,
        post_norms=True,
    )


def deepseek_v2(config: ModelConfig, raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Latent attention, and experts beside shared ones from some layer on."""
    if raw.get("topk_method", "greedy") != "greedy":
        raise BadArtifact(
            f"{where}: topk_method {raw['topk_method']!r} is not supported; greedy is (DeepSeek-V2-Lite has it)"
        )
    if raw.get("moe_layer_freq", 1) != 1:
        raise BadArtifact(f"{where}: moe_layer_freq {raw['moe_layer_freq']} is not supported; 1 is")
    if raw.get("attention_bias"):
        raise BadArtifact(f"{where}: attention_bias is not supported beside latent attention; use a checkpoint without")
    latent = LatentConfig(
        rank=int(raw["kv_lora_rank"]),
        nope=int(raw["qk_nope_head_dim"]),
        rope=int(raw["qk_rope_head_dim"]),
        value=int(raw["v_head_dim"]),
        q_rank=int(raw.get("q_lora_rank") or 0),
    )
    ffn = int(raw["moe_intermediate_size"])
    experts = ExpertConfig(
        int(raw["n_routed_experts"]),
        int(raw["num_experts_per_tok"]),
        ffn,
        renormalize=False,
        scale=float(raw.get("routed_scaling_factor", 1.0)),
        shared_ffn=int(raw.get("n_shared_experts") or 0) * ffn,
        first_layer=int(raw.get("first_k_dense_replace", 0)),
    )
    if raw.get("norm_topk_prob"):
        raise BadArtifact(f"{where}: norm_topk_prob is not supported for deepseek_v2; its own code passes over it")
    head_dim = latent.nope + latent.rope
    return dataclasses.replace(
        config, head_dim=head_dim, query_scale=_latent_scale(raw, head_dim), latent=latent, experts=experts
    )


def _latent_scale(raw: Mapping[str, Any], head_dim: int) -> float:
    """head_dim^-0.5, and under yarn the square of its amplitude over all dims on top."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    mscale = scaling.get("mscale_all_dim") or 0.0
    if (scaling.get("rope_type") or scaling.get("type") or "default") == "default" or not mscale:
        return float(head_dim**-0.5)
    return float(head_dim**-0.5 * yarn_amplitude(float(scaling["factor"]), float(mscale)) ** 2)


FAMILIES: Final[dict[str, Callable[[ModelConfig, Mapping[str, Any], str], ModelConfig]]] = {
    "mixtral": mixtral,
    "gemma2": gemma2,
    "deepseek_v2": deepseek_v2,
}
"""Per architecture: the plain config with what the family adds."""
