"""Sequence: one residency of a choice on this worker. Lengths in tokens; `tokens` = prompt, then output."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_gpuworker.orders import AdmitOrder, Sampling, SiblingOrder


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
    siblings: tuple[SiblingOrder, ...] = ()
    traceparent: str = ""
    request_id: str = ""
    admitted_ns: int = 0
    started_ns: int = 0
    first_token_ns: int = 0
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """(wall nanoseconds, tokens) of each prefill chunk, for the span's events."""

    @property
    def waiting(self) -> bool:
        """A load that it needs has not ended."""
        return self.wait_xfer != 0

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    def capacity(self, block_tokens: int) -> int:
        """Positions that the granted blocks cover."""
        return len(self.blocks) * block_tokens

    def finish_reason(self, token: int) -> str:
        """`stop`, `length`, or empty, after `token` was appended."""
        if token in self.sampling.stop_ids and self.output_len > self.sampling.min_tokens:
            return "stop"
        if len(self.tokens) >= self.max_len:
            return "length"
        if self.stop_after and len(self.tokens) - self.resumed_len >= self.stop_after:
            return "length"
        return ""

    def fork(self, sibling: SiblingOrder) -> Sequence:
        """Another choice at the end of this one's prefill: same prompt, own seed, slot and blocks, nothing generated yet."""
        return Sequence(
            seq=sibling.seq,
            slot=sibling.slot,
            tokens=list(self.tokens),
            prompt_len=self.prompt_len,
            computed=self.computed,
            blocks=list(sibling.blocks),
            sampling=self.sampling,
            seed=sibling.seed,
            max_len=self.max_len,
            rank=self.rank,
            resumed_len=self.resumed_len,
            stop_after=self.stop_after,
            traceparent=self.traceparent,
            request_id=self.request_id,
            admitted_ns=self.admitted_ns,
            started_ns=self.started_ns,
        )


def from_admit(order: AdmitOrder, now_ns: int) -> Sequence:
    """The sequence that an Admit starts."""
    return Sequence(
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
        siblings=order.siblings,
        traceparent=order.traceparent,
        request_id=order.request_id,
        admitted_ns=now_ns,
    )
