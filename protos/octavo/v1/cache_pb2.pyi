from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PutPreloadRequest(_message.Message):
    __slots__ = ("tenant", "name", "texts", "form", "salt", "tokens")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    name: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    form: str
    salt: str
    tokens: bytes
    def __init__(self, tenant: _Optional[str] = ..., name: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., form: _Optional[str] = ..., salt: _Optional[str] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class PutPreloadResponse(_message.Message):
    __slots__ = ("preload", "replaced", "build_us")
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    BUILD_US_FIELD_NUMBER: _ClassVar[int]
    preload: Preload
    replaced: bool
    build_us: int
    def __init__(self, preload: _Optional[_Union[Preload, _Mapping]] = ..., replaced: _Optional[bool] = ..., build_us: _Optional[int] = ...) -> None: ...

class Preload(_message.Message):
    __slots__ = ("tenant", "name", "version", "form", "salt", "state", "why", "tokens", "blocks", "bytes", "pinned", "worker", "uses", "age_us", "source", "token_ids", "content")
    class SourceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    name: str
    version: int
    form: str
    salt: str
    state: str
    why: str
    tokens: int
    blocks: int
    bytes: int
    pinned: bool
    worker: str
    uses: int
    age_us: int
    source: _containers.ScalarMap[str, int]
    token_ids: bytes
    content: bytes
    def __init__(self, tenant: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., form: _Optional[str] = ..., salt: _Optional[str] = ..., state: _Optional[str] = ..., why: _Optional[str] = ..., tokens: _Optional[int] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., pinned: _Optional[bool] = ..., worker: _Optional[str] = ..., uses: _Optional[int] = ..., age_us: _Optional[int] = ..., source: _Optional[_Mapping[str, int]] = ..., token_ids: _Optional[bytes] = ..., content: _Optional[bytes] = ...) -> None: ...

class ListPreloadsRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ListPreloadsResponse(_message.Message):
    __slots__ = ("preloads", "pinned_bytes", "pin_quota_bytes")
    PRELOADS_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIN_QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    preloads: _containers.RepeatedCompositeFieldContainer[Preload]
    pinned_bytes: int
    pin_quota_bytes: int
    def __init__(self, preloads: _Optional[_Iterable[_Union[Preload, _Mapping]]] = ..., pinned_bytes: _Optional[int] = ..., pin_quota_bytes: _Optional[int] = ...) -> None: ...

class GetPreloadRequest(_message.Message):
    __slots__ = ("tenant", "name", "with_tokens", "known_version", "using", "known_content")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WITH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    USING_FIELD_NUMBER: _ClassVar[int]
    KNOWN_CONTENT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    name: str
    with_tokens: bool
    known_version: int
    using: bool
    known_content: bytes
    def __init__(self, tenant: _Optional[str] = ..., name: _Optional[str] = ..., with_tokens: _Optional[bool] = ..., known_version: _Optional[int] = ..., using: _Optional[bool] = ..., known_content: _Optional[bytes] = ...) -> None: ...

class GetPreloadResponse(_message.Message):
    __slots__ = ("found", "preload")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    found: bool
    preload: Preload
    def __init__(self, found: _Optional[bool] = ..., preload: _Optional[_Union[Preload, _Mapping]] = ...) -> None: ...

class RemovePreloadRequest(_message.Message):
    __slots__ = ("tenant", "name")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    name: str
    def __init__(self, tenant: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class RemovePreloadResponse(_message.Message):
    __slots__ = ("found", "blocks")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    found: bool
    blocks: int
    def __init__(self, found: _Optional[bool] = ..., blocks: _Optional[int] = ...) -> None: ...

class PinPreloadRequest(_message.Message):
    __slots__ = ("tenant", "name", "pinned")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    name: str
    pinned: bool
    def __init__(self, tenant: _Optional[str] = ..., name: _Optional[str] = ..., pinned: _Optional[bool] = ...) -> None: ...

class PinPreloadResponse(_message.Message):
    __slots__ = ("found", "preload")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    found: bool
    preload: Preload
    def __init__(self, found: _Optional[bool] = ..., preload: _Optional[_Union[Preload, _Mapping]] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("tenant", "name", "prefix", "salt", "whole_tenant", "form", "tokens")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    WHOLE_TENANT_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    name: str
    prefix: str
    salt: str
    whole_tenant: bool
    form: str
    tokens: bytes
    def __init__(self, tenant: _Optional[str] = ..., name: _Optional[str] = ..., prefix: _Optional[str] = ..., salt: _Optional[str] = ..., whole_tenant: _Optional[bool] = ..., form: _Optional[str] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ("blocks", "stores")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    stores: int
    def __init__(self, blocks: _Optional[int] = ..., stores: _Optional[int] = ...) -> None: ...

class RotateNamespaceRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class RotateNamespaceResponse(_message.Message):
    __slots__ = ("generation", "blocks", "stores", "preloads")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    PRELOADS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    blocks: int
    stores: int
    preloads: int
    def __init__(self, generation: _Optional[int] = ..., blocks: _Optional[int] = ..., stores: _Optional[int] = ..., preloads: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("tenant", "request_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    request_id: str
    def __init__(self, tenant: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("found", "reason", "prompt_tokens", "cached_tokens", "shared_tokens", "left_at", "nearest", "own", "other", "around_from", "own_text", "other_text", "message")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SHARED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEFT_AT_FIELD_NUMBER: _ClassVar[int]
    NEAREST_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    AROUND_FROM_FIELD_NUMBER: _ClassVar[int]
    OWN_TEXT_FIELD_NUMBER: _ClassVar[int]
    OTHER_TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    found: bool
    reason: str
    prompt_tokens: int
    cached_tokens: int
    shared_tokens: int
    left_at: int
    nearest: str
    own: bytes
    other: bytes
    around_from: int
    own_text: str
    other_text: str
    message: str
    def __init__(self, found: _Optional[bool] = ..., reason: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., shared_tokens: _Optional[int] = ..., left_at: _Optional[int] = ..., nearest: _Optional[str] = ..., own: _Optional[bytes] = ..., other: _Optional[bytes] = ..., around_from: _Optional[int] = ..., own_text: _Optional[str] = ..., other_text: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
