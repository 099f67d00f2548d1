from octavo.v1 import worker_pb2 as _worker_pb2
from octavo.v1 import kvstore_pb2 as _kvstore_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachGatewayRequest(_message.Message):
    __slots__ = ("hello", "submit", "cancel", "stop_choice", "attach", "heartbeat", "pause", "many")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    STOP_CHOICE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    MANY_FIELD_NUMBER: _ClassVar[int]
    hello: GatewayHello
    submit: Submit
    cancel: CancelOrder
    stop_choice: StopChoice
    attach: AttachOrder
    heartbeat: Heartbeat
    pause: PauseOrder
    many: GatewayOrders
    def __init__(self, hello: _Optional[_Union[GatewayHello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[CancelOrder, _Mapping]] = ..., stop_choice: _Optional[_Union[StopChoice, _Mapping]] = ..., attach: _Optional[_Union[AttachOrder, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., pause: _Optional[_Union[PauseOrder, _Mapping]] = ..., many: _Optional[_Union[GatewayOrders, _Mapping]] = ...) -> None: ...

class GatewayOrders(_message.Message):
    __slots__ = ("orders",)
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    orders: _containers.RepeatedCompositeFieldContainer[AttachGatewayRequest]
    def __init__(self, orders: _Optional[_Iterable[_Union[AttachGatewayRequest, _Mapping]]] = ...) -> None: ...

class AttachGatewayResponse(_message.Message):
    __slots__ = ("welcome", "events", "heartbeat")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    welcome: GatewayWelcome
    events: RequestEvents
    heartbeat: Heartbeat
    def __init__(self, welcome: _Optional[_Union[GatewayWelcome, _Mapping]] = ..., events: _Optional[_Union[RequestEvents, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: CellLoad
    def __init__(self, load: _Optional[_Union[CellLoad, _Mapping]] = ...) -> None: ...

class CellLoad(_message.Message):
    __slots__ = ("requests_waiting", "requests_running", "blocks_total", "blocks_free", "block_tokens")
    REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    requests_waiting: int
    requests_running: int
    blocks_total: int
    blocks_free: int
    block_tokens: int
    def __init__(self, requests_waiting: _Optional[int] = ..., requests_running: _Optional[int] = ..., blocks_total: _Optional[int] = ..., blocks_free: _Optional[int] = ..., block_tokens: _Optional[int] = ...) -> None: ...

class GatewayHello(_message.Message):
    __slots__ = ("gateway_id", "boot_id", "takes_runs")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    TAKES_RUNS_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    boot_id: str
    takes_runs: bool
    def __init__(self, gateway_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., takes_runs: _Optional[bool] = ...) -> None: ...

class GatewayWelcome(_message.Message):
    __slots__ = ("scheduler_boot_id", "ready", "root_key", "block_tokens", "max_model_len", "max_choices", "max_request_blocks", "model", "namespace_generations", "takes_many")
    class NamespaceGenerationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SCHEDULER_BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ROOT_KEY_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_CHOICES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    TAKES_MANY_FIELD_NUMBER: _ClassVar[int]
    scheduler_boot_id: str
    ready: bool
    root_key: bytes
    block_tokens: int
    max_model_len: int
    max_choices: int
    max_request_blocks: int
    model: str
    namespace_generations: _containers.ScalarMap[str, int]
    takes_many: bool
    def __init__(self, scheduler_boot_id: _Optional[str] = ..., ready: _Optional[bool] = ..., root_key: _Optional[bytes] = ..., block_tokens: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_choices: _Optional[int] = ..., max_request_blocks: _Optional[int] = ..., model: _Optional[str] = ..., namespace_generations: _Optional[_Mapping[str, int]] = ..., takes_many: _Optional[bool] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request_id", "attempt", "tenant", "prompt_tokens", "prompt_keys", "sampling", "max_tokens", "choices", "remaining_deadline_us", "age_us", "priority", "slo_class", "traceparent", "idempotency_key", "body_hash", "gateway_state", "cache_off", "namespace_tag", "namespace_root", "cache", "pause_tool", "pause_expected_us", "resumes", "beams")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_KEYS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SLO_CLASS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    BODY_HASH_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_STATE_FIELD_NUMBER: _ClassVar[int]
    CACHE_OFF_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_TAG_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ROOT_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_TOOL_FIELD_NUMBER: _ClassVar[int]
    PAUSE_EXPECTED_US_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    BEAMS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    tenant: str
    prompt_tokens: bytes
    prompt_keys: bytes
    sampling: _worker_pb2.SamplingParams
    max_tokens: int
    choices: _containers.RepeatedCompositeFieldContainer[ChoiceState]
    remaining_deadline_us: int
    age_us: int
    priority: int
    slo_class: str
    traceparent: str
    idempotency_key: str
    body_hash: bytes
    gateway_state: bytes
    cache_off: bool
    namespace_tag: bytes
    namespace_root: bytes
    cache: CacheRule
    pause_tool: str
    pause_expected_us: int
    resumes: str
    beams: Beams
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., tenant: _Optional[str] = ..., prompt_tokens: _Optional[bytes] = ..., prompt_keys: _Optional[bytes] = ..., sampling: _Optional[_Union[_worker_pb2.SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., choices: _Optional[_Iterable[_Union[ChoiceState, _Mapping]]] = ..., remaining_deadline_us: _Optional[int] = ..., age_us: _Optional[int] = ..., priority: _Optional[int] = ..., slo_class: _Optional[str] = ..., traceparent: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., body_hash: _Optional[bytes] = ..., gateway_state: _Optional[bytes] = ..., cache_off: _Optional[bool] = ..., namespace_tag: _Optional[bytes] = ..., namespace_root: _Optional[bytes] = ..., cache: _Optional[_Union[CacheRule, _Mapping]] = ..., pause_tool: _Optional[str] = ..., pause_expected_us: _Optional[int] = ..., resumes: _Optional[str] = ..., beams: _Optional[_Union[Beams, _Mapping]] = ...) -> None: ...

class Beams(_message.Message):
    __slots__ = ("shown", "length_penalty", "early_stopping", "stop_ids", "logprobs")
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    shown: int
    length_penalty: float
    early_stopping: bool
    stop_ids: bytes
    logprobs: int
    def __init__(self, shown: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[bool] = ..., stop_ids: _Optional[bytes] = ..., logprobs: _Optional[int] = ...) -> None: ...

class CacheRule(_message.Message):
    __slots__ = ("ttl_us", "pin", "priority", "tiers", "generation", "layout", "preload", "chunks")
    TTL_US_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ttl_us: int
    pin: bool
    priority: int
    tiers: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    layout: bytes
    preload: str
    chunks: _containers.RepeatedCompositeFieldContainer[PromptChunk]
    def __init__(self, ttl_us: _Optional[int] = ..., pin: _Optional[bool] = ..., priority: _Optional[int] = ..., tiers: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ..., layout: _Optional[bytes] = ..., preload: _Optional[str] = ..., chunks: _Optional[_Iterable[_Union[PromptChunk, _Mapping]]] = ...) -> None: ...

class PromptChunk(_message.Message):
    __slots__ = ("name", "start", "tokens", "skip")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    name: str
    start: int
    tokens: int
    skip: int
    def __init__(self, name: _Optional[str] = ..., start: _Optional[int] = ..., tokens: _Optional[int] = ..., skip: _Optional[int] = ...) -> None: ...

class ChoiceState(_message.Message):
    __slots__ = ("seed", "emitted_tokens", "finished")
    SEED_FIELD_NUMBER: _ClassVar[int]
    EMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    seed: int
    emitted_tokens: bytes
    finished: str
    def __init__(self, seed: _Optional[int] = ..., emitted_tokens: _Optional[bytes] = ..., finished: _Optional[str] = ...) -> None: ...

class CancelOrder(_message.Message):
    __slots__ = ("request_id", "reason", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class PauseOrder(_message.Message):
    __slots__ = ("request_id", "tool", "expected_us", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_US_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tool: str
    expected_us: int
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., tool: _Optional[str] = ..., expected_us: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class PauseResult(_message.Message):
    __slots__ = ("decision",)
    DECISION_FIELD_NUMBER: _ClassVar[int]
    decision: str
    def __init__(self, decision: _Optional[str] = ...) -> None: ...

class StopChoice(_message.Message):
    __slots__ = ("request_id", "index", "at_len")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    AT_LEN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    at_len: int
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., at_len: _Optional[int] = ...) -> None: ...

class AttachOrder(_message.Message):
    __slots__ = ("request_id", "idempotency_key", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    idempotency_key: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class RequestEvents(_message.Message):
    __slots__ = ("events", "runs")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[RequestEvent]
    runs: TokenRuns
    def __init__(self, events: _Optional[_Iterable[_Union[RequestEvent, _Mapping]]] = ..., runs: _Optional[_Union[TokenRuns, _Mapping]] = ...) -> None: ...

class TokenRuns(_message.Message):
    __slots__ = ("handles", "indexes", "starts", "counts", "tokens")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    indexes: bytes
    starts: bytes
    counts: bytes
    tokens: bytes
    def __init__(self, handles: _Optional[bytes] = ..., indexes: _Optional[bytes] = ..., starts: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class RequestEvent(_message.Message):
    __slots__ = ("request_id", "accepted", "tokens", "choice_finished", "finished", "cancel_result", "pause_result")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FINISHED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_RESULT_FIELD_NUMBER: _ClassVar[int]
    PAUSE_RESULT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    accepted: Accepted
    tokens: Tokens
    choice_finished: ChoiceFinished
    finished: RequestFinished
    cancel_result: CancelResult
    pause_result: PauseResult
    def __init__(self, request_id: _Optional[str] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., choice_finished: _Optional[_Union[ChoiceFinished, _Mapping]] = ..., finished: _Optional[_Union[RequestFinished, _Mapping]] = ..., cancel_result: _Optional[_Union[CancelResult, _Mapping]] = ..., pause_result: _Optional[_Union[PauseResult, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("attached", "gateway_state", "prompt_tokens", "attempt", "max_tokens", "handle", "degraded")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_STATE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    attached: bool
    gateway_state: bytes
    prompt_tokens: bytes
    attempt: int
    max_tokens: int
    handle: int
    degraded: str
    def __init__(self, attached: _Optional[bool] = ..., gateway_state: _Optional[bytes] = ..., prompt_tokens: _Optional[bytes] = ..., attempt: _Optional[int] = ..., max_tokens: _Optional[int] = ..., handle: _Optional[int] = ..., degraded: _Optional[str] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("index", "tokens", "logprobs", "relay_us")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RELAY_US_FIELD_NUMBER: _ClassVar[int]
    index: int
    tokens: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Logprobs]
    relay_us: int
    def __init__(self, index: _Optional[int] = ..., tokens: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[_Union[_worker_pb2.Logprobs, _Mapping]]] = ..., relay_us: _Optional[int] = ..., **kwargs) -> None: ...

class ChoiceFinished(_message.Message):
    __slots__ = ("index", "reason", "tokens", "stop_token", "score", "cumulative_logprob")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: str
    tokens: int
    stop_token: int
    score: float
    cumulative_logprob: float
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[str] = ..., tokens: _Optional[int] = ..., stop_token: _Optional[int] = ..., score: _Optional[float] = ..., cumulative_logprob: _Optional[float] = ...) -> None: ...

class RequestFinished(_message.Message):
    __slots__ = ("outcome", "reason", "message", "retry_after_us", "cached_tokens", "times", "cost", "cached_by_tier", "blended_tokens")
    class CachedByTierEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_US_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CACHED_BY_TIER_FIELD_NUMBER: _ClassVar[int]
    BLENDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    reason: str
    message: str
    retry_after_us: int
    cached_tokens: int
    times: RequestTimes
    cost: RequestCost
    cached_by_tier: _containers.ScalarMap[str, int]
    blended_tokens: int
    def __init__(self, outcome: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_us: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., times: _Optional[_Union[RequestTimes, _Mapping]] = ..., cost: _Optional[_Union[RequestCost, _Mapping]] = ..., cached_by_tier: _Optional[_Mapping[str, int]] = ..., blended_tokens: _Optional[int] = ...) -> None: ...

class RequestCost(_message.Message):
    __slots__ = ("prefill_device_us", "decode_device_us", "recompute_device_us", "kv_pool_byte_s", "kv_dram_byte_s", "kv_nvme_byte_s", "saved_prefix_tokens", "saved_tier_tokens", "saved_sibling_tokens")
    PREFILL_DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    KV_POOL_BYTE_S_FIELD_NUMBER: _ClassVar[int]
    KV_DRAM_BYTE_S_FIELD_NUMBER: _ClassVar[int]
    KV_NVME_BYTE_S_FIELD_NUMBER: _ClassVar[int]
    SAVED_PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAVED_TIER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAVED_SIBLING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prefill_device_us: int
    decode_device_us: int
    recompute_device_us: int
    kv_pool_byte_s: float
    kv_dram_byte_s: float
    kv_nvme_byte_s: float
    saved_prefix_tokens: int
    saved_tier_tokens: int
    saved_sibling_tokens: int
    def __init__(self, prefill_device_us: _Optional[int] = ..., decode_device_us: _Optional[int] = ..., recompute_device_us: _Optional[int] = ..., kv_pool_byte_s: _Optional[float] = ..., kv_dram_byte_s: _Optional[float] = ..., kv_nvme_byte_s: _Optional[float] = ..., saved_prefix_tokens: _Optional[int] = ..., saved_tier_tokens: _Optional[int] = ..., saved_sibling_tokens: _Optional[int] = ...) -> None: ...

class RequestTimes(_message.Message):
    __slots__ = ("queue_us", "kv_load_us", "worker_wait_us", "prefill_us", "decode_us", "scheduler_us", "preemptions", "attempts", "first_token_us", "retry_us", "sample_us", "dispatch_us", "report_us")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    KV_LOAD_US_FIELD_NUMBER: _ClassVar[int]
    WORKER_WAIT_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_US_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    RETRY_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_US_FIELD_NUMBER: _ClassVar[int]
    REPORT_US_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    kv_load_us: int
    worker_wait_us: int
    prefill_us: int
    decode_us: int
    scheduler_us: int
    preemptions: int
    attempts: int
    first_token_us: int
    retry_us: int
    sample_us: int
    dispatch_us: int
    report_us: int
    def __init__(self, queue_us: _Optional[int] = ..., kv_load_us: _Optional[int] = ..., worker_wait_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., decode_us: _Optional[int] = ..., scheduler_us: _Optional[int] = ..., preemptions: _Optional[int] = ..., attempts: _Optional[int] = ..., first_token_us: _Optional[int] = ..., retry_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., dispatch_us: _Optional[int] = ..., report_us: _Optional[int] = ...) -> None: ...

class CancelResult(_message.Message):
    __slots__ = ("found", "outcome", "last_step", "blocks_freed", "latency_us", "cost")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREED_FIELD_NUMBER: _ClassVar[int]
    LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    found: bool
    outcome: str
    last_step: int
    blocks_freed: int
    latency_us: int
    cost: RequestCost
    def __init__(self, found: _Optional[bool] = ..., outcome: _Optional[str] = ..., last_step: _Optional[int] = ..., blocks_freed: _Optional[int] = ..., latency_us: _Optional[int] = ..., cost: _Optional[_Union[RequestCost, _Mapping]] = ...) -> None: ...

class AttachStoreRequest(_message.Message):
    __slots__ = ("hello", "events", "inventory", "heartbeat", "tiers", "codec")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    hello: StoreHello
    events: _kvstore_pb2.StoreEvents
    inventory: StoreInventory
    heartbeat: Heartbeat
    tiers: StoreTiers
    codec: StoreCodec
    def __init__(self, hello: _Optional[_Union[StoreHello, _Mapping]] = ..., events: _Optional[_Union[_kvstore_pb2.StoreEvents, _Mapping]] = ..., inventory: _Optional[_Union[StoreInventory, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., tiers: _Optional[_Union[StoreTiers, _Mapping]] = ..., codec: _Optional[_Union[StoreCodec, _Mapping]] = ...) -> None: ...

class AttachStoreResponse(_message.Message):
    __slots__ = ("welcome", "inventory_request", "heartbeat", "peers", "prefetch", "pin", "forget")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    welcome: StoreWelcome
    inventory_request: InventoryRequest
    heartbeat: Heartbeat
    peers: StorePeers
    prefetch: PrefetchHint
    pin: PinOrder
    forget: ForgetOrder
    def __init__(self, welcome: _Optional[_Union[StoreWelcome, _Mapping]] = ..., inventory_request: _Optional[_Union[InventoryRequest, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., peers: _Optional[_Union[StorePeers, _Mapping]] = ..., prefetch: _Optional[_Union[PrefetchHint, _Mapping]] = ..., pin: _Optional[_Union[PinOrder, _Mapping]] = ..., forget: _Optional[_Union[ForgetOrder, _Mapping]] = ...) -> None: ...

class StoreHello(_message.Message):
    __slots__ = ("store_id", "boot_id", "address", "peer_address", "fetches")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    boot_id: str
    address: str
    peer_address: str
    fetches: bool
    def __init__(self, store_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., address: _Optional[str] = ..., peer_address: _Optional[str] = ..., fetches: _Optional[bool] = ...) -> None: ...

class StorePeers(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[StorePeer]
    def __init__(self, peers: _Optional[_Iterable[_Union[StorePeer, _Mapping]]] = ...) -> None: ...

class StorePeer(_message.Message):
    __slots__ = ("store_id", "address")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    address: str
    def __init__(self, store_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class StoreCodec(_message.Message):
    __slots__ = ("blocks", "saved_us", "cost_us", "saved_bytes")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SAVED_US_FIELD_NUMBER: _ClassVar[int]
    COST_US_FIELD_NUMBER: _ClassVar[int]
    SAVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    saved_us: float
    cost_us: float
    saved_bytes: int
    def __init__(self, blocks: _Optional[int] = ..., saved_us: _Optional[float] = ..., cost_us: _Optional[float] = ..., saved_bytes: _Optional[int] = ...) -> None: ...

class StoreWelcome(_message.Message):
    __slots__ = ("scheduler_boot_id",)
    SCHEDULER_BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    scheduler_boot_id: str
    def __init__(self, scheduler_boot_id: _Optional[str] = ...) -> None: ...

class InventoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrefetchHint(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    def __init__(self, keys: _Optional[bytes] = ...) -> None: ...

class PinOrder(_message.Message):
    __slots__ = ("keys", "pinned")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    pinned: bool
    def __init__(self, keys: _Optional[bytes] = ..., pinned: _Optional[bool] = ...) -> None: ...

class ForgetOrder(_message.Message):
    __slots__ = ("keys", "namespace", "below")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    namespace: bytes
    below: bool
    def __init__(self, keys: _Optional[bytes] = ..., namespace: _Optional[bytes] = ..., below: _Optional[bool] = ...) -> None: ...

class StoreInventory(_message.Message):
    __slots__ = ("number", "keys", "last")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    number: int
    keys: bytes
    last: bool
    def __init__(self, number: _Optional[int] = ..., keys: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("scheduler_boot_id", "ready", "why_not_ready", "workers", "gateways", "stores", "requests_waiting", "requests_running", "blocks_total", "blocks_free", "blocks_cached", "blocks_leaked", "counters", "tenants")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SCHEDULER_BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    WHY_NOT_READY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_LEAKED_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    scheduler_boot_id: str
    ready: bool
    why_not_ready: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    gateways: _containers.RepeatedCompositeFieldContainer[GatewayStatus]
    stores: _containers.RepeatedCompositeFieldContainer[StoreStatus]
    requests_waiting: int
    requests_running: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_leaked: int
    counters: _containers.ScalarMap[str, float]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStatus]
    def __init__(self, scheduler_boot_id: _Optional[str] = ..., ready: _Optional[bool] = ..., why_not_ready: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., gateways: _Optional[_Iterable[_Union[GatewayStatus, _Mapping]]] = ..., stores: _Optional[_Iterable[_Union[StoreStatus, _Mapping]]] = ..., requests_waiting: _Optional[int] = ..., requests_running: _Optional[int] = ..., blocks_total: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., blocks_leaked: _Optional[int] = ..., counters: _Optional[_Mapping[str, float]] = ..., tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ...) -> None: ...

class TenantStatus(_message.Message):
    __slots__ = ("tenant", "requests", "running_sequences", "held_blocks", "rate_tokens_per_s", "burst_tokens", "tokens_left", "concurrency", "kv_share", "rejected")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RATE_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    BURST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_LEFT_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    KV_SHARE_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    requests: int
    running_sequences: int
    held_blocks: int
    rate_tokens_per_s: float
    burst_tokens: float
    tokens_left: float
    concurrency: int
    kv_share: float
    rejected: int
    def __init__(self, tenant: _Optional[str] = ..., requests: _Optional[int] = ..., running_sequences: _Optional[int] = ..., held_blocks: _Optional[int] = ..., rate_tokens_per_s: _Optional[float] = ..., burst_tokens: _Optional[float] = ..., tokens_left: _Optional[float] = ..., concurrency: _Optional[int] = ..., kv_share: _Optional[float] = ..., rejected: _Optional[int] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker_id", "state", "running", "blocks_total", "blocks_free", "steps", "pid", "block_bytes", "block_tokens", "step_tokens", "fixed_us", "prefill_token_us", "context_token_us", "load_bytes_per_us", "load_fixed_us", "labels", "blocks_retired", "role")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIXED_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    LOAD_BYTES_PER_US_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIXED_US_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_RETIRED_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    state: str
    running: int
    blocks_total: int
    blocks_free: int
    steps: int
    pid: int
    block_bytes: int
    block_tokens: int
    step_tokens: int
    fixed_us: float
    prefill_token_us: float
    context_token_us: float
    load_bytes_per_us: float
    load_fixed_us: float
    labels: _containers.RepeatedScalarFieldContainer[str]
    blocks_retired: int
    role: str
    def __init__(self, worker_id: _Optional[str] = ..., state: _Optional[str] = ..., running: _Optional[int] = ..., blocks_total: _Optional[int] = ..., blocks_free: _Optional[int] = ..., steps: _Optional[int] = ..., pid: _Optional[int] = ..., block_bytes: _Optional[int] = ..., block_tokens: _Optional[int] = ..., step_tokens: _Optional[int] = ..., fixed_us: _Optional[float] = ..., prefill_token_us: _Optional[float] = ..., context_token_us: _Optional[float] = ..., load_bytes_per_us: _Optional[float] = ..., load_fixed_us: _Optional[float] = ..., labels: _Optional[_Iterable[str]] = ..., blocks_retired: _Optional[int] = ..., role: _Optional[str] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "deadline_us", "force")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    deadline_us: int
    force: bool
    def __init__(self, worker_id: _Optional[str] = ..., deadline_us: _Optional[int] = ..., force: _Optional[bool] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ("state", "running", "copying", "remaining_us", "finished", "handed_over", "why")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    COPYING_FIELD_NUMBER: _ClassVar[int]
    REMAINING_US_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    state: str
    running: int
    copying: int
    remaining_us: int
    finished: int
    handed_over: int
    why: str
    def __init__(self, state: _Optional[str] = ..., running: _Optional[int] = ..., copying: _Optional[int] = ..., remaining_us: _Optional[int] = ..., finished: _Optional[int] = ..., handed_over: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class GatewayStatus(_message.Message):
    __slots__ = ("gateway_id", "requests")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    requests: int
    def __init__(self, gateway_id: _Optional[str] = ..., requests: _Optional[int] = ...) -> None: ...

class StoreStatus(_message.Message):
    __slots__ = ("store_id", "state", "keys")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    state: str
    keys: int
    def __init__(self, store_id: _Optional[str] = ..., state: _Optional[str] = ..., keys: _Optional[int] = ...) -> None: ...

class StoreTiers(_message.Message):
    __slots__ = ("tiers",)
    TIERS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[_kvstore_pb2.TierStats]
    def __init__(self, tiers: _Optional[_Iterable[_Union[_kvstore_pb2.TierStats, _Mapping]]] = ...) -> None: ...

class GetLiveRequest(_message.Message):
    __slots__ = ("max_requests",)
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    max_requests: int
    def __init__(self, max_requests: _Optional[int] = ...) -> None: ...

class GetLiveResponse(_message.Message):
    __slots__ = ("scheduler_boot_id", "ready", "why_not_ready", "workers", "stores", "waiting", "running", "recent", "requests_waiting", "requests_running", "ledger", "slo_classes", "waiting_prompt_tokens", "gateways", "counters", "tenants", "trials")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SCHEDULER_BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    WHY_NOT_READY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    SLO_CLASSES_FIELD_NUMBER: _ClassVar[int]
    WAITING_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    scheduler_boot_id: str
    ready: bool
    why_not_ready: str
    workers: _containers.RepeatedCompositeFieldContainer[LiveWorker]
    stores: _containers.RepeatedCompositeFieldContainer[LiveStore]
    waiting: _containers.RepeatedCompositeFieldContainer[LiveRequest]
    running: _containers.RepeatedCompositeFieldContainer[LiveRequest]
    recent: _containers.RepeatedCompositeFieldContainer[LiveRequest]
    requests_waiting: int
    requests_running: int
    ledger: _containers.RepeatedCompositeFieldContainer[LedgerRow]
    slo_classes: _containers.RepeatedCompositeFieldContainer[SloTarget]
    waiting_prompt_tokens: int
    gateways: _containers.RepeatedScalarFieldContainer[str]
    counters: _containers.ScalarMap[str, float]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStatus]
    trials: _containers.RepeatedCompositeFieldContainer[LedgerTrial]
    def __init__(self, scheduler_boot_id: _Optional[str] = ..., ready: _Optional[bool] = ..., why_not_ready: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[LiveWorker, _Mapping]]] = ..., stores: _Optional[_Iterable[_Union[LiveStore, _Mapping]]] = ..., waiting: _Optional[_Iterable[_Union[LiveRequest, _Mapping]]] = ..., running: _Optional[_Iterable[_Union[LiveRequest, _Mapping]]] = ..., recent: _Optional[_Iterable[_Union[LiveRequest, _Mapping]]] = ..., requests_waiting: _Optional[int] = ..., requests_running: _Optional[int] = ..., ledger: _Optional[_Iterable[_Union[LedgerRow, _Mapping]]] = ..., slo_classes: _Optional[_Iterable[_Union[SloTarget, _Mapping]]] = ..., waiting_prompt_tokens: _Optional[int] = ..., gateways: _Optional[_Iterable[str]] = ..., counters: _Optional[_Mapping[str, float]] = ..., tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ..., trials: _Optional[_Iterable[_Union[LedgerTrial, _Mapping]]] = ...) -> None: ...

class LiveWorker(_message.Message):
    __slots__ = ("worker_id", "state", "running", "max_seqs", "blocks_total", "blocks_free", "blocks_cached", "block_bytes", "steps", "step_us", "block_map", "blocks_per_cell")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    BLOCK_MAP_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PER_CELL_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    state: str
    running: int
    max_seqs: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    block_bytes: int
    steps: int
    step_us: float
    block_map: bytes
    blocks_per_cell: int
    def __init__(self, worker_id: _Optional[str] = ..., state: _Optional[str] = ..., running: _Optional[int] = ..., max_seqs: _Optional[int] = ..., blocks_total: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., block_bytes: _Optional[int] = ..., steps: _Optional[int] = ..., step_us: _Optional[float] = ..., block_map: _Optional[bytes] = ..., blocks_per_cell: _Optional[int] = ...) -> None: ...

class LiveStore(_message.Message):
    __slots__ = ("store_id", "state", "keys", "tiers")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    state: str
    keys: int
    tiers: _containers.RepeatedCompositeFieldContainer[_kvstore_pb2.TierStats]
    def __init__(self, store_id: _Optional[str] = ..., state: _Optional[str] = ..., keys: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[_kvstore_pb2.TierStats, _Mapping]]] = ...) -> None: ...

class LiveRequest(_message.Message):
    __slots__ = ("request_id", "tenant", "trace_id", "phase", "prompt_tokens", "cached_tokens", "computed_tokens", "output_tokens", "max_tokens", "choices", "workers", "blocks", "age_us", "priority", "slo_class", "attempts", "preemptions", "cost", "outcome", "reason", "first_token_us", "ended_us_ago", "degraded")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SLO_CLASS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    ENDED_US_AGO_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    trace_id: str
    phase: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    max_tokens: int
    choices: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    blocks: int
    age_us: int
    priority: int
    slo_class: str
    attempts: int
    preemptions: int
    cost: RequestCost
    outcome: str
    reason: str
    first_token_us: int
    ended_us_ago: int
    degraded: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., trace_id: _Optional[str] = ..., phase: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., choices: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., blocks: _Optional[int] = ..., age_us: _Optional[int] = ..., priority: _Optional[int] = ..., slo_class: _Optional[str] = ..., attempts: _Optional[int] = ..., preemptions: _Optional[int] = ..., cost: _Optional[_Union[RequestCost, _Mapping]] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., first_token_us: _Optional[int] = ..., ended_us_ago: _Optional[int] = ..., degraded: _Optional[str] = ...) -> None: ...

class LedgerRow(_message.Message):
    __slots__ = ("technique", "entries", "saved_ms", "cost_ms", "saved_bytes", "cost_bytes", "held_ms", "hits", "hit_tokens", "asked_tokens", "tenant", "prompt")
    TECHNIQUE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SAVED_MS_FIELD_NUMBER: _ClassVar[int]
    COST_MS_FIELD_NUMBER: _ClassVar[int]
    SAVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COST_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_MS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ASKED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    technique: str
    entries: int
    saved_ms: float
    cost_ms: float
    saved_bytes: int
    cost_bytes: int
    held_ms: float
    hits: int
    hit_tokens: int
    asked_tokens: int
    tenant: str
    prompt: str
    def __init__(self, technique: _Optional[str] = ..., entries: _Optional[int] = ..., saved_ms: _Optional[float] = ..., cost_ms: _Optional[float] = ..., saved_bytes: _Optional[int] = ..., cost_bytes: _Optional[int] = ..., held_ms: _Optional[float] = ..., hits: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., asked_tokens: _Optional[int] = ..., tenant: _Optional[str] = ..., prompt: _Optional[str] = ...) -> None: ...

class GetLedgerRequest(_message.Message):
    __slots__ = ("technique", "tenant")
    TECHNIQUE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    technique: str
    tenant: str
    def __init__(self, technique: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class GetLedgerResponse(_message.Message):
    __slots__ = ("rows", "trials", "tiers")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[LedgerRow]
    trials: _containers.RepeatedCompositeFieldContainer[LedgerTrial]
    tiers: _containers.RepeatedCompositeFieldContainer[TierRate]
    def __init__(self, rows: _Optional[_Iterable[_Union[LedgerRow, _Mapping]]] = ..., trials: _Optional[_Iterable[_Union[LedgerTrial, _Mapping]]] = ..., tiers: _Optional[_Iterable[_Union[TierRate, _Mapping]]] = ...) -> None: ...

class LedgerTrial(_message.Message):
    __slots__ = ("technique", "prompt", "with_it", "without", "calibration", "off", "why", "turns", "net_ms")
    TECHNIQUE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    WITH_IT_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    OFF_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    NET_MS_FIELD_NUMBER: _ClassVar[int]
    technique: str
    prompt: str
    with_it: int
    without: int
    calibration: float
    off: bool
    why: str
    turns: int
    net_ms: float
    def __init__(self, technique: _Optional[str] = ..., prompt: _Optional[str] = ..., with_it: _Optional[int] = ..., without: _Optional[int] = ..., calibration: _Optional[float] = ..., off: _Optional[bool] = ..., why: _Optional[str] = ..., turns: _Optional[int] = ..., net_ms: _Optional[float] = ...) -> None: ...

class TierRate(_message.Message):
    __slots__ = ("worker_id", "tier", "bytes_per_us", "fixed_us", "loads")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_US_FIELD_NUMBER: _ClassVar[int]
    FIXED_US_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    tier: str
    bytes_per_us: float
    fixed_us: float
    loads: int
    def __init__(self, worker_id: _Optional[str] = ..., tier: _Optional[str] = ..., bytes_per_us: _Optional[float] = ..., fixed_us: _Optional[float] = ..., loads: _Optional[int] = ...) -> None: ...

class SloTarget(_message.Message):
    __slots__ = ("name", "ttft_ms", "itl_p99_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    ITL_P99_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    ttft_ms: float
    itl_p99_ms: float
    def __init__(self, name: _Optional[str] = ..., ttft_ms: _Optional[float] = ..., itl_p99_ms: _Optional[float] = ...) -> None: ...

class GetTimelineRequest(_message.Message):
    __slots__ = ("request_id", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class GetTimelineResponse(_message.Message):
    __slots__ = ("found", "spans", "request")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    found: bool
    spans: _containers.RepeatedCompositeFieldContainer[TimelineSpan]
    request: LiveRequest
    def __init__(self, found: _Optional[bool] = ..., spans: _Optional[_Iterable[_Union[TimelineSpan, _Mapping]]] = ..., request: _Optional[_Union[LiveRequest, _Mapping]] = ...) -> None: ...

class TimelineSpan(_message.Message):
    __slots__ = ("name", "service", "start_us", "end_us", "running", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    service: str
    start_us: int
    end_us: int
    running: bool
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., service: _Optional[str] = ..., start_us: _Optional[int] = ..., end_us: _Optional[int] = ..., running: _Optional[bool] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...
