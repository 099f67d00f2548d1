"""A model's shape, asked of the worker's own reader in a process of its own: the command line imports no service."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.artifacts import BadArtifact
from octavo.errors import OctavoError

from octavo_cli.exits import MISMATCH, USAGE

MODULE = "octavo_gpuworker.shape"


class BadSize(OctavoError, ValueError):
    """Arguments for which no size can be given; the message names the option and the fix."""

    exit_code = USAGE
    default_reason = "bad-size"


@dataclass(frozen=True, slots=True)
class Matrix:
    """`count` matrices [rows, depth]. kind: matrix, head (quantized by `engine.weights`), tied_head, embedding, plain."""

    name: str
    rows: int
    depth: int
    count: int
    kind: str

    @property
    def elements(self) -> int:
        """Of all of them."""
        return self.rows * self.depth * self.count


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What sizes follow from. The cache holds [halves, cache_heads, cache_width] elements per token and layer."""

    name: str
    architecture: str
    layers: int
    d_model: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_position: int
    latent: bool
    halves: int
    cache_heads: int
    cache_width: int
    matrices: tuple[Matrix, ...]
    vectors: int
    file_bytes: int = 0

    @property
    def parameters(self) -> int:
        """Weights of the model, a tied head counted once."""
        return self.vectors + sum(item.elements for item in self.matrices if item.kind != "tied_head")

    @property
    def attention(self) -> str:
        """MHA, GQA, MQA or MLA."""
        if self.latent:
            return "MLA"
        if self.kv_heads == self.q_heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"


def shape_from(content: Mapping[str, Any]) -> ModelShape:
    """From the worker's answer."""
    cache = content["cache"]
    names = (
        "name",
        "architecture",
        "layers",
        "d_model",
        "q_heads",
        "kv_heads",
        "head_dim",
        "ffn",
        "vocab",
        "max_position",
    )
    return ModelShape(
        **{name: content[name] for name in names},
        latent=content["latent"],
        halves=cache["halves"],
        cache_heads=cache["heads"],
        cache_width=cache["width"],
        matrices=tuple(Matrix(**item) for item in content["matrices"]),
        vectors=content["vectors"],
        file_bytes=content["file_bytes"],
    )


def read_shape(ref: str) -> ModelShape:
    """The shape of `model.ref`, or of a config.json. Raises BadArtifact with the reader's own words."""
    done = subprocess.run([sys.executable, "-m", MODULE, ref], capture_output=True, text=True, timeout=120)
    if done.returncode == MISMATCH:
        raise BadArtifact(done.stderr.strip())
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise OctavoError(f"the model's config cannot be read: {said[-1] if said else done.returncode}")
    return shape_from(json.loads(done.stdout))
