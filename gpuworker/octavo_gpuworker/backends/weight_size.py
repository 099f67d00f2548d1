"""How much of a torch model a step reads: for the metrics that hold a step against the machine's peaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass

from torch import Tensor

from octavo_gpuworker.model.decoder import Decoder


def tensors_of(value: object) -> Iterator[Tensor]:
    """Every tensor in a tree of dataclasses, lists and tuples, each once."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
    elif is_dataclass(value):
        for item in fields(value):
            yield from tensors_of(getattr(value, item.name))


def weight_gauges(decoder: Decoder) -> Mapping[str, tuple[str, Callable[[], float]]]:
    """weight_bytes, parameters, head_parameters, attention_width. A table of embeddings that is no output head is looked up, not read."""
    config = decoder.config
    head = config.vocab_size * config.d_model
    weights = decoder.weights
    read = list(
        tensors_of([weights.head, weights.norm, weights.layers])
    )  # a prepared tensor has a dtype, and no storage
    size_bytes = sum(tensor.numel() * tensor.dtype.itemsize for tensor in read)
    parameters = sum(tensor.numel() for tensor in read)
    width = config.layers * config.q_heads * config.head_dim
    figures = {"weight_bytes": size_bytes, "parameters": parameters, "head_parameters": head, "attention_width": width}
    return {name: ("", lambda value=value: float(value)) for name, value in figures.items()}  # type: ignore[misc]
