"""A request, its choices, and the sequences that are their residencies on workers.

Phases of a choice: WAITING > RUNNING > (WAITING after a preemption or a worker loss) > DONE.
A sequence lives from Admit to `released` (or its worker's loss); its seq is never used again.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from octavo.keys import block_key

from octavo_scheduler.beams.search import BeamSearch, Hypothesis
from octavo_scheduler.books.path import Path
from octavo_scheduler.policies.account import Account
from octavo_scheduler.preloads.rule import NO_RULE, CacheRule

QueueKey = tuple[int, ...]
"""Where a request stands in its line: the smallest comes first."""

KEY_BYTES = 32
NO_PARENT = bytes(KEY_BYTES)
"""Stands for the parent of a chain's head where keys travel packed."""


class Phase(IntEnum):
    WAITING = 0
    RUNNING = 1
    DONE = 2


_WAITING = Phase.WAITING  # a member of an enum is looked up by a metaclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """The one terminal outcome of a request."""

    outcome: str  # finished, rejected, cancelled, deadline, failed, already_exists, not_found
    reason: str = ""
    message: str = ""
    retry_after_us: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """A request's predicted times (limits/forecast.py). Microseconds: in the queue, from there to the first token, from there to the end. `raw_*`: before correction."""

    wait_us: float
    start_us: float
    decode_us: float
    raw_wait_us: float
    raw_start_us: float
    gpu_us: float  # worker time of the request
    alone_us: float  # its prefill on an idle worker

    @property
    def ttft_us(self) -> float:
        """From submit to first token."""
        return self.wait_us + self.start_us

    @property
    def total_us(self) -> float:
        """From submit to end."""
        return self.ttft_us + self.decode_us

    @property
    def service_us(self) -> float:
        """Without the queue."""
        return self.start_us + self.decode_us


@dataclass(slots=True)
class Cost:
    """What a request has taken so far, and what it was spared; see costing.py."""

    prefill_us: float = 0.0
    decode_us: float = 0.0
    recompute_us: float = 0.0
    pool_byte_s: float = 0.0
    dram_byte_s: float = 0.0
    nvme_byte_s: float = 0.0
    saved_prefix_tokens: int = 0
    saved_tier_tokens: int = 0
    saved_sibling_tokens: int = 0

    @property
    def device_us(self) -> float:
        """Device time over all phases."""
        return self.prefill_us + self.decode_us + self.recompute_us

    def figures(self) -> dict[str, int]:
        """Under the names that messages, spans and metrics share, rounded."""
        return {
            "prefill_device_us": round(self.prefill_us),
            "decode_device_us": round(self.decode_us),
            "recompute_device_us": round(self.recompute_us),
            "kv_pool_byte_s": round(self.pool_byte_s),
            "kv_dram_byte_s": round(self.dram_byte_s),
            "kv_nvme_byte_s": round(self.nvme_byte_s),
            "saved_prefix_tokens": self.saved_prefix_tokens,
            "saved_tier_tokens": self.saved_tier_tokens,
            "saved_sibling_tokens": self.saved_sibling_tokens,
        }


class _EachToken:
    """What each token of a sequence touches lies together: a base's slots come first, and each class's by their names."""

    __slots__ = ("accounts", "blocks", "calm_until", "computed_len", "cost", "deliveries", "length", "max_positions",
                 "output", "owed_at", "stopping")  # fmt: skip


@dataclass(slots=True, eq=False)
class Sequence(_EachToken):
    """One residency of a choice on a worker. Lengths in tokens; `blocks` is its block table."""

    seq: int
    slot: int
    rank: int
    epoch: int
    choice: Choice
    blocks: list[int]
    length: int  # prompt + output known to core and worker
    computed_len: int
    cached_len: int
    max_positions: int  # KV positions it can ever need
    admitted_us: int
    order_number: int = 0  # of its Admit among the worker's orders
    behind: int = 0  # tokens to prefill before it can decode, as counted in its worker's backlog
    walked: int = 0  # leading blocks that were offered to the index
    stopping: str = ""  # a Stop was sent, or the worker finished it
    wait_xfer: int = 0
    group: tuple[Sequence, ...] = ()  # unsplit n > 1 group, leader first
    pending_keys: list[bytes] = field(default_factory=list)  # prompt keys it is computing, for others to wait on
    first_token_us: int = -1  # of this residency
    itl_target_us: int = 0  # of its class; 0: none
    worker_wait_us: int = 0
    accrued_us: int = 0  # its KV is booked up to then
    unpaid_blocks: int = 0  # leading blocks that another choice of the request pays for
    swap: bool = False  # its full blocks go to the kvstore
    swapped_blocks: int = 0  # leading ones that do already, or are there
    handoff: Handoff | None = None  # it prefills for another worker
    promised_blocks: int = 0  # what its preemption was chosen to give back, at least
    outgrew: bool = False  # its output has passed the prediction, and the history knows
    turn: int = 0  # its Admit's rank: the order of prefills
    forecast_start_us: float = 0.0  # predicted from the admission to the first token; 0: not predicted
    join_base: int = 0  # computed up to here while a load brings what follows; 0: none, or it has joined
    join_tokens: int = 0  # that the load brings, or has brought, behind join_base and that computed_len lacks
    load: LoadRecord | None = None
    sources: list[int] = field(
        default_factory=list
    )  # blocks of other chains that its blend copies from, held to its end
    tried: list[Tried] = field(default_factory=list)
    cut: Cut | None = None
    split_len: int = 0  # of a beam that goes on where it was: positions that its group's leader computes for it
    calm_until: int = (
        0  # it decodes, and up to here nothing of it need be looked at (reports.py); below computed_len: not so
    )
    owed_at: object = None  # Fleet.owing() as of when its deliveries were last found dirty
    # of its choice and request, for who goes over many sequences: each object on the way there is a miss of the CPU's cache
    output: array[int] = field(init=False, repr=False)
    deliveries: list[Delivery] = field(init=False, repr=False)
    cost: Cost = field(init=False, repr=False)
    accounts: tuple[Account, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        request = self.choice.request
        self.output, self.deliveries = self.choice.output, request.deliveries
        self.cost, self.accounts = request.cost, request.accounts

    @property
    def leads(self) -> bool:
        """It computes its prompt itself: it is in no group, or the first of it that was not stopped."""
        return not self.group or next((item for item in self.group if not item.stopping), self) is self

    @property
    def together(self) -> tuple[Sequence, ...]:
        """Who is given up with it: a group that is not split has one prefill, and beams go on together or not at all."""
        request = self.choice.request
        if request.beams is not None:
            return tuple(choice.sequence for choice in request.choices if choice.sequence is not None)
        return self.group or (self,)

    def ungranted(self, block_tokens: int) -> int:
        """Blocks between what it holds and its last position."""
        return -(-self.max_positions // block_tokens) - len(self.blocks)

    def __repr__(self) -> str:
        return f"seq {self.seq} slot {self.slot} len {self.length} computed {self.computed_len} blocks {self.blocks} {self.stopping}"


@dataclass(slots=True, eq=False)
class Choice:
    request: Request
    index: int
    seed: int
    output: array[int]
    phase: Phase = Phase.WAITING
    sequence: Sequence | None = None
    finish_reason: str = ""
    stop_token: int = 0
    residencies: int = 0
    preemptions: int = 0
    output_keys: list[bytes] = field(default_factory=list)  # keys of full blocks past the prompt's
    logprobs: list[bytes] | None = None
    hypothesis: Hypothesis | None = None  # of a beam search that has ended

    @property
    def length(self) -> int:
        """Prompt + output tokens."""
        return len(self.request.prompt) + len(self.output)

    def end(self) -> None:
        """It is done: no further token is its own."""
        self.phase = Phase.DONE
        if self.sequence is not None:
            self.sequence.calm_until = 0

    def tokens(self) -> array[int]:
        """Prompt + output."""
        return self.request.prompt + self.output

    def key(self, index: int, block_tokens: int) -> bytes | None:
        """Key of this choice's full block `index`, computed on first need; None when it has none (cache off, no root)."""
        if not self.request.cacheable(block_tokens):
            return None
        prompt_keys = self.request.prompt_keys
        if index < len(prompt_keys):
            return prompt_keys[index]
        if self.request.beams is not None:
            return None  # which of its beams a block will have belonged to is known at the end
        while len(prompt_keys) + len(self.output_keys) <= index:
            at = len(prompt_keys) + len(self.output_keys)
            chain = self.output_keys or prompt_keys
            parent = chain[-1] if chain else self.request.namespace_root
            self.output_keys.append(block_key(parent, self._slice(at * block_tokens, (at + 1) * block_tokens)))
        return self.output_keys[index - len(prompt_keys)]

    def link(self, index: int, block_tokens: int) -> tuple[bytes, bytes] | None:
        """Keys of full block `index` and of the one before it when it is the next without a key; None: ask `keys`."""
        request, said = self.request, self.output_keys
        of_prompt = request.prompt_keys
        chain = said or of_prompt
        if (
            request.beams is not None
            or len(of_prompt) + len(said) != index
            or not chain
            or len(of_prompt) != len(request.prompt) // block_tokens
        ):
            return None
        parent = chain[-1]
        key = block_key(parent, self._slice(index * block_tokens, (index + 1) * block_tokens))
        said.append(key)
        return parent, key

    def keys(self, start: int, end: int, block_tokens: int) -> list[bytes]:
        """Keys of full blocks [start, end), which must be wholly there; none when the choice has no keys."""
        if self.request.beams is not None:
            end = min(end, len(self.request.prompt_keys))
        if end <= start or self.key(end - 1, block_tokens) is None:
            return []
        prompt_keys, first = self.request.prompt_keys, len(self.request.prompt_keys)
        if end <= first:
            return prompt_keys[start:end]
        return prompt_keys[start:] + self.output_keys[max(0, start - first) : end - first]

    def _slice(self, start: int, end: int) -> array[int]:
        prompt = self.request.prompt
        if start >= len(prompt):
            return self.output[start - len(prompt) : end - len(prompt)]
        return prompt[start:end] + self.output[: max(0, end - len(prompt))]


@dataclass(slots=True, eq=False)
class LoadRecord:
    """A load that an admission ordered: what was predicted, and, once it has ended, what came of it."""

    path: Path
    started_us: int
    blocks: int
    keys: list[bytes]
    ended_us: int = -1
    ok_blocks: int = 0
    bytes: int = 0
    tier: str = ""
    lookup_us: int = 0
    queue_us: int = 0
    transfer_us: int = 0
    deserialize_us: int = 0


class Tried(NamedTuple):
    """An admission in which a technique had something to give: for the counterfactual."""

    technique: str
    used: bool
    without_us: float  # predicted from the admission to the first token without it
    said_us: float  # that it was said to save of that


@dataclass(frozen=True, slots=True)
class Cut:
    """A prompt that does not fit into one step beside decodes: what the way that was not taken was predicted to cost."""

    whole: bool  # it is not cut
    whole_us: float  # from the admission to the first token without cutting
    stall_us: float  # what decodes would then stand still for in gaps that miss their target, over all
    stalled_from_us: float  # what the worker's decodes had stood for by its admission


@dataclass(slots=True, eq=False)
class Handoff:
    """A prefill on one worker for a decode on another, from the admission there to the first token here."""

    source_epoch: int
    source_id: str
    target_epoch: int
    target_id: str
    started_us: int
    total_blocks: int  # full blocks of what is prefilled
    block_bytes: int
    exported: int = 0  # leading full blocks that the kvstore has, or that are on their way
    preloaded: int = 0  # leading full blocks that the target has, or that are on their way
    exports: int = 0  # copies under way from the source
    preloads: int = 0  # ... and to the target
    moved_blocks: int = 0
    early_blocks: int = 0  # of these: gone before the first token was there
    computed_len: int = 0  # what the source had computed at its end
    prefilled_us: int = -1  # the source's release
    until_us: int = 0  # the decode waits for copies until then
    credit_waits: int = 0


@dataclass(slots=True)
class CancelState:
    """A cancel that waits for the request's last hold to end."""

    reason: str
    started_us: int
    waiters: list[tuple[int, str]]  # (gateway connection, request id as that gateway knows it)


@dataclass(slots=True, eq=False)
class Request:
    request_id: str
    tenant: str
    prompt: array[int]
    prompt_keys: list[bytes]
    sampling: bytes
    logprobs: int
    max_tokens: int
    arrival_us: int
    submitted_us: int
    priority: int = 0
    slo_class: str = ""
    deadline_us: int = 0
    traceparent: str = ""
    idempotency_key: str = ""
    body_hash: bytes = b""
    gateway_state: bytes = b""
    namespace_root: bytes = b""  # parent of the first block's key; empty: only prompts of a full block are cached
    resubmitted: bool = False
    choices: list[Choice] = field(default_factory=list)
    outcome: Outcome | None = None
    holds: int = 0  # sequences and transfers that still hold blocks
    copies: dict[int, int] = field(default_factory=dict)  # its transfers: xfer_id -> epoch of the worker
    queued: bool = False
    queue_number: int = 0
    queue_key: QueueKey = ()
    accounts: tuple[Account, ...] = ()  # whom its service is charged to, under fair policies
    latest_start_us: int = 0  # that meets its class's target, as of when it began to wait, under slo policies
    lost: bool = False  # waits, and can no longer meet its class's targets
    passing: bool = False  # it started before one that waits for other workers
    deliveries: list[Delivery] = field(default_factory=list)
    orphaned_us: int = -1
    cancel: CancelState | None = None
    blocks_freed: int = 0
    last_step: int = 0
    join_until_us: int = -1  # waits for another's prefill until then; 0: waited long enough
    sized_for: int = -1  # fleet version for which it was found to fit some worker
    beams: BeamSearch | None = None  # its choices are beams
    foreseen: tuple[int, int, float] = (-1, 0, 0.0)  # history version, and the output predicted and expected as of it
    room_until_us: int = -1  # waits for room beside its prefix until then
    # what travels in RequestTimes
    attempts: int = 1
    preemptions: int = 0
    losses: int = 0
    cached_tokens: int = -1
    admitted_us: int = -1
    first_token_us: int = -1
    ended_us: int = -1
    seated_us: int = -1  # the admission that gave the first token, so far
    kv_load_us: int = 0
    worker_wait_us: int = 0
    prefill_us: int = 0
    sample_us: int = 0
    dispatch_us: int = 0
    report_us: int = 0
    cached_by_tier: dict[str, int] = field(
        default_factory=dict
    )  # where cached_tokens came from: hbm, dram, nvme, queue
    predicted_tokens: int = 0  # output per choice, as predicted at the first admission
    work_done: bool = False
    waiting_since_us: int = 0
    cost: Cost = field(default_factory=Cost)
    told_device_us: float = -1.0  # device time in the cost that was told with its end; -1: nobody was told
    registered: bool = False  # the registry still names it
    pause: tuple[str, int] | None = None  # tool and expected microseconds (0: not said) of the pause after it
    resumes: tuple[str, str] | None = None  # until its admission: the turn that it continues
    handoff: Handoff | None = None
    failed_handoffs: int = 0
    swapped: bool = False  # some of it went to the kvstore when it was preempted
    # the door's terms (limits/door.py)
    pool: str = ""  # label of the workers that it may run on; empty: any
    degraded: str = ""  # what overload made of it, for the client
    claimed_kv_tokens: int = 0
    claimed_gpu_us: float = 0.0
    charged_tokens: int = -1  # of its tenant's budget; -1: nothing is open
    forecast: Forecast | None = None
    sampled: tuple[str, ...] = ()  # techniques whose trial it is in (books/trial.py)
    join_since_us: int = -1  # when it began to wait for another's prefill of its prefix
    join_matched: int = 0  # blocks of it that were there then
    cache: CacheRule = NO_RULE
    namespace_tag: bytes = b""  # of its blocks in the stores
    blended: bool = False  # its chunks may be reused at other positions; it has no keys then
    chunks_until_us: int = -1  # until when it waits for chunks that are loaded for it; -1: not looked at yet
    blended_tokens: int = 0  # that were, at most, over its residencies

    @property
    def name(self) -> tuple[str, str]:
        """Tenant and request id."""
        return self.tenant, self.request_id

    @property
    def live(self) -> bool:
        """No outcome was decided yet."""
        return self.outcome is None

    @property
    def max_len(self) -> int:
        """Prompt + output tokens at most."""
        return len(self.prompt) + self.max_tokens

    def cacheable(self, block_tokens: int) -> bool:
        """Whether its blocks have keys: one per full prompt block, or a root to chain the first from."""
        full = len(self.prompt) // block_tokens
        return len(self.prompt_keys) == full and bool(full or len(self.namespace_root) == KEY_BYTES)

    def waiting_choices(self) -> list[Choice]:
        """Choices that want a residency. Beams do once all of them can."""
        choices = self.choices
        if self.beams is not None and any([choice.phase is not _WAITING for choice in choices]):
            return []
        if len(choices) == 1:
            return choices[:] if choices[0].phase is _WAITING else []
        return [choice for choice in self.choices if choice.phase is Phase.WAITING]

    def told_choices(self) -> list[Choice]:
        """Choices whose tokens are told: of a beam search none before it has ended, then the best."""
        if self.beams is None:
            return self.choices
        finished = self.outcome is not None and self.outcome.outcome == "finished"
        return self.choices[: self.beams.rule.shown] if finished else []

    def size_bytes(self) -> int:
        """About what it costs to keep for replay."""
        outputs = sum(4 * len(choice.output) + sum(map(len, choice.logprobs or ())) for choice in self.choices)
        told = [choice.hypothesis.told for choice in self.choices if choice.hypothesis is not None]
        outputs += sum(96 + 24 * len(score.top_tokens) for path in told for score in path)
        return 512 + 4 * len(self.prompt) + outputs + 64 * len(self.prompt_keys) + len(self.gateway_state)

    def retire_if_done(self) -> None:
        """Breaks the reference cycles once nobody needs the request, so that no garbage collection is needed."""
        if self.outcome is None or self.holds or self.deliveries or self.registered:
            return
        for choice in self.choices:
            choice.sequence = None
        self.choices = []


@dataclass(slots=True, eq=False)
class Delivery:
    """What one gateway connection has been sent of a request: cursors, never a queue of messages."""

    gateway: int
    label: str  # the request id under which that gateway knows it
    request: Request | None
    attached: bool = False
    accepted_sent: bool = False
    sent: list[int] = field(default_factory=list)  # output tokens sent, per choice
    finish_sent: list[bool] = field(default_factory=list)
    finished_sent: bool = False
    own_outcome: Outcome | None = None  # ends this delivery alone (already_exists, not_found, detached)
    plain: array[int] | None = (
        None  # its only choice's output, while nothing but tokens behind the first can be owed of it
    )
    handle: int = 0  # by which its stream's runs name it, as of when it was found plain
