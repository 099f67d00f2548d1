"""Bytes of KV: per token, per block, per rank, and how many sequences a pool holds."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_cli.size.shape import BadSize, ModelShape

KV_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "fp8": 1}
"""Bytes of a cached element; auto: the activations' bfloat16."""
SCALE_BYTES = 4
"""float32 per token and head beside int8 and fp8 elements."""
KEY_BYTES = 32
TABLE_ENTRY_BYTES = 4
RECORD_HEADER_BYTES = 128
"""In front of a block on disk."""


@dataclass(frozen=True, slots=True)
class KvSize:
    """KV of one model under one layout; bytes are of one rank of `tp` unless they say otherwise."""

    token_bytes: int
    """Per token and rank, scales included."""
    whole_token_bytes: int
    """Per token over all ranks; more than a model's own where heads are replicated."""
    block_tokens: int
    tp: int
    rank_heads: int
    replicated: int
    """Ranks that hold the same head."""

    @property
    def block_bytes(self) -> int:
        """One block of one rank."""
        return self.token_bytes * self.block_tokens

    @property
    def metadata_bytes(self) -> int:
        """Beside a block: its key, its entry in a block table, and its record's header on disk."""
        return KEY_BYTES + TABLE_ENTRY_BYTES + RECORD_HEADER_BYTES

    def blocks(self, tokens: int) -> int:
        """Blocks that `tokens` tokens take: the last one is whole."""
        return -(-tokens // self.block_tokens)

    def context_bytes(self, tokens: int) -> int:
        """Of one sequence in one rank's pool, rounded up to blocks."""
        return self.blocks(tokens) * self.block_bytes

    def pool_bytes(self, context: int, concurrency: int) -> int:
        """A rank's pool for `concurrency` sequences of `context` tokens, the null block included."""
        return (self.blocks(context) * concurrency + 1) * self.block_bytes

    def concurrency(self, capacity_bytes: int, context: int, null_block: bool = True) -> int:
        """Sequences of `context` tokens that fit in `capacity_bytes`."""
        usable = capacity_bytes // self.block_bytes - (1 if null_block else 0)
        return max(0, usable // self.blocks(context))

    def tokens(self, capacity_bytes: int, null_block: bool = True) -> int:
        """Tokens that fit in `capacity_bytes`, in whole blocks."""
        return max(0, capacity_bytes // self.block_bytes - (1 if null_block else 0)) * self.block_tokens


def kv_size(shape: ModelShape, kv_dtype: str = "auto", block_tokens: int = 16, tp: int = 1) -> KvSize:
    """The KV of a model. Heads are dealt out over `tp` ranks; with fewer heads than ranks, and under MLA, ranks hold copies.

    Raises BadSize when the heads cannot be dealt out.
    """
    if kv_dtype not in KV_BYTES:
        raise BadSize(f"--kv-dtype: {kv_dtype!r} is unknown; use {', '.join(KV_BYTES)}", field="kv-dtype")
    if tp < 1 or shape.q_heads % tp:
        raise BadSize(f"--tp: {shape.q_heads} query heads cannot be dealt out to {tp} ranks; use a divisor", field="tp")
    heads = shape.cache_heads
    if heads % tp and tp % heads:
        raise BadSize(
            f"--tp: {heads} KV heads cannot be dealt out to {tp} ranks; use a divisor or a multiple", field="tp"
        )
    rank_heads = max(1, heads // tp)
    scale = SCALE_BYTES if kv_dtype in ("int8", "fp8") else 0
    token = shape.layers * shape.halves * rank_heads * (shape.cache_width * KV_BYTES[kv_dtype] + scale)
    return KvSize(token, token * tp, block_tokens, tp, rank_heads, max(1, tp // heads))
