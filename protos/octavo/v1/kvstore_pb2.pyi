from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PinRequest(_message.Message):
    __slots__ = ("keys", "layout", "limit_us")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_US_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    layout: bytes
    limit_us: int
    def __init__(self, keys: _Optional[bytes] = ..., layout: _Optional[bytes] = ..., limit_us: _Optional[int] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("lease", "held")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    lease: int
    held: int
    def __init__(self, lease: _Optional[int] = ..., held: _Optional[int] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: int
    def __init__(self, lease: _Optional[int] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("keys", "layout", "lease")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    layout: bytes
    lease: int
    def __init__(self, keys: _Optional[bytes] = ..., layout: _Optional[bytes] = ..., lease: _Optional[int] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("key", "payload", "checksum", "tier")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    payload: bytes
    checksum: int
    tier: str
    def __init__(self, key: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., checksum: _Optional[int] = ..., tier: _Optional[str] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("key", "parent", "payload", "checksum", "layout")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    parent: bytes
    payload: bytes
    checksum: int
    layout: bytes
    def __init__(self, key: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., checksum: _Optional[int] = ..., layout: _Optional[bytes] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("stored", "known", "refused")
    STORED_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    stored: int
    known: int
    refused: int
    def __init__(self, stored: _Optional[int] = ..., known: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class ContainsRequest(_message.Message):
    __slots__ = ("keys", "layout")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    layout: bytes
    def __init__(self, keys: _Optional[bytes] = ..., layout: _Optional[bytes] = ...) -> None: ...

class ContainsResponse(_message.Message):
    __slots__ = ("tiers",)
    TIERS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tiers: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    def __init__(self, keys: _Optional[bytes] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    def __init__(self, deleted: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("store_id", "boot_id", "tiers", "counters")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    boot_id: str
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    counters: _containers.ScalarMap[str, float]
    def __init__(self, store_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., counters: _Optional[_Mapping[str, float]] = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("name", "capacity_bytes", "used_bytes", "keys", "hits", "misses", "corrupt")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity_bytes: int
    used_bytes: int
    keys: int
    hits: int
    misses: int
    corrupt: int
    def __init__(self, name: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., keys: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., corrupt: _Optional[int] = ...) -> None: ...

class StoreEvents(_message.Message):
    __slots__ = ("first_number", "events")
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    first_number: int
    events: _containers.RepeatedCompositeFieldContainer[StoreEvent]
    def __init__(self, first_number: _Optional[int] = ..., events: _Optional[_Iterable[_Union[StoreEvent, _Mapping]]] = ...) -> None: ...

class StoreEvent(_message.Message):
    __slots__ = ("key", "removed", "tier")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    removed: bool
    tier: str
    def __init__(self, key: _Optional[bytes] = ..., removed: _Optional[bool] = ..., tier: _Optional[str] = ...) -> None: ...
