from octavo.v1 import kvstore_pb2 as _kvstore_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachWorkerRequest(_message.Message):
    __slots__ = ("epoch", "number", "join", "hello", "report")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    number: int
    join: WorkerJoin
    hello: WorkerHello
    report: Report
    def __init__(self, epoch: _Optional[int] = ..., number: _Optional[int] = ..., join: _Optional[_Union[WorkerJoin, _Mapping]] = ..., hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...

class AttachWorkerResponse(_message.Message):
    __slots__ = ("epoch", "number", "welcome", "orders")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    number: int
    welcome: WorkerWelcome
    orders: Orders
    def __init__(self, epoch: _Optional[int] = ..., number: _Optional[int] = ..., welcome: _Optional[_Union[WorkerWelcome, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ...) -> None: ...

class WorkerJoin(_message.Message):
    __slots__ = ("worker_id", "boot_id")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    boot_id: str
    def __init__(self, worker_id: _Optional[str] = ..., boot_id: _Optional[str] = ...) -> None: ...

class WorkerWelcome(_message.Message):
    __slots__ = ("scheduler_boot_id",)
    SCHEDULER_BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    scheduler_boot_id: str
    def __init__(self, scheduler_boot_id: _Optional[str] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("root_key", "block_tokens", "num_blocks", "max_num_seqs", "max_model_len", "block_bytes", "store_id", "resident_blocks", "resident_keys", "step_group", "model", "pid", "capabilities", "calibration", "vocab_size", "role", "labels", "resident_parents")
    ROOT_KEY_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_KEYS_FIELD_NUMBER: _ClassVar[int]
    STEP_GROUP_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_PARENTS_FIELD_NUMBER: _ClassVar[int]
    root_key: bytes
    block_tokens: int
    num_blocks: int
    max_num_seqs: int
    max_model_len: int
    block_bytes: int
    store_id: str
    resident_blocks: bytes
    resident_keys: bytes
    step_group: StepGroup
    model: str
    pid: int
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    calibration: Calibration
    vocab_size: int
    role: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    resident_parents: bytes
    def __init__(self, root_key: _Optional[bytes] = ..., block_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_model_len: _Optional[int] = ..., block_bytes: _Optional[int] = ..., store_id: _Optional[str] = ..., resident_blocks: _Optional[bytes] = ..., resident_keys: _Optional[bytes] = ..., step_group: _Optional[_Union[StepGroup, _Mapping]] = ..., model: _Optional[str] = ..., pid: _Optional[int] = ..., capabilities: _Optional[_Iterable[str]] = ..., calibration: _Optional[_Union[Calibration, _Mapping]] = ..., vocab_size: _Optional[int] = ..., role: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., resident_parents: _Optional[bytes] = ...) -> None: ...

class StepGroup(_message.Message):
    __slots__ = ("id", "rank", "size")
    ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    id: str
    rank: int
    size: int
    def __init__(self, id: _Optional[str] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Calibration(_message.Message):
    __slots__ = ("fixed_us", "prefill_token_us", "decode_seq_us", "context_token_us")
    FIXED_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_SEQ_US_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    fixed_us: float
    prefill_token_us: float
    decode_seq_us: float
    context_token_us: float
    def __init__(self, fixed_us: _Optional[float] = ..., prefill_token_us: _Optional[float] = ..., decode_seq_us: _Optional[float] = ..., context_token_us: _Optional[float] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("orders",)
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    def __init__(self, orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("admit", "grant", "update", "stop", "offload", "load", "prepare", "step_policy", "label", "leave", "abort", "fork")
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    OFFLOAD_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    STEP_POLICY_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    admit: Admit
    grant: Grant
    update: Update
    stop: Stop
    offload: Offload
    load: Load
    prepare: Prepare
    step_policy: StepPolicy
    label: Label
    leave: Leave
    abort: Abort
    fork: Fork
    def __init__(self, admit: _Optional[_Union[Admit, _Mapping]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., update: _Optional[_Union[Update, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., offload: _Optional[_Union[Offload, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., step_policy: _Optional[_Union[StepPolicy, _Mapping]] = ..., label: _Optional[_Union[Label, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., fork: _Optional[_Union[Fork, _Mapping]] = ...) -> None: ...

class Admit(_message.Message):
    __slots__ = ("seq", "slot", "tokens", "prompt_len", "cached_len", "block_ids", "sampling", "seed", "deadline_us", "resources", "wait_xfer", "wait_base", "stop_after", "siblings", "lane", "rank", "max_len", "traceparent", "request_id", "blend_parts", "blend_share", "dispatch_us", "split_len")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    CACHED_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    WAIT_XFER_FIELD_NUMBER: _ClassVar[int]
    WAIT_BASE_FIELD_NUMBER: _ClassVar[int]
    STOP_AFTER_FIELD_NUMBER: _ClassVar[int]
    SIBLINGS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    MAX_LEN_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BLEND_PARTS_FIELD_NUMBER: _ClassVar[int]
    BLEND_SHARE_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_US_FIELD_NUMBER: _ClassVar[int]
    SPLIT_LEN_FIELD_NUMBER: _ClassVar[int]
    seq: int
    slot: int
    tokens: bytes
    prompt_len: int
    cached_len: int
    block_ids: bytes
    sampling: SamplingParams
    seed: int
    deadline_us: int
    resources: _containers.RepeatedScalarFieldContainer[str]
    wait_xfer: int
    wait_base: int
    stop_after: int
    siblings: _containers.RepeatedCompositeFieldContainer[Sibling]
    lane: int
    rank: int
    max_len: int
    traceparent: str
    request_id: str
    blend_parts: _containers.RepeatedCompositeFieldContainer[BlendPart]
    blend_share: float
    dispatch_us: int
    split_len: int
    def __init__(self, seq: _Optional[int] = ..., slot: _Optional[int] = ..., tokens: _Optional[bytes] = ..., prompt_len: _Optional[int] = ..., cached_len: _Optional[int] = ..., block_ids: _Optional[bytes] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., deadline_us: _Optional[int] = ..., resources: _Optional[_Iterable[str]] = ..., wait_xfer: _Optional[int] = ..., wait_base: _Optional[int] = ..., stop_after: _Optional[int] = ..., siblings: _Optional[_Iterable[_Union[Sibling, _Mapping]]] = ..., lane: _Optional[int] = ..., rank: _Optional[int] = ..., max_len: _Optional[int] = ..., traceparent: _Optional[str] = ..., request_id: _Optional[str] = ..., blend_parts: _Optional[_Iterable[_Union[BlendPart, _Mapping]]] = ..., blend_share: _Optional[float] = ..., dispatch_us: _Optional[int] = ..., split_len: _Optional[int] = ...) -> None: ...

class BlendPart(_message.Message):
    __slots__ = ("start", "count", "first", "block_ids")
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    start: int
    count: int
    first: int
    block_ids: bytes
    def __init__(self, start: _Optional[int] = ..., count: _Optional[int] = ..., first: _Optional[int] = ..., block_ids: _Optional[bytes] = ...) -> None: ...

class Sibling(_message.Message):
    __slots__ = ("seq", "slot", "seed", "block_ids", "tokens")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    slot: int
    seed: int
    block_ids: bytes
    tokens: bytes
    def __init__(self, seq: _Optional[int] = ..., slot: _Optional[int] = ..., seed: _Optional[int] = ..., block_ids: _Optional[bytes] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("seq", "block_ids")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    block_ids: bytes
    def __init__(self, seq: _Optional[int] = ..., block_ids: _Optional[bytes] = ...) -> None: ...

class Fork(_message.Message):
    __slots__ = ("seqs", "parents", "tokens")
    SEQS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    seqs: _containers.RepeatedScalarFieldContainer[int]
    parents: bytes
    tokens: bytes
    def __init__(self, seqs: _Optional[_Iterable[int]] = ..., parents: _Optional[bytes] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("seq", "rank", "paused", "draft_len")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LEN_FIELD_NUMBER: _ClassVar[int]
    seq: int
    rank: int
    paused: bool
    draft_len: int
    def __init__(self, seq: _Optional[int] = ..., rank: _Optional[int] = ..., paused: _Optional[bool] = ..., draft_len: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("seq", "reason")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    seq: int
    reason: str
    def __init__(self, seq: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Offload(_message.Message):
    __slots__ = ("xfer_id", "block_ids", "keys", "parents", "namespaces", "ttl_us", "priorities", "recompute_us", "tiers")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    TTL_US_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    block_ids: bytes
    keys: bytes
    parents: bytes
    namespaces: bytes
    ttl_us: _containers.RepeatedScalarFieldContainer[int]
    priorities: _containers.RepeatedScalarFieldContainer[int]
    recompute_us: _containers.RepeatedScalarFieldContainer[int]
    tiers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, xfer_id: _Optional[int] = ..., block_ids: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., namespaces: _Optional[bytes] = ..., ttl_us: _Optional[_Iterable[int]] = ..., priorities: _Optional[_Iterable[int]] = ..., recompute_us: _Optional[_Iterable[int]] = ..., tiers: _Optional[_Iterable[int]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("xfer_id", "keys", "block_ids", "limit_us", "sources")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_US_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    keys: bytes
    block_ids: bytes
    limit_us: int
    sources: _containers.RepeatedCompositeFieldContainer[_kvstore_pb2.BlockSource]
    def __init__(self, xfer_id: _Optional[int] = ..., keys: _Optional[bytes] = ..., block_ids: _Optional[bytes] = ..., limit_us: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[_kvstore_pb2.BlockSource, _Mapping]]] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("xfer_id",)
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    def __init__(self, xfer_id: _Optional[int] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("resource_id", "kind", "payload")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    kind: str
    payload: bytes
    def __init__(self, resource_id: _Optional[str] = ..., kind: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class StepPolicy(_message.Message):
    __slots__ = ("budget_with_decodes", "budget_alone", "max_seqs", "draft_cap")
    BUDGET_WITH_DECODES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_ALONE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_CAP_FIELD_NUMBER: _ClassVar[int]
    budget_with_decodes: int
    budget_alone: int
    max_seqs: int
    draft_cap: int
    def __init__(self, budget_with_decodes: _Optional[int] = ..., budget_alone: _Optional[int] = ..., max_seqs: _Optional[int] = ..., draft_cap: _Optional[int] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("block_ids", "keys", "parents")
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    block_ids: bytes
    keys: bytes
    parents: bytes
    def __init__(self, block_ids: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., parents: _Optional[bytes] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "bias_ids", "bias_values", "stop_ids", "min_tokens", "logprobs", "beam")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BEAM_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bias_ids: bytes
    bias_values: _containers.RepeatedScalarFieldContainer[float]
    stop_ids: bytes
    min_tokens: int
    logprobs: int
    beam: bool
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., bias_ids: _Optional[bytes] = ..., bias_values: _Optional[_Iterable[float]] = ..., stop_ids: _Optional[bytes] = ..., min_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., beam: _Optional[bool] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("step", "steps", "slots", "counts", "tokens", "computed_len", "finishes", "logprobs", "released", "transfers_done", "prepared", "starved", "times", "first_tokens", "live", "prefill_tokens", "decode_seqs", "trimmed", "draining", "failed_allocations", "beam_rows", "backed_blocks")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_LEN_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_DONE_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    STARVED_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SEQS_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    FAILED_ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    BEAM_ROWS_FIELD_NUMBER: _ClassVar[int]
    BACKED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    step: int
    steps: int
    slots: bytes
    counts: bytes
    tokens: bytes
    computed_len: bytes
    finishes: _containers.RepeatedCompositeFieldContainer[SeqFinish]
    logprobs: _containers.RepeatedCompositeFieldContainer[Logprobs]
    released: _containers.RepeatedCompositeFieldContainer[Released]
    transfers_done: _containers.RepeatedCompositeFieldContainer[TransferDone]
    prepared: _containers.RepeatedCompositeFieldContainer[Prepared]
    starved: bytes
    times: StepTimes
    first_tokens: _containers.RepeatedCompositeFieldContainer[FirstToken]
    live: LiveList
    prefill_tokens: int
    decode_seqs: int
    trimmed: _containers.RepeatedCompositeFieldContainer[Trimmed]
    draining: bool
    failed_allocations: int
    beam_rows: _containers.RepeatedCompositeFieldContainer[BeamRow]
    backed_blocks: int
    def __init__(self, step: _Optional[int] = ..., steps: _Optional[int] = ..., slots: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., computed_len: _Optional[bytes] = ..., finishes: _Optional[_Iterable[_Union[SeqFinish, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[Logprobs, _Mapping]]] = ..., released: _Optional[_Iterable[_Union[Released, _Mapping]]] = ..., transfers_done: _Optional[_Iterable[_Union[TransferDone, _Mapping]]] = ..., prepared: _Optional[_Iterable[_Union[Prepared, _Mapping]]] = ..., starved: _Optional[bytes] = ..., times: _Optional[_Union[StepTimes, _Mapping]] = ..., first_tokens: _Optional[_Iterable[_Union[FirstToken, _Mapping]]] = ..., live: _Optional[_Union[LiveList, _Mapping]] = ..., prefill_tokens: _Optional[int] = ..., decode_seqs: _Optional[int] = ..., trimmed: _Optional[_Iterable[_Union[Trimmed, _Mapping]]] = ..., draining: _Optional[bool] = ..., failed_allocations: _Optional[int] = ..., beam_rows: _Optional[_Iterable[_Union[BeamRow, _Mapping]]] = ..., backed_blocks: _Optional[int] = ...) -> None: ...

class BeamRow(_message.Message):
    __slots__ = ("seq", "len", "tokens", "logprobs")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    len: int
    tokens: bytes
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, seq: _Optional[int] = ..., len: _Optional[int] = ..., tokens: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class SeqFinish(_message.Message):
    __slots__ = ("slot", "seq", "reason", "stop_token", "message")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    slot: int
    seq: int
    reason: str
    stop_token: int
    message: str
    def __init__(self, slot: _Optional[int] = ..., seq: _Optional[int] = ..., reason: _Optional[str] = ..., stop_token: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("token", "logprob", "top_tokens", "top_logprobs")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    top_tokens: bytes
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ..., top_tokens: _Optional[bytes] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ("seq", "len", "computed_len")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LEN_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_LEN_FIELD_NUMBER: _ClassVar[int]
    seq: int
    len: int
    computed_len: int
    def __init__(self, seq: _Optional[int] = ..., len: _Optional[int] = ..., computed_len: _Optional[int] = ...) -> None: ...

class TransferDone(_message.Message):
    __slots__ = ("xfer_id", "ok_blocks", "bytes", "lookup_us", "transfer_us", "tier", "queue_us", "deserialize_us")
    XFER_ID_FIELD_NUMBER: _ClassVar[int]
    OK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_US_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_US_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    DESERIALIZE_US_FIELD_NUMBER: _ClassVar[int]
    xfer_id: int
    ok_blocks: int
    bytes: int
    lookup_us: int
    transfer_us: int
    tier: str
    queue_us: int
    deserialize_us: int
    def __init__(self, xfer_id: _Optional[int] = ..., ok_blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., lookup_us: _Optional[int] = ..., transfer_us: _Optional[int] = ..., tier: _Optional[str] = ..., queue_us: _Optional[int] = ..., deserialize_us: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("resource_id", "ok", "error")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    ok: bool
    error: str
    def __init__(self, resource_id: _Optional[str] = ..., ok: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class StepTimes(_message.Message):
    __slots__ = ("wall_us", "forward_us", "sample_us", "host_us")
    WALL_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    HOST_US_FIELD_NUMBER: _ClassVar[int]
    wall_us: int
    forward_us: int
    sample_us: int
    host_us: int
    def __init__(self, wall_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., host_us: _Optional[int] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("seq", "wait_us", "prefill_us", "chunks", "load_us", "sample_us", "dispatch_us", "report_us")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    LOAD_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_US_FIELD_NUMBER: _ClassVar[int]
    REPORT_US_FIELD_NUMBER: _ClassVar[int]
    seq: int
    wait_us: int
    prefill_us: int
    chunks: int
    load_us: int
    sample_us: int
    dispatch_us: int
    report_us: int
    def __init__(self, seq: _Optional[int] = ..., wait_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., chunks: _Optional[int] = ..., load_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., dispatch_us: _Optional[int] = ..., report_us: _Optional[int] = ...) -> None: ...

class LiveList(_message.Message):
    __slots__ = ("seqs", "transfers", "orders_applied")
    SEQS_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    ORDERS_APPLIED_FIELD_NUMBER: _ClassVar[int]
    seqs: _containers.RepeatedScalarFieldContainer[int]
    transfers: _containers.RepeatedScalarFieldContainer[int]
    orders_applied: int
    def __init__(self, seqs: _Optional[_Iterable[int]] = ..., transfers: _Optional[_Iterable[int]] = ..., orders_applied: _Optional[int] = ...) -> None: ...

class Trimmed(_message.Message):
    __slots__ = ("seq", "first_live_block", "group")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FIRST_LIVE_BLOCK_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    seq: int
    first_live_block: int
    group: int
    def __init__(self, seq: _Optional[int] = ..., first_live_block: _Optional[int] = ..., group: _Optional[int] = ...) -> None: ...
