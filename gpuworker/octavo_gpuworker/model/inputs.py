"""StepInputs: what one forward pass computes. Every tensor on the decoder's device; no padding anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class StepInputs:
    """One mixed batch of S sequences with T new tokens in all, sequence after sequence."""

    token_ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64."""
    slot_mapping: Tensor
    """[T] int64: block_id * block_tokens + offset where each new token's KV goes; a slot of block 0 for "no block"."""
    query_start: Tensor
    """[S + 1] int32: cumulative count of new tokens."""
    context_len: Tensor
    """[S] int32: KV length after this step, earlier tokens included."""
    block_tables: Tensor
    """[S, max_blocks] int32: a row covers positions [0, context_len); what lies beyond is not read."""
    sample_rows: Tensor
    """[R] int64: rows of token_ids whose logits are wanted."""
    new_tokens: Sequence[int] | None = None
    """[S] the host's copy of query_start's differences; without it a GPU step waits to read them back."""
    contexts: Sequence[int] | None = None
    """[S] the host's copy of context_len."""
    pending: Tensor | None = None
    """[T] int64: the row of `drawn` whose token belongs here, or -1 where token_ids holds it. None: token_ids holds all."""
    drawn: Tensor | None = None
    """[R] int64 on the device: what the step before drew, read by nobody yet; negative where its logits were not finite."""

    def place_drawn(self) -> None:
        """Puts drawn tokens into token_ids, in place and without a wait; what could not be drawn becomes token 0."""
        if self.pending is not None and self.drawn is not None:
            found = self.drawn[self.pending.clamp(min=0)].clamp_(min=0)
            self.token_ids.copy_(torch.where(self.pending >= 0, found, self.token_ids))
