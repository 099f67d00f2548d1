"""What goes into the core and what comes out of it: plain slotted records, no protobuf type, no clock.

Every event carries `now_us`, microseconds on the shell's monotonic clock. Token ids are `array('I')`, block keys
32-byte strings, `sampling` and logprobs opaque bytes that only the wire module reads.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from octavo_scheduler.beams.rule import BeamRow, BeamRule
from octavo_scheduler.preloads.cache_events import (
    CacheEvicted,
    NamespaceRotated,
    PreloadPinned,
    PreloadPut,
    PreloadRemoved,
    PreloadUsed,
)
from octavo_scheduler.preloads.rule import NO_RULE, CacheRule


@dataclass(slots=True)
class ChoiceStart:
    """One choice of a submitted request; `emitted` was already delivered by an earlier attempt."""

    seed: int
    emitted: array[int] = field(default_factory=lambda: array("I"))
    finished: str = ""


@dataclass(slots=True)
class Submitted:
    now_us: int
    gateway: int
    request_id: str
    prompt: array[int]
    max_tokens: int
    choices: list[ChoiceStart]
    attempt: int = 1
    tenant: str = "default"
    prompt_keys: list[bytes] = field(default_factory=list)
    sampling: bytes = b""
    logprobs: int = -1
    remaining_deadline_us: int = 0
    age_us: int = 0
    priority: int = 0
    slo_class: str = ""
    traceparent: str = ""
    idempotency_key: str = ""
    body_hash: bytes = b""
    gateway_state: bytes = b""
    cache_off: bool = False
    namespace_root: bytes = b""
    cache: CacheRule = NO_RULE
    namespace_tag: bytes = b""
    pause_tool: str = ""  # the turn will end in a call of this tool; with it or without: pause_expected_us
    pause_expected_us: int = 0
    resumes: str = ""  # request id of the turn that this one continues after a pause
    beams: BeamRule | None = None  # its choices are beams; of what is told of them `emitted` was


@dataclass(slots=True)
class Cancelled:
    now_us: int
    gateway: int
    request_id: str
    reason: str
    tenant: str = "default"


@dataclass(slots=True)
class ChoiceStopped:
    """The gateway found a stop string: the choice ends at `at_len` output tokens."""

    now_us: int
    gateway: int
    request_id: str
    index: int
    at_len: int


@dataclass(slots=True)
class Paused:
    """A client says that it pauses after a turn, for a tool: that its KV may be wanted again."""

    now_us: int
    gateway: int
    request_id: str
    tool: str
    expected_us: int
    tenant: str = "default"


@dataclass(slots=True)
class AttachRequested:
    now_us: int
    gateway: int
    request_id: str
    idempotency_key: str = ""
    tenant: str = "default"


@dataclass(slots=True)
class GatewayJoined:
    """A gateway's stream opened; `gateway` is unique per connection."""

    now_us: int
    gateway: int
    gateway_id: str


@dataclass(slots=True)
class GatewayLost:
    now_us: int
    gateway: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Step time, microseconds: fixed + prefill_token * tokens + decode_seq * sequences + context_token * context."""

    fixed_us: float = 2000.0
    prefill_token_us: float = 100.0
    decode_seq_us: float = 1000.0
    context_token_us: float = 0.5


@dataclass(slots=True)
class WorkerJoined:
    """The worker's Hello: nothing of an older epoch can run there any more."""

    now_us: int
    epoch: int
    worker_id: str
    num_blocks: int
    block_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_bytes: int = 0
    store_id: str = ""
    root_key: bytes = b""
    model: str = ""
    pid: int = 0
    resident: list[tuple[int, bytes]] = field(default_factory=list)
    resident_parents: list[int] = field(default_factory=list)
    """Place of each one's parent in `resident`, from 1; 0: the head of a chain. Without it nothing is indexed."""
    calibration: Calibration = Calibration()
    role: str = "both"  # prefill, decode, both
    labels: list[str] = field(default_factory=list)
    capabilities: list[str] = field(default_factory=list)  # blending


@dataclass(slots=True)
class WorkerLost:
    now_us: int
    epoch: int
    why: str = ""


@dataclass(slots=True)
class DrainRequested:
    """An operator wants the worker to leave: what runs may end within `deadline_us` from now, the rest goes to others."""

    now_us: int
    worker_id: str
    deadline_us: int


@dataclass(slots=True)
class Finish:
    slot: int
    seq: int
    reason: str
    stop_token: int = 0
    message: str = ""


@dataclass(slots=True)
class Released:
    seq: int
    length: int
    computed_len: int


@dataclass(slots=True)
class TransferDone:
    xfer_id: int
    ok_blocks: int
    bytes: int = 0
    lookup_us: int = 0
    transfer_us: int = 0
    tier: str = ""
    queue_us: int = 0  # from the order to the lookup's start
    deserialize_us: int = 0  # checksums and the write into the pool, not part of transfer_us


@dataclass(slots=True)
class FirstToken:
    seq: int
    wait_us: int
    prefill_us: int
    chunks: int
    load_us: int = 0  # part of wait_us
    sample_us: int = 0  # part of prefill_us
    dispatch_us: int = 0  # before it came to the worker
    report_us: int = 0  # after prefill_us


@dataclass(slots=True)
class Reported:
    """One report: `steps` steps of equal composition. `slots`, `counts`, `computed_len` run in parallel."""

    now_us: int
    epoch: int
    step: int = 0
    steps: int = 0
    slots: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    tokens: array[int] = field(default_factory=lambda: array("I"))
    computed_len: list[int] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)
    released: list[Released] = field(default_factory=list)
    transfers_done: list[TransferDone] = field(default_factory=list)
    starved: list[int] = field(default_factory=list)
    first_tokens: list[FirstToken] = field(default_factory=list)
    wall_us: int = 0
    prefill_tokens: int = 0
    decode_seqs: int = 0
    live_seqs: list[int] | None = None
    live_transfers: list[int] | None = None
    orders_applied: int = 0  # of the epoch, when the live lists were made
    draining: bool = False  # the worker was told to stop: what runs goes on, nothing new may come
    failed_allocations: int = 0
    beam_rows: list[BeamRow] = field(default_factory=list)
    backed_blocks: int = 0  # with the live lists: of the pool, from the first block on, while memory is short; 0: all


@dataclass(slots=True)
class StoreJoined:
    now_us: int
    store_id: str
    connection: int
    reachable: bool = False  # by kvstores of other hosts
    fetches: bool = False  # from them


@dataclass(slots=True)
class StoreChanged:
    """Numbered changes of a kvstore; the first of `changes` has number `first_number`."""

    now_us: int
    store_id: str
    connection: int
    first_number: int
    changes: list[tuple[bytes, bool]]  # key, removed


@dataclass(slots=True)
class StoreInventory:
    """A part of the full list of held keys; changes after `number` follow the last part."""

    now_us: int
    store_id: str
    connection: int
    number: int
    keys: list[bytes]
    last: bool


@dataclass(slots=True)
class StoreCoded:
    """What compression did in a kvstore since it last told."""

    now_us: int
    store_id: str
    blocks: int
    saved_us: float
    cost_us: float
    saved_bytes: int


@dataclass(slots=True)
class StoreLost:
    now_us: int
    store_id: str
    connection: int


@dataclass(slots=True)
class Tick:
    now_us: int


Event = (
    Submitted
    | Cancelled
    | ChoiceStopped
    | Paused
    | AttachRequested
    | GatewayJoined
    | GatewayLost
    | WorkerJoined
    | WorkerLost
    | DrainRequested
    | Reported
    | StoreJoined
    | StoreChanged
    | StoreInventory
    | StoreCoded
    | StoreLost
    | PreloadPut
    | PreloadRemoved
    | PreloadPinned
    | PreloadUsed
    | CacheEvicted
    | NamespaceRotated
    | Tick
)
