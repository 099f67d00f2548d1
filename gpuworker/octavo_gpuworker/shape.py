"""python -m octavo_gpuworker.shape REF: a model's shape as one JSON object, from its config alone (no weight is read, no torch).

REF: what `model.ref` takes, or a config.json by itself. Exit code 3 with one line when it cannot be read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from octavo.artifacts import BadArtifact, ModelFiles, read_json, resolve_model

from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.hf_config import config_from_hf
from octavo_gpuworker.model.read_config import load_config

EXIT_MISMATCH = 3


def main() -> int:
    """Prints the shape of the model named by the one argument."""
    try:
        print(json.dumps(shape_named(sys.argv[1])))
    except BadArtifact as error:
        print(error, file=sys.stderr)
        return EXIT_MISMATCH
    return 0


def shape_named(ref: str) -> dict[str, Any]:
    """The shape of a model, or of a config.json (or a folder with only that). BadArtifact: it cannot be read."""
    path = Path(ref).expanduser()
    config_json = path / "config.json" if path.is_dir() else path
    if (
        config_json.name == "config.json"
        and config_json.is_file()
        and not list(config_json.parent.glob("*.safetensors"))
    ):
        return shape_of(config_from_hf(read_json(config_json), str(config_json)), config_json.parent.resolve().name, 0)
    files: ModelFiles = resolve_model(ref)
    return shape_of(load_config(files), files.name, sum(item.stat().st_size for item in files.weights))


def shape_of(config: ModelConfig, name: str, file_bytes: int) -> dict[str, Any]:
    """What sizes follow from. `matrices` are [out, in] with how many there are; `kind` says whether `engine.weights` quantizes them."""
    halves, heads, width = config.cache_shape
    return {
        "name": name,
        "architecture": config.architecture,
        "layers": config.layers,
        "d_model": config.d_model,
        "q_heads": config.q_heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "ffn": config.ffn,
        "vocab": config.vocab_size,
        "max_position": config.max_position,
        "tied": config.tied_embeddings,
        "latent": config.latent is not None,
        "experts": 0 if config.experts is None else config.experts.count,
        "cache": {"halves": halves, "heads": heads, "width": width},
        "matrices": [
            {"name": label, "rows": rows, "depth": depth, "count": count, "kind": kind}
            for label, rows, depth, count, kind in _matrices(config)
        ],
        "vectors": _vectors(config),
        "file_bytes": file_bytes,
    }


def _matrices(config: ModelConfig) -> list[tuple[str, int, int, int, str]]:
    """(name, rows, depth, count, kind): "matrix" and "head" take the weight format, "embedding" and "plain" stay floating."""
    width, layers = config.d_model, config.layers
    found = [("embedding", config.vocab_size, width, 1, "embedding")]
    if config.latent is None:
        found.append(("qkv", config.qkv_rows, width, layers, "matrix"))
        found.append(("o", width, config.q_heads * config.head_dim, layers, "matrix"))
    else:
        latent = config.latent
        queries = latent.q_rank or config.q_heads * config.head_dim
        found.append(("q_kv_down", queries + latent.rank + latent.rope, width, layers, "matrix"))
        if latent.q_rank:
            found.append(("q_up", config.q_heads * config.head_dim, latent.q_rank, layers, "matrix"))
        found.append(("kv_up", config.q_heads * (latent.nope + latent.value), latent.rank, layers, "plain"))
        found.append(("o", width, config.q_heads * latent.value, layers, "matrix"))
    experts = config.experts
    dense = layers if experts is None else experts.first_layer
    if dense:
        found.append(("gate_up", 2 * config.ffn, width, dense, "matrix"))
        found.append(("down", width, config.ffn, dense, "matrix"))
    if experts is not None:
        sparse = layers - experts.first_layer
        found.append(("router", experts.count, width, sparse, "plain"))
        found.append(("expert_gate_up", 2 * experts.ffn, width, sparse * experts.count, "plain"))
        found.append(("expert_down", width, experts.ffn, sparse * experts.count, "plain"))
        if experts.shared_ffn:
            found.append(("shared_gate_up", 2 * experts.shared_ffn, width, sparse, "plain"))
            found.append(("shared_down", width, experts.shared_ffn, sparse, "plain"))
    found.append(("head", config.vocab_size, width, 1, "tied_head" if config.tied_embeddings else "head"))
    return found


def _vectors(config: ModelConfig) -> int:
    """Elements of norms and biases."""
    norms = (4 if config.post_norms else 2) * config.d_model
    norms += 2 * config.head_dim if config.qk_norm else 0
    if config.latent is not None:
        norms += config.latent.rank + config.latent.q_rank
    biases = (config.qkv_rows if config.qkv_bias else 0) + (config.d_model if config.o_bias else 0)
    return config.layers * (norms + biases) + config.d_model


if __name__ == "__main__":
    sys.exit(main())
