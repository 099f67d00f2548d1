"""Sequence: one residency of a choice on this worker. Lengths in tokens; `tokens` = prompt, then output."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from octavo_gpuworker.orders import AdmitOrder, Sampling, SiblingOrder

PENDING: Final = -1
"""Stands for a token that a launched step draws and the host has not read."""
LOW_WATER: Final = 2
"""Positions left in a table at which the scheduler must hear of it: one step reported late, one launched."""


@dataclass(slots=True)
class Sequence:
    seq: int
    slot: int
    tokens: list[int]
    prompt_len: int
    computed: int
    blocks: list[int]
    sampling: Sampling
    seed: int
    max_len: int
    rank: int
    resumed_len: int
    """Tokens known at admission; what comes after is this residency's own output."""
    stop_after: int = 0
    paused: bool = False
    wait_xfer: int = 0
    wait_base: int = 0
    """Where the load begins: it is computed up to there meanwhile."""
    joins_len: int = 0
    """A load has ended that brought what lies between wait_base and here, while wait_base was not reached yet."""
    blending: bool = False
    """Its first positions are being put together from chunks."""
    leader: int = 0
    """Another choice of the same prompt prefills for this one; it begins at the end of that prefill."""
    siblings: list[Sequence] = field(default_factory=list)
    """Those that wait for this one's prefill."""
    traceparent: str = ""
    request_id: str = ""
    dispatch_us: int = 0
    admitted_ns: int = 0
    taken_ns: int = field(default_factory=time.monotonic_ns)
    """When it came to be, by the clock that nobody sets; the others are wall clock."""
    loaded_ns: int = 0
    """When the load that it waited for had ended."""
    started_ns: int = 0
    first_token_ns: int = 0
    parked: bool = False
    """A beam that has offered its continuations."""
    split_len: int = 0
    """Its siblings have tokens of their own behind so many common ones; 0: the same, and begin at the end of its prefill."""
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """(wall nanoseconds, tokens) of each prefill chunk, for the span's events."""
    steps: int = 0
    """Steps that gave it a token."""
    counts: TokenCounts | None = None
    """Kept only for sequences with penalties."""

    @property
    def waiting(self) -> bool:
        """It cannot step yet whatever blocks it has: a load that it needs, its blend, or its leader's prefill, has not ended; or it
        is a beam that waits for its token."""
        return (
            self.parked
            or self.leader != 0
            or self.blending
            or (self.wait_xfer != 0 and self.computed >= self.wait_base)
        )

    @property
    def head_len(self) -> int:
        """Positions that it may compute before it has joined with a load; 0: all."""
        return self.wait_base if self.wait_xfer or self.joins_len else 0

    def load_ended(self, loaded_len: int) -> None:
        """Positions from wait_base to `loaded_len` hold what they should: it goes on behind them, once it is there."""
        self.wait_xfer = 0
        if self.computed >= self.wait_base:
            self.computed = min(max(self.computed, loaded_len), len(self.tokens) - 1)
        elif loaded_len > self.wait_base:
            self.joins_len = loaded_len

    def reach(self, computed: int) -> None:
        """Positions up to `computed` are written, and those of a load that joins there."""
        self.computed = computed
        if self.joins_len and computed >= self.wait_base:
            self.computed, self.joins_len = min(max(computed, self.joins_len), len(self.tokens) - 1), 0

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    def finish_reason(self, token: int) -> str:
        """`stop`, `length`, or empty, after `token` was appended."""
        if token in self.sampling.stop_ids and self.output_len > self.sampling.min_tokens:
            return "stop"
        if len(self.tokens) >= self.max_len:
            return "length"
        if self.stop_after and len(self.tokens) - self.resumed_len >= self.stop_after:
            return "length"
        return ""

    def runs_low(self, block_tokens: int) -> bool:
        """Its table is nearly full."""
        return len(self.blocks) * block_tokens - self.computed <= LOW_WATER

    def calm_steps(self, block_tokens: int) -> int:
        """So many more decode steps neither reach its length nor let its table run low."""
        known = len(self.tokens)
        to_length = self.max_len - known
        if self.stop_after:
            to_length = min(to_length, self.stop_after - (known - self.resumed_len))
        to_low = len(self.blocks) * block_tokens - self.computed - LOW_WATER
        return max(0, min(to_length, to_low) - 1)

    def token_counts(self) -> TokenCounts:
        """How often each token occurs, brought up to date; replayed from `tokens`, so a resumed sequence has the same."""
        if self.counts is None:
            self.counts = TokenCounts()
        self.counts.update(self.tokens, self.prompt_len)
        return self.counts

    def biases(self) -> dict[int, float]:
        """What is added to single logits: the biases by token, and -inf for ends that would come too early."""
        found: dict[int, float] = {}
        for token, value in self.sampling.bias:
            found[token] = found.get(token, 0.0) + value
        if self.output_len < self.sampling.min_tokens:
            found |= dict.fromkeys(self.sampling.stop_ids, float("-inf"))
        return found

    def sibling(self, order: SiblingOrder) -> Sequence:
        """Another choice of the same prompt, with seed, slot and blocks of its own; it waits for this one's prefill."""
        return Sequence(
            seq=order.seq,
            slot=order.slot,
            tokens=list(order.tokens or self.tokens),
            prompt_len=self.prompt_len,
            computed=0,
            blocks=list(order.blocks),
            sampling=self.sampling,
            seed=order.seed,
            max_len=self.max_len,
            rank=self.rank,
            resumed_len=self.resumed_len,
            stop_after=self.stop_after,
            leader=self.seq,
            traceparent=self.traceparent,
            request_id=self.request_id,
            dispatch_us=self.dispatch_us,
            admitted_ns=self.admitted_ns,
        )

    @property
    def drawing(self) -> list[Sequence]:
        """Whose rows the end of its prefill gives: its own, and those of siblings with the same tokens."""
        return [self] if self.split_len else [self, *self.siblings]

    def shared_blocks(self, other: Sequence) -> int:
        """Leading blocks that both tables have in common."""
        pairs = zip(self.blocks, other.blocks, strict=False)
        return next(
            (i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(self.blocks), len(other.blocks))
        )


@dataclass(slots=True)
class TokenCounts:
    """Occurrences per token id of a growing token list: of the output alone, and whether seen at all (prompt included)."""

    output: dict[int, int] = field(default_factory=dict)
    seen: dict[int, None] = field(default_factory=dict)
    upto: int = 0

    def update(self, tokens: list[int], prompt_len: int) -> None:
        """Counts what was appended since the last call."""
        for token in tokens[max(self.upto, prompt_len) :]:
            self.output[token] = self.output.get(token, 0) + 1
        self.seen.update(dict.fromkeys(tokens[self.upto :]))
        self.upto = len(tokens)


def from_admit(order: AdmitOrder, now_ns: int) -> Sequence:
    """The sequence that an Admit starts, its siblings with it."""
    leader = Sequence(
        seq=order.seq,
        slot=order.slot,
        tokens=list(order.tokens),
        prompt_len=order.prompt_len,
        computed=order.cached_len,
        blocks=list(order.blocks),
        sampling=order.sampling,
        seed=order.seed,
        max_len=order.max_len,
        rank=order.rank,
        resumed_len=len(order.tokens),
        stop_after=order.stop_after,
        wait_xfer=order.wait_xfer,
        wait_base=order.wait_base,
        traceparent=order.traceparent,
        request_id=order.request_id,
        dispatch_us=order.dispatch_us,
        admitted_ns=order.received_ns or now_ns,
    )
    leader.split_len = order.split_len if order.siblings else 0
    leader.siblings = [leader.sibling(sibling) for sibling in order.siblings]
    return leader
