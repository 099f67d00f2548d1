"""Refusal: why an Admit cannot run here. What a scheduler should never send must fail its sequence, not the process."""

from __future__ import annotations

import math
from collections.abc import Iterable

from octavo_gpuworker.backends.blocks import BlockPool
from octavo_gpuworker.orders import AdmitOrder, Sampling


def admit_fault(order: AdmitOrder, pool: BlockPool, vocab: int) -> str:
    """One line that names the field and the bound, or an empty string."""
    length, size = len(order.tokens), pool.block_tokens
    if not order.tokens:
        return "tokens: empty; a sequence needs at least one"
    if not 0 < order.prompt_len <= length:
        return f"prompt_len: {order.prompt_len} must lie in [1, {length}]"
    if order.max_len <= length:
        return f"max_len: {order.max_len} leaves no room after {length} tokens"
    if order.cached_len >= length or order.wait_base >= length:
        return f"cached_len: {max(order.cached_len, order.wait_base)} leaves none of {length} tokens to compute"
    if order.cached_len > len(order.blocks) * size:
        return f"cached_len: {order.cached_len} is beyond the {len(order.blocks)} blocks"
    if max(order.tokens) >= vocab:
        return f"tokens: id {max(order.tokens)} is outside the vocabulary of {vocab}"
    sampling = order.sampling
    if fault := _sampling_fault(sampling):
        return f"sampling: {fault}"
    ids = [*(token for token, _ in sampling.bias), *sampling.stop_ids]
    if ids and not 0 <= max(ids) < vocab:
        return f"sampling: id {max(ids)} is outside the vocabulary of {vocab}"
    needed = -(-length // size)
    if order.split_len >= length:
        return f"split_len: {order.split_len} leaves none of {length} tokens to a sibling"
    if sampling.beam and sampling.logprobs < 1:
        return f"sampling: logprobs is {sampling.logprobs}; a beam offers at least 1"
    for sibling in order.siblings:
        if order.split_len and len(sibling.tokens) != length:
            return f"siblings: seq {sibling.seq} has {len(sibling.tokens)} tokens of {length}"
        if sibling.tokens and max(sibling.tokens) >= vocab:
            return f"siblings: id {max(sibling.tokens)} is outside the vocabulary of {vocab}"
        if len(sibling.blocks) < needed:
            return f"siblings: seq {sibling.seq} has {len(sibling.blocks)} blocks, the prompt covers {needed}"
    return next(filter(None, (blocks_fault(b, pool) for b in (order.blocks, *(s.blocks for s in order.siblings)))), "")


def _sampling_fault(sampling: Sampling) -> str:
    """A number that a sampler could only answer with nonsense; a native step that holds one is refused as a whole."""
    finite = ("temperature", "presence_penalty", "frequency_penalty", "repetition_penalty")
    for name in finite:
        if not math.isfinite(getattr(sampling, name)):
            return f"{name} is {getattr(sampling, name)}; it must be finite"
    if not sampling.repetition_penalty > 0:
        return f"repetition_penalty is {sampling.repetition_penalty}; it must be above 0"
    if not sampling.top_p > 0:
        return f"top_p is {sampling.top_p}; it must be above 0"
    if sampling.top_k < 0:
        return f"top_k is {sampling.top_k}; it must be 0 (all) or more"
    if not 0 <= sampling.min_p <= 1:
        return f"min_p is {sampling.min_p}; it must lie in [0, 1]"
    wrong = [token for token, value in sampling.bias if math.isnan(value) or value == math.inf]
    return f"the bias of token {wrong[0]} is not a number below infinity" if wrong else ""


def blocks_fault(blocks: Iterable[int], pool: BlockPool) -> str:
    """Whether a granted block lies outside the pool, or is the null block."""
    wrong = [block for block in blocks if not 0 < block < pool.num_blocks]
    return f"block_ids: {wrong[0]} is outside [1, {pool.num_blocks})" if wrong else ""
