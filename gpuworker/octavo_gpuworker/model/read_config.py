"""load_config: a model's shape and flags from its files, without torch and without reading a weight."""

from __future__ import annotations

import dataclasses

from octavo.artifacts import ModelFiles, read_gguf_metadata, read_json

from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.gguf_source import config_from_gguf
from octavo_gpuworker.model.hf_config import config_from_hf


def load_config(files: ModelFiles) -> ModelConfig:
    """The config alone, without reading a weight. BadArtifact: a key is missing, wrong or not supported."""
    if files.kind == "gguf":
        return config_from_gguf(read_gguf_metadata(files.path))
    config = config_from_hf(read_json(files.config_json), str(files.config_json))
    generation = files.path / "generation_config.json"
    stops = read_json(generation).get("eos_token_id") if generation.is_file() else None
    extra = stops if isinstance(stops, list) else [] if stops is None else [stops]
    return dataclasses.replace(config, eos_token_ids=tuple(dict.fromkeys((*config.eos_token_ids, *extra))))
