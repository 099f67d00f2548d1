from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_DEADLINE: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_DEADLINE: FinishReason

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ...) -> None: ...

class Options(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop_str", "n", "logprobs", "echo", "skip_special_tokens", "beam_width", "length_penalty", "early_stopping")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEAM_WIDTH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    include_stop_str: bool
    n: int
    logprobs: int
    echo: bool
    skip_special_tokens: bool
    beam_width: int
    length_penalty: float
    early_stopping: bool
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., include_stop_str: _Optional[bool] = ..., n: _Optional[int] = ..., logprobs: _Optional[int] = ..., echo: _Optional[bool] = ..., skip_special_tokens: _Optional[bool] = ..., beam_width: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[bool] = ...) -> None: ...

class RequestContext(_message.Message):
    __slots__ = ("request_id", "idempotency_key", "model", "priority", "slo_class", "deadline_ms", "cache_off", "cache_salt", "cache", "pause", "resumes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SLO_CLASS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    CACHE_OFF_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    idempotency_key: str
    model: str
    priority: int
    slo_class: str
    deadline_ms: int
    cache_off: bool
    cache_salt: str
    cache: CacheControl
    pause: ToolPause
    resumes: str
    def __init__(self, request_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., model: _Optional[str] = ..., priority: _Optional[int] = ..., slo_class: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., cache_off: _Optional[bool] = ..., cache_salt: _Optional[str] = ..., cache: _Optional[_Union[CacheControl, _Mapping]] = ..., pause: _Optional[_Union[ToolPause, _Mapping]] = ..., resumes: _Optional[str] = ...) -> None: ...

class ToolPause(_message.Message):
    __slots__ = ("tool", "expected_ms")
    TOOL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MS_FIELD_NUMBER: _ClassVar[int]
    tool: str
    expected_ms: int
    def __init__(self, tool: _Optional[str] = ..., expected_ms: _Optional[int] = ...) -> None: ...

class CacheControl(_message.Message):
    __slots__ = ("off", "salt", "ttl", "pin", "priority", "tiers", "preload", "chunks")
    OFF_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    off: bool
    salt: str
    ttl: float
    pin: bool
    priority: int
    tiers: _containers.RepeatedScalarFieldContainer[str]
    preload: str
    chunks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, off: _Optional[bool] = ..., salt: _Optional[str] = ..., ttl: _Optional[float] = ..., pin: _Optional[bool] = ..., priority: _Optional[int] = ..., tiers: _Optional[_Iterable[str]] = ..., preload: _Optional[str] = ..., chunks: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("context", "text", "token_ids", "sampling", "options")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    context: RequestContext
    text: str
    token_ids: TokenIds
    sampling: Sampling
    options: Options
    def __init__(self, context: _Optional[_Union[RequestContext, _Mapping]] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., options: _Optional[_Union[Options, _Mapping]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ChatRequest(_message.Message):
    __slots__ = ("context", "messages", "sampling", "options", "add_generation_prompt", "tools", "tool_choice")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    context: RequestContext
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    sampling: Sampling
    options: Options
    add_generation_prompt: bool
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: str
    def __init__(self, context: _Optional[_Union[RequestContext, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., options: _Optional[_Union[Options, _Mapping]] = ..., add_generation_prompt: _Optional[bool] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "name", "tool_calls", "tool_call_id")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    name: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("request_id", "from_byte", "idempotency_key")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_BYTE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    from_byte: int
    idempotency_key: str
    def __init__(self, request_id: _Optional[str] = ..., from_byte: _Optional[int] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("call", "context", "generate", "chat", "attach", "cancel", "pause", "ack", "leave")
    CALL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    call: int
    context: CallContext
    generate: GenerateRequest
    chat: ChatRequest
    attach: AttachRequest
    cancel: CancelRequest
    pause: PauseRequest
    ack: AckRequest
    leave: LeaveCall
    def __init__(self, call: _Optional[int] = ..., context: _Optional[_Union[CallContext, _Mapping]] = ..., generate: _Optional[_Union[GenerateRequest, _Mapping]] = ..., chat: _Optional[_Union[ChatRequest, _Mapping]] = ..., attach: _Optional[_Union[AttachRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelRequest, _Mapping]] = ..., pause: _Optional[_Union[PauseRequest, _Mapping]] = ..., ack: _Optional[_Union[AckRequest, _Mapping]] = ..., leave: _Optional[_Union[LeaveCall, _Mapping]] = ...) -> None: ...

class CallContext(_message.Message):
    __slots__ = ("authorization", "traceparent", "timeout_ms")
    AUTHORIZATION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    authorization: str
    traceparent: str
    timeout_ms: int
    def __init__(self, authorization: _Optional[str] = ..., traceparent: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class LeaveCall(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("runs", "events")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    runs: DeltaRuns
    events: _containers.RepeatedCompositeFieldContainer[CallEvent]
    def __init__(self, runs: _Optional[_Union[DeltaRuns, _Mapping]] = ..., events: _Optional[_Iterable[_Union[CallEvent, _Mapping]]] = ...) -> None: ...

class DeltaRuns(_message.Message):
    __slots__ = ("calls", "indexes", "counts", "token_ends", "byte_ends", "tokens", "texts")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ENDS_FIELD_NUMBER: _ClassVar[int]
    BYTE_ENDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    calls: bytes
    indexes: bytes
    counts: bytes
    token_ends: bytes
    byte_ends: bytes
    tokens: bytes
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, calls: _Optional[bytes] = ..., indexes: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., token_ends: _Optional[bytes] = ..., byte_ends: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., texts: _Optional[_Iterable[str]] = ...) -> None: ...

class CallEvent(_message.Message):
    __slots__ = ("call", "started", "delta", "finished", "failed", "cancelled", "paused")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    call: int
    started: Started
    delta: Delta
    finished: Finished
    failed: CallFailed
    cancelled: CancelResponse
    paused: PauseResponse
    def __init__(self, call: _Optional[int] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., failed: _Optional[_Union[CallFailed, _Mapping]] = ..., cancelled: _Optional[_Union[CancelResponse, _Mapping]] = ..., paused: _Optional[_Union[PauseResponse, _Mapping]] = ...) -> None: ...

class CallFailed(_message.Message):
    __slots__ = ("code", "message", "status", "cost")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    status: bytes
    cost: Cost
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., status: _Optional[bytes] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "delta", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: Started
    delta: Delta
    finished: Finished
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class ChatResponse(_message.Message):
    __slots__ = ("started", "delta", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: Started
    delta: Delta
    finished: Finished
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("started", "delta", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: Started
    delta: Delta
    finished: Finished
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("request_id", "model", "trace_id", "prompt_tokens", "seed", "degraded", "max_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    trace_id: str
    prompt_tokens: int
    seed: int
    degraded: str
    max_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., trace_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., degraded: _Optional[str] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("index", "text", "token_ids", "logprobs", "token_end", "byte_end", "finish_reason", "stop_hit", "tool_calls", "call_parts")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_END_FIELD_NUMBER: _ClassVar[int]
    BYTE_END_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_HIT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    CALL_PARTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    token_end: int
    byte_end: int
    finish_reason: FinishReason
    stop_hit: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    call_parts: _containers.RepeatedCompositeFieldContainer[ToolCallPart]
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., token_end: _Optional[int] = ..., byte_end: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., stop_hit: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., call_parts: _Optional[_Iterable[_Union[ToolCallPart, _Mapping]]] = ...) -> None: ...

class ToolCallPart(_message.Message):
    __slots__ = ("number", "id", "name", "arguments", "end")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    number: int
    id: str
    name: str
    arguments: str
    end: int
    def __init__(self, number: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ..., end: _Optional[int] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "text", "token_bytes", "logprob", "top")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    token_bytes: bytes
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ..., token_bytes: _Optional[bytes] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("usage", "timings", "choices", "cost")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    timings: Timings
    choices: _containers.RepeatedCompositeFieldContainer[ChoiceEnd]
    cost: Cost
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., choices: _Optional[_Iterable[_Union[ChoiceEnd, _Mapping]]] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...

class Cost(_message.Message):
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

class ChoiceEnd(_message.Message):
    __slots__ = ("index", "finish_reason", "tokens", "bytes", "ids_blake3", "score", "cumulative_logprob")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    IDS_BLAKE3_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    index: int
    finish_reason: FinishReason
    tokens: int
    bytes: int
    ids_blake3: bytes
    score: float
    cumulative_logprob: float
    def __init__(self, index: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., ids_blake3: _Optional[bytes] = ..., score: _Optional[float] = ..., cumulative_logprob: _Optional[float] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "completion_tokens", "blended_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLENDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    blended_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., blended_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("t_received_unix_us", "t_tokenized_us", "t_admitted_us", "t_prefill_start_us", "t_first_token_us", "t_last_token_us", "t_complete_us", "queue_us", "kv_load_us", "prefill_us", "decode_us", "preemptions", "attempts", "ttft")
    T_RECEIVED_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    T_TOKENIZED_US_FIELD_NUMBER: _ClassVar[int]
    T_ADMITTED_US_FIELD_NUMBER: _ClassVar[int]
    T_PREFILL_START_US_FIELD_NUMBER: _ClassVar[int]
    T_FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    T_LAST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    T_COMPLETE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    KV_LOAD_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    t_received_unix_us: int
    t_tokenized_us: int
    t_admitted_us: int
    t_prefill_start_us: int
    t_first_token_us: int
    t_last_token_us: int
    t_complete_us: int
    queue_us: int
    kv_load_us: int
    prefill_us: int
    decode_us: int
    preemptions: int
    attempts: int
    ttft: TtftParts
    def __init__(self, t_received_unix_us: _Optional[int] = ..., t_tokenized_us: _Optional[int] = ..., t_admitted_us: _Optional[int] = ..., t_prefill_start_us: _Optional[int] = ..., t_first_token_us: _Optional[int] = ..., t_last_token_us: _Optional[int] = ..., t_complete_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., kv_load_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., decode_us: _Optional[int] = ..., preemptions: _Optional[int] = ..., attempts: _Optional[int] = ..., ttft: _Optional[_Union[TtftParts, _Mapping]] = ...) -> None: ...

class TtftParts(_message.Message):
    __slots__ = ("gateway_us", "tokenize_us", "queue_us", "retry_us", "kv_load_us", "worker_wait_us", "prefill_us", "sample_us", "detokenize_us", "transport_us", "dispatch_us", "report_us", "relay_us")
    GATEWAY_US_FIELD_NUMBER: _ClassVar[int]
    TOKENIZE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    RETRY_US_FIELD_NUMBER: _ClassVar[int]
    KV_LOAD_US_FIELD_NUMBER: _ClassVar[int]
    WORKER_WAIT_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    DETOKENIZE_US_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_US_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_US_FIELD_NUMBER: _ClassVar[int]
    REPORT_US_FIELD_NUMBER: _ClassVar[int]
    RELAY_US_FIELD_NUMBER: _ClassVar[int]
    gateway_us: int
    tokenize_us: int
    queue_us: int
    retry_us: int
    kv_load_us: int
    worker_wait_us: int
    prefill_us: int
    sample_us: int
    detokenize_us: int
    transport_us: int
    dispatch_us: int
    report_us: int
    relay_us: int
    def __init__(self, gateway_us: _Optional[int] = ..., tokenize_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., retry_us: _Optional[int] = ..., kv_load_us: _Optional[int] = ..., worker_wait_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., detokenize_us: _Optional[int] = ..., transport_us: _Optional[int] = ..., dispatch_us: _Optional[int] = ..., report_us: _Optional[int] = ..., relay_us: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
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
    cost: Cost
    def __init__(self, found: _Optional[bool] = ..., outcome: _Optional[str] = ..., last_step: _Optional[int] = ..., blocks_freed: _Optional[int] = ..., latency_us: _Optional[int] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("request_id", "pause")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    pause: ToolPause
    def __init__(self, request_id: _Optional[str] = ..., pause: _Optional[_Union[ToolPause, _Mapping]] = ...) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ("found", "decision")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    found: bool
    decision: str
    def __init__(self, found: _Optional[bool] = ..., decision: _Optional[str] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("request_id", "byte_end", "first_token_ms", "last_token_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BYTE_END_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    byte_end: int
    first_token_ms: float
    last_token_ms: float
    def __init__(self, request_id: _Optional[str] = ..., byte_end: _Optional[int] = ..., first_token_ms: _Optional[float] = ..., last_token_ms: _Optional[float] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "text", "messages", "parse_special", "add_bos")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    ADD_BOS_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    messages: ChatMessages
    parse_special: bool
    add_bos: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., messages: _Optional[_Union[ChatMessages, _Mapping]] = ..., parse_special: _Optional[bool] = ..., add_bos: _Optional[bool] = ...) -> None: ...

class ChatMessages(_message.Message):
    __slots__ = ("messages", "add_generation_prompt")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    add_generation_prompt: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., add_generation_prompt: _Optional[bool] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids", "pieces")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    pieces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., pieces: _Optional[_Iterable[str]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "token_ids", "skip_special_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    skip_special_tokens: bool
    def __init__(self, model: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., skip_special_tokens: _Optional[bool] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class CountTokensRequest(_message.Message):
    __slots__ = ("model", "text", "messages")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    messages: ChatMessages
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., messages: _Optional[_Union[ChatMessages, _Mapping]] = ...) -> None: ...

class CountTokensResponse(_message.Message):
    __slots__ = ("tokens", "max_model_len")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    max_model_len: int
    def __init__(self, tokens: _Optional[int] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("id", "max_model_len", "vocab_size", "architecture", "fingerprint", "created_unix_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    max_model_len: int
    vocab_size: int
    architecture: str
    fingerprint: str
    created_unix_s: int
    def __init__(self, id: _Optional[str] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., architecture: _Optional[str] = ..., fingerprint: _Optional[str] = ..., created_unix_s: _Optional[int] = ...) -> None: ...
