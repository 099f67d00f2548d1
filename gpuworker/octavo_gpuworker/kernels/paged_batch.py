"""PagedBatch: what paged attention kernels need to know of a step, and how many splits its decodes get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

VERIFY_QUERIES: Final = 8
"""Sequences with up to so many new tokens attend as decodes (speculative verification); longer ones as prefill."""
SPLIT_KEYS: Final = 256
"""Least keys worth a program of their own: below it the reduce kernel costs more than the parallelism brings."""
MAX_SPLITS: Final = 64
"""Bound of the partial results per token and head."""
NO_WINDOW: Final = 1 << 30
"""Stands for "no sliding window" where a kernel wants an integer."""


@dataclass(slots=True)
class PagedBatch:
    """S sequences with T new tokens in all, in device tensors, and the host's knowledge of their lengths."""

    query_start: Tensor
    """[S + 1] int32."""
    context_len: Tensor
    """[S] int32, the new tokens included."""
    block_tables: Tensor
    """[S, max_blocks] int32; the last axis has stride 1."""
    tokens: int
    """T, padding of a captured step included."""
    decode_query: int
    """Most new tokens among the sequences with 1..VERIFY_QUERIES of them; 0: there is none."""
    prefills: bool
    """Some sequence has more than VERIFY_QUERIES new tokens."""
    max_context: int
    """Longest context among the decodes; an upper bound is enough."""
    block_tokens: int
    """Tokens per block, a power of two."""
    scale: float
    """Of the scores, 1 / sqrt(head_dim)."""
    window: int | None = None
    """A query at position p sees keys in (p - window, p]."""
    soft_cap: float = 0.0
    """Scores become cap * tanh(score / cap); 0: they do not."""
    processors: int = 1
    """Streaming multiprocessors of the device."""
    capability: int = 90
    """Compute capability of the device, 90 for 9.0: tiles differ."""
    splits: int | None = None
    """Fixed by a captured step, whose grid cannot change; None: chosen from the batch."""


def paged_batch(
    query_start: Tensor,
    context_len: Tensor,
    block_tables: Tensor,
    new_tokens: Sequence[int],
    contexts: Sequence[int],
    *,
    block_tokens: int,
    scale: float,
    window: int | None = None,
    soft_cap: float = 0.0,
    processors: int = 1,
    capability: int = 90,
) -> PagedBatch:
    """The batch of device tensors whose lengths the host knows as `new_tokens` and `contexts` [S]; reads no device memory."""
    decodes = [(new, context) for new, context in zip(new_tokens, contexts, strict=True) if 0 < new <= VERIFY_QUERIES]
    return PagedBatch(
        query_start,
        context_len,
        block_tables,
        tokens=sum(new_tokens),
        decode_query=max((new for new, _ in decodes), default=0),
        prefills=any(new > VERIFY_QUERIES for new in new_tokens),
        max_context=max((context for _, context in decodes), default=0),
        block_tokens=block_tokens,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        processors=processors,
        capability=capability,
    )


def choose_splits(sequences: int, kv_heads: int, max_context: int, processors: int) -> int:
    """Programs per (sequence, KV head) in decode: enough for two per processor, each with SPLIT_KEYS keys or more."""
    programs = max(1, sequences * kv_heads)
    wanted = -(-2 * processors // programs)
    return max(1, min(wanted, max_context // SPLIT_KEYS, MAX_SPLITS))
