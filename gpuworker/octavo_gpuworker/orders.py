"""The nouns between the scheduler's stream and the engine: orders down, reports up. Plain objects; `wire.py` converts them.

The rules they obey stand beside the messages in protos/octavo/v1/worker.proto.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw a sequence's tokens, and which of them end it."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    logprobs: int = -1
    """-1: none; k: the chosen token and the k best."""
    beam: bool = False
    """It takes no token by itself: the `logprobs` best go up, and it waits for a Fork."""

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def alters_logits(self) -> bool:
        """Whether a row needs more than its raw logits; most do not."""
        return self.has_penalties or bool(self.bias) or self.min_tokens > 0


@dataclass(frozen=True, slots=True)
class SiblingOrder:
    seq: int
    slot: int
    seed: int
    blocks: list[int]
    tokens: list[int] = field(default_factory=list)
    """All of it, where it is a beam that goes on (AdmitOrder.split_len); empty: those of the Admit."""


@dataclass(frozen=True, slots=True)
class BlendPart:
    """Positions [start, start + count) take the KV of positions first, first + 1, ... of the table `blocks`, which is another's."""

    start: int
    count: int
    first: int
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class AdmitOrder:
    seq: int
    slot: int
    tokens: list[int]
    prompt_len: int
    cached_len: int
    blocks: list[int]
    sampling: Sampling
    seed: int
    max_len: int
    rank: int = 0
    wait_xfer: int = 0
    wait_base: int = 0
    stop_after: int = 0
    siblings: tuple[SiblingOrder, ...] = ()
    traceparent: str = ""
    request_id: str = ""
    dispatch_us: int = 0
    """How long the order waited in the scheduler; goes back with the first token."""
    received_ns: int = field(default=0, compare=False)
    """Wall clock when it came in; 0: unknown, the boundary at which it applies counts. A wait for a running step is the worker's."""
    blend_parts: tuple[BlendPart, ...] = ()
    """What positions below cached_len are put together from before the sequence steps; none: they are there."""
    blend_share: float = 0.0
    """Of the reused tokens, computed again."""
    split_len: int = 0
    """Siblings bring tokens of their own behind so many common ones, and begin when these are computed; 0: they have the same."""


@dataclass(frozen=True, slots=True)
class GrantOrder:
    seq: int
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class ForkOrder:
    """Beams take their next tokens; `parents`: places in `seqs` of the beams that they go on from, mostly their own."""

    seqs: list[int]
    parents: list[int]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class UpdateOrder:
    seq: int
    rank: int
    paused: bool


@dataclass(frozen=True, slots=True)
class StopOrder:
    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class OffloadOrder:
    xfer_id: int
    blocks: list[int]
    keys: list[bytes]
    parents: list[bytes] = field(default_factory=list)
    """One per block, zeros for the head of a chain; or none at all."""
    namespaces: list[bytes] = field(default_factory=list)
    """One 16-byte tag per block, or none at all; as the four below."""
    ttl_us: list[int] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    recompute_us: list[int] = field(default_factory=list)
    tiers: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoadSource:
    """keys[first : first + count] of a load may be fetched from another host's kvstore."""

    store_id: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class LoadOrder:
    xfer_id: int
    keys: list[bytes]
    blocks: list[int]
    limit_us: int
    sources: tuple[LoadSource, ...] = ()


@dataclass(frozen=True, slots=True)
class AbortOrder:
    """Nobody waits for this transfer any more."""

    xfer_id: int


@dataclass(frozen=True, slots=True)
class LabelOrder:
    blocks: list[int]
    keys: list[bytes]
    parents: list[bytes]  # zeros: the head of a chain


@dataclass(frozen=True, slots=True)
class PolicyOrder:
    budget_with_decodes: int
    budget_alone: int
    max_seqs: int


@dataclass(frozen=True, slots=True)
class LeaveOrder:
    """The process ends with the stream; the link sees to it."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """An order of a kind that this worker has no use for: it changes nothing and counts as applied."""

    kind: str


Order = (
    AdmitOrder
    | GrantOrder
    | ForkOrder
    | UpdateOrder
    | StopOrder
    | OffloadOrder
    | LoadOrder
    | AbortOrder
    | LabelOrder
    | PolicyOrder
    | LeaveOrder
    | PassedOver
)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    token: int
    logprob: float
    top_tokens: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class BeamRow:
    """The best continuations of a beam of `length` tokens, best first, with the log-probabilities of the raw logits."""

    seq: int
    length: int
    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class SeqFinish:
    slot: int
    seq: int
    reason: str
    stop_token: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    seq: int
    length: int
    computed_len: int


@dataclass(frozen=True, slots=True)
class TransferDone:
    """A transfer's copy has ended or is fenced; `ok_blocks` is the leading run that is whole."""

    xfer_id: int
    ok_blocks: int
    bytes: int = 0
    lookup_us: int = 0
    transfer_us: int = 0
    """From the lookup's end to the last block, what is counted below left out."""
    tier: str = ""
    """Where a load's last whole block came from."""
    queue_us: int = 0
    """From its order to the lookup's start."""
    deserialize_us: int = 0
    """Of checksums and the write into the pool."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    seq: int
    wait_us: int
    prefill_us: int
    chunks: int
    load_us: int = 0
    """The part of wait_us in which a load that it waits for was under way."""
    sample_us: int = 0
    """The part of prefill_us in which the last step sampled; 0 where one call computes and samples."""
    dispatch_us: int = 0
    sampled_ns: int = 0
    """Wall clock when prefill_us ended."""


@dataclass(slots=True)
class Report:
    """What happened since the last report; slot-major arrays over the slots that advanced."""

    step: int = 0
    """Number of the last step done."""
    steps: int = 0
    """How many it covers; 0: no step was possible."""
    slots: list[int] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    computed_len: list[int] = field(default_factory=list)
    logprobs: list[list[TokenLogprobs]] = field(default_factory=list)
    finishes: list[SeqFinish] = field(default_factory=list)
    beam_rows: list[BeamRow] = field(default_factory=list)
    released: list[Released] = field(default_factory=list)
    transfers_done: list[TransferDone] = field(default_factory=list)
    starved: list[int] = field(default_factory=list)
    first_tokens: list[FirstToken] = field(default_factory=list)
    wall_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    prefill_tokens: int = 0
    """Over all its steps."""
    decode_seqs: int = 0
    """Of each of its steps: they are of equal composition."""
    live_seqs: list[int] | None = None
    live_transfers: list[int] | None = None
    failed_allocations: int = 0
    """Steps that did not run for lack of memory."""
    backed_blocks: int = 0
    """With the live lists: blocks of the pool, from the first on, that may be used while memory is short; 0: all."""
    orders_applied: int = 0
