"""traffic_bytes: what one call of an operation must read and write at least, from its very arguments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from octavo_gpuworker.kernels.attention_plan import AttentionPlan
from octavo_gpuworker.kernels.moe import MoeWeights


def traffic_bytes(operation: str, arguments: tuple[Any, ...], result: Any) -> int:
    """Bytes of the operands, each memory once; of a pool only what the sequences' contexts hold, of experts at most one per choice."""
    if operation in ("paged_attention", "mla_decode", "mla_prefill"):
        return _attention(operation, arguments, result)
    if operation == "store_kv":
        qkv, write, _, _, layer, scales = arguments
        width: int = layer.shape[-1] * layer.element_size() + (0 if scales is None else scales.element_size())
        return _size(qkv) + _size(result) + len(write.blocks) * 2 * int(write.kv_heads) * width
    if operation == "moe":
        x, logits, weights = arguments
        reached: float = min(1.0, x.shape[0] * weights.top_k / weights.gate_up.shape[0])
        return _size(x) + _size(logits) + _size(result) + round(reached * _experts(weights))
    return sum(_size(tensor) for tensor in _distinct((*arguments, result)))


def _attention(operation: str, arguments: tuple[Any, ...], result: Any) -> int:
    """Queries and answers, and the keys and values of every sequence's context."""
    if operation == "paged_attention":
        queries, pool, _, plan, scales = arguments
        per_token: int = pool.shape[2] * pool.shape[3] * pool.shape[5] * pool.element_size()
        per_token += 0 if scales is None else pool.shape[2] * pool.shape[3] * scales.element_size()
        return _size(queries) + _size(result) + int(sum(plan.contexts)) * per_token
    cache = arguments[2] if operation == "mla_decode" else arguments[3]
    around = sum(_size(tensor) for tensor in (*arguments[:2], result) if isinstance(tensor, Tensor))
    plan = next((item for item in arguments if isinstance(item, AttentionPlan)), None)
    # mla_decode knows its lengths on the device alone; the longest bounds what its table can reach
    tokens = sum(plan.contexts) if plan is not None else arguments[3].max_context * len(arguments[3].context_len)
    width: int = cache.shape[-1] * cache.element_size()
    return around + int(tokens) * width


def _experts(weights: MoeWeights) -> int:
    return _size(weights.gate_up) + _size(weights.down)


def _size(value: Any) -> int:
    return (
        int(value.numel() * value.dtype.itemsize) if isinstance(value, Tensor) else 0
    )  # oneDNN weights have no element_size


def _distinct(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among the values and inside their dataclasses and tuples, each memory once."""
    found: dict[int, Tensor] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            found[id(value) if value.is_mkldnn else value.data_ptr()] = value
        elif isinstance(value, tuple | list):
            waiting += value
        elif is_dataclass(value) and not isinstance(value, type):
            waiting += [getattr(value, item.name) for item in fields(value)]
    return list(found.values())
